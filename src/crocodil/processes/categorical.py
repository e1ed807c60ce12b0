"""Proposing tokens: drawing from the categorical distributions that a demasker predicts.

Pure tensor mathematics: a demasker appears only as its logits.
"""

from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import Positions, RowLogits, RowTokens

LOGITS_AT_ONCE = 1 << 28  # how many are worked on in float32 at a time: 1 GiB
STRETCH = 256  # tokens of the vocabulary that are drawn together first


# ---------------------------------------------------------------- proposing tokens


class Allowed(NamedTuple):
    """Positions where only some tokens may stand.

    `row` gives each position a row of the table `tokens`; in row 0 are all positions where any token may stand.
    """

    row: Int[Tensor, "B N"]
    tokens: Bool[Tensor, "A V"]

    def restricted(self) -> Positions:
        return self.row > 0

    def repeated(self, count: int) -> "Allowed":
        """The same for so many samples, of the one that this is for."""
        return Allowed(self.row.expand(count, -1), self.tokens)

    def of_samples(self, samples: Int[Tensor, "S"]) -> "Allowed":
        """The same of some samples of a batch."""
        return Allowed(self.row[samples], self.tokens)


class Proposal(NamedTuple):
    tokens: RowTokens
    log_prob: Float[Tensor, "R"]


def propose_tokens(
    row_logits: RowLogits,
    *,
    mask_id: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    streams: Streams | None = None,
    eos_id: int | None = None,
    no_end: Bool[Tensor, "R"] | None = None,
    allowed_row: Int[Tensor, "R"] | None = None,
    allowed_tokens: Bool[Tensor, "A W"] | None = None,
) -> Proposal:
    """x_0 ~ f_theta(x_t) for each row, with the log-probability of the token found.

    The mask is no token and can never be proposed, nor the end in rows with `no_end`, nor what `Allowed` forbids.
    Confidences are taken at temperature 1, over all possible tokens, and in float32 or better: half precision
    rounds most of them to exactly 1. `streams` holds one stream a row.
    """
    if temperature and streams is None:
        raise ValueError("temperature > 0 draws tokens: pass streams")
    size = max(1, LOGITS_AT_ONCE // row_logits.shape[1])
    keys = streams.keys.split(size) if temperature and streams is not None else repeat(None)
    ends = repeat(None) if no_end is None else no_end.split(size)
    rows = repeat(None) if allowed_row is None else allowed_row.split(size)
    parts = [
        _propose(_possible(logits, mask_id, eos_id, without, row, allowed_tokens), temperature, top_p, some)
        for logits, some, without, row in zip(row_logits.split(size), keys, ends, rows, strict=False)
    ]
    return Proposal(*(torch.cat(found) for found in zip(*parts, strict=True)))


def _possible(
    row_logits: RowLogits,
    mask_id: int,
    eos_id: int | None,
    no_end: Bool[Tensor, "R"] | None,
    allowed_row: Int[Tensor, "R"] | None,
    allowed_tokens: Bool[Tensor, "A W"] | None,
) -> RowLogits:
    """In float32 or better, without what cannot be proposed."""
    token = torch.arange(row_logits.shape[1], device=row_logits.device)
    impossible = token == mask_id
    if no_end is not None:
        impossible = impossible | (no_end[:, None] & (token == eos_id))
    if allowed_row is not None and allowed_tokens is not None:
        # An embedding may have more rows than the tokenizer has tokens: these are never allowed.
        table = F.pad(allowed_tokens, (0, row_logits.shape[1] - allowed_tokens.shape[1]))
        impossible = impossible | ((allowed_row > 0)[:, None] & ~table[allowed_row])
    return row_logits.to(torch.promote_types(row_logits.dtype, torch.float32)).masked_fill(impossible, -torch.inf)


def _propose(logits: RowLogits, temperature: float, top_p: float, keys: Int[Tensor, "R"] | None) -> Proposal:
    if keys is None:
        tokens = logits.argmax(dim=1)
    else:
        tokens = draw_tokens(logits, temperature=temperature, top_p=top_p, streams=Streams(keys))
    return Proposal(tokens, logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=1))


def draw_tokens(row_logits: RowLogits, *, temperature: float, top_p: float = 1.0, streams: Streams) -> RowTokens:
    """Draw from Categorical(softmax(logits / temperature)) with one uniform number a row, by inverting its sum.

    First a stretch of the vocabulary is drawn, then a token in it. The sums are in float64: in float32 rare tokens
    would be lost, which quietly lowers the temperature (Zheng et al., 2024, arXiv:2409.02908, of Gumbel noise). No
    tensor of the vocabulary's size is.
    """
    if temperature < 0:
        raise ValueError(f"temperature {temperature} is below 0")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is a probability above 0, not {top_p}")
    scaled = row_logits / temperature
    weights = (scaled - scaled.amax(dim=1, keepdim=True)).exp()
    if top_p < 1:
        weights = weights.where(nucleus(scaled, top_p), 0)
    stretches = F.pad(weights, (0, -weights.shape[1] % STRETCH)).unflatten(1, (-1, STRETCH))
    place = streams.uniform(dtype=torch.float64)
    stretch, within = _invert(stretches.sum(dim=2, dtype=torch.float64), place)
    chosen = stretches[torch.arange(len(stretches), device=stretch.device), stretch].double()
    token = stretch * STRETCH + _invert(chosen, within)[0]
    return token.clamp(max=row_logits.shape[1] - 1)  # outside only where logits are not finite


def _invert(
    weights: Float[Tensor, "R C"], place: Float[Tensor, "R"]
) -> tuple[Int[Tensor, "R"], Float[Tensor, "R"]]:
    """Where a place in [0, 1) of all the weight falls, and its place in [0, 1) of the weight that it falls on."""
    until = weights.cumsum(dim=1)
    goal = (place * until[:, -1])[:, None]
    # Rounding may bring the goal to the very end, where the next weight with anything in it would be outside.
    goal = torch.minimum(goal, until[:, -1:].nextafter(torch.zeros_like(goal)))
    # Inside also where weights are not finite: whoever looks at these finds them, a device cannot raise.
    found = (until <= goal).sum(dim=1, keepdim=True).clamp(max=weights.shape[1] - 1)
    own = weights.gather(1, found)
    return found[:, 0], (1 - (until.gather(1, found) - goal) / own)[:, 0].clamp(0, 1)


def nucleus(row_logits: RowLogits, top_p: float) -> Bool[Tensor, "R V"]:
    """The fewest tokens that together have probability `top_p`, the most probable first; at least one."""
    probs, order = row_logits.softmax(dim=1).sort(dim=1, descending=True, stable=True)
    more_probable = probs.cumsum(dim=1) - probs
    return torch.zeros_like(probs, dtype=torch.bool).scatter(1, order, more_probable < top_p)
