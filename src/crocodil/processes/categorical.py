"""Sample tokens from the categorical distributions that a demasker predicts.

Pure tensor mathematics: the input is the demasker's logits.
"""

from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import Positions, RowLogits, RowTokens

LOGITS_PER_CHUNK = 1 << 28  # processed in float32 at a time: 1 GiB
CHUNK = 256  # tokens per chunk of the vocabulary


# ---------------------------------------------------------------- proposing tokens


class Allowed(NamedTuple):
    """Positions where only some tokens are allowed.

    `row` maps each position to a row of the table `tokens`; row 0 allows every token.
    """

    row: Int[Tensor, "B N"]
    tokens: Bool[Tensor, "A V"]

    def restricted(self) -> Positions:
        return self.row > 0

    def repeated(self, count: int) -> "Allowed":
        """Return these restrictions of one sample, repeated for `count` samples."""
        return Allowed(self.row.expand(count, -1), self.tokens)

    def of_samples(self, samples: Int[Tensor, "S"]) -> "Allowed":
        """Return the restrictions of some samples of the batch."""
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
    no_eos: Bool[Tensor, "R"] | None = None,
    allowed_row: Int[Tensor, "R"] | None = None,
    allowed_tokens: Bool[Tensor, "A W"] | None = None,
    current: RowTokens | None = None,
) -> Proposal:
    """Sample x_0 ~ f_theta(x_t) for each row, and return the log-probability of the sampled token.

    The mask token is never proposed, nor EOS in rows with `no_eos`, nor tokens that `Allowed` forbids. If a row
    has a `current` token, it is proposed again unless the sampled token is more probable. The log-probability is
    at temperature 1 over all possible tokens. It has at least float32 precision, because half precision rounds
    most probabilities to exactly 1. `streams` holds one stream per row.
    """
    if temperature and streams is None:
        raise ValueError("temperature > 0 draws tokens: pass streams")
    size = max(1, LOGITS_PER_CHUNK // row_logits.shape[1])
    keys = streams.keys.split(size) if temperature and streams is not None else repeat(None)
    no_eos_chunks = repeat(None) if no_eos is None else no_eos.split(size)
    allowed_chunks = repeat(None) if allowed_row is None else allowed_row.split(size)
    current_chunks = repeat(None) if current is None else current.split(size)
    chunks = zip(row_logits.split(size), keys, no_eos_chunks, allowed_chunks, current_chunks, strict=False)
    proposals = [
        _propose(_possible(logits, mask_id, eos_id, bans_eos, row, allowed_tokens), temperature, top_p, key, token)
        for logits, key, bans_eos, row, token in chunks
    ]
    return Proposal(*(torch.cat(parts) for parts in zip(*proposals, strict=True)))


def _possible(
    row_logits: RowLogits,
    mask_id: int,
    eos_id: int | None,
    no_eos: Bool[Tensor, "R"] | None,
    allowed_row: Int[Tensor, "R"] | None,
    allowed_tokens: Bool[Tensor, "A W"] | None,
) -> RowLogits:
    """Return the logits in float32 or better, with -inf for tokens that must not be proposed."""
    token = torch.arange(row_logits.shape[1], device=row_logits.device)
    impossible = token == mask_id
    if no_eos is not None:
        impossible = impossible | (no_eos[:, None] & (token == eos_id))
    if allowed_row is not None and allowed_tokens is not None:
        # An embedding may have more rows than the tokenizer has tokens; the extra ones are never allowed.
        table = F.pad(allowed_tokens, (0, row_logits.shape[1] - allowed_tokens.shape[1]))
        impossible = impossible | ((allowed_row > 0)[:, None] & ~table[allowed_row])
    return row_logits.to(torch.promote_types(row_logits.dtype, torch.float32)).masked_fill(impossible, -torch.inf)


def _propose(
    logits: RowLogits,
    temperature: float,
    top_p: float,
    keys: Int[Tensor, "R"] | None,
    current: RowTokens | None,
) -> Proposal:
    if keys is None:
        tokens = logits.argmax(dim=1)
    else:
        tokens = draw_tokens(logits, temperature=temperature, top_p=top_p, streams=Streams(keys))
    logit = logits.gather(1, tokens[:, None])[:, 0]
    if current is not None:
        current_logit = logits.gather(1, current[:, None])[:, 0]  # -inf for the mask token
        tokens = current.where(current_logit >= logit, tokens)
        logit = torch.maximum(current_logit, logit)
    return Proposal(tokens, logit - logits.logsumexp(dim=1))


def draw_tokens(row_logits: RowLogits, *, temperature: float, top_p: float = 1.0, streams: Streams) -> RowTokens:
    """Draw from Categorical(softmax(logits / temperature)) with one uniform number per row, by inverting the CDF.

    A chunk of the vocabulary is drawn first, then a token in it. The sums are in float64: float32 loses rare
    tokens, which lowers the effective temperature (Zheng et al., 2024, arXiv:2409.02908, for Gumbel noise). No
    tensor of the size of the vocabulary is in float64.
    """
    if temperature < 0:
        raise ValueError(f"temperature {temperature} is below 0")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p is a probability above 0, not {top_p}")
    scaled = row_logits / temperature
    weights = (scaled - scaled.amax(dim=1, keepdim=True)).exp()
    if top_p < 1:
        weights = weights.where(nucleus(scaled, top_p), 0)
    chunks = F.pad(weights, (0, -weights.shape[1] % CHUNK)).unflatten(1, (-1, CHUNK))
    uniform = streams.uniform(dtype=torch.float64)
    chunk, within = _invert(chunks.sum(dim=2, dtype=torch.float64), uniform)
    chosen = chunks[torch.arange(len(chunks), device=chunk.device), chunk].double()
    token = chunk * CHUNK + _invert(chosen, within)[0]
    return token.clamp(max=row_logits.shape[1] - 1)  # outside only where logits are not finite


def _invert(
    weights: Float[Tensor, "R C"], uniform: Float[Tensor, "R"]
) -> tuple[Int[Tensor, "R"], Float[Tensor, "R"]]:
    """Invert the CDF at `uniform` in [0, 1): return the column, and the position in [0, 1) within that column."""
    cumulative = weights.cumsum(dim=1)
    goal = (uniform * cumulative[:, -1])[:, None]
    # Rounding may put the goal at the very end, where the next column with any weight would be out of range.
    goal = torch.minimum(goal, cumulative[:, -1:].nextafter(torch.zeros_like(goal)))
    # Stay in range for weights that are not finite too: a GPU kernel cannot raise, the caller checks later.
    column = (cumulative <= goal).sum(dim=1, keepdim=True).clamp(max=weights.shape[1] - 1)
    within = 1 - (cumulative.gather(1, column) - goal) / weights.gather(1, column)
    return column[:, 0], within[:, 0].clamp(0, 1)


def nucleus(row_logits: RowLogits, top_p: float) -> Bool[Tensor, "R V"]:
    """Return the smallest set of most probable tokens with total probability `top_p`; at least one token."""
    probs, order = row_logits.softmax(dim=1).sort(dim=1, descending=True, stable=True)
    more_probable = probs.cumsum(dim=1) - probs
    return torch.zeros_like(probs, dtype=torch.bool).scatter(1, order, more_probable < top_p)
