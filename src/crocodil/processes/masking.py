"""Masked diffusion: hiding tokens, the loss weight, and the order in which tokens are revealed (Sec. 3).

Pure tensor mathematics. Knows neither networks nor registers: a demasker enters as the logits it gave.
Throughout, `mask_prob` is the paper's 1 - alpha_t: 0 is clean, 1 is all hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import PerSample, Positions, RowLogits, RowTokens, TokenIds

SMALLEST_MASK_PROB = 1e-3  # LLaDA's epsilon: keeps the loss weight finite
LOGITS_AT_ONCE = 1 << 28  # how many are worked on in float32 at a time: 1 GiB
STRETCH = 256  # tokens of the vocabulary that are drawn together first


class Masked(NamedTuple):
    noisy_tokens: TokenIds
    hidden: Positions


# ---------------------------------------------------------------- training


def mask_prob_at(time: PerSample) -> PerSample:
    """LLaDA's linear schedule: 1 - alpha_t = (1 - eps) t + eps (decision D1)."""
    return (1 - SMALLEST_MASK_PROB) * time + SMALLEST_MASK_PROB


def mask_tokens(
    tokens: TokenIds,
    mask_prob: PerSample,
    *,
    mask_id: int,
    streams: Streams,
    given: Positions | None = None,
) -> Masked:
    """Sample x_t ~ q(x_t | x_0), Eqs. 1-2: hide each token on its own with probability `mask_prob`.

    What is `given` is never hidden: a prompt is a sequence that is partly seen (decision D24).
    """
    hidden = streams.uniform(tokens.shape[1]) < mask_prob[:, None]
    if given is not None:
        hidden = hidden & ~given
    return Masked(tokens.masked_fill(hidden, mask_id), hidden)


def bare_canvas(tokens: TokenIds, *, mask_id: int) -> Masked:
    """What generation starts from: the beginning that all samples share, and nothing behind it; one row."""
    hidden = torch.arange(tokens.shape[1], device=tokens.device)[None] > 0
    return Masked(tokens[:1].masked_fill(hidden, mask_id), hidden)


def sample_given(num_tokens: int, rate: float, *, streams: Streams) -> Positions:
    """What is given of each sample: nothing, or at `rate` a prefix, a suffix, or both (decision D24).

    Where both ends are given, what is left is an infilling. Ends are uniform over all places.
    """
    first, last = (streams.at(end).uniform() * num_tokens for end in ("first", "last"))
    start, stop = torch.minimum(first, last)[:, None], torch.maximum(first, last)[:, None]
    index = torch.arange(num_tokens, device=start.device)
    before, after = index < start, index >= stop
    kind = streams.at("kind").integers(0, 2)[:, None]
    chosen = torch.where(kind == 0, before, torch.where(kind == 1, after, before | after))
    return chosen & (streams.at("given").uniform()[:, None] < rate)


def stratified_times(places: Int[Tensor, "B"], *, batch_size: int, shift: float) -> PerSample:
    """Times that cover [0, 1] evenly within a batch: the sample at each place has a slice of its own.

    With a `shift` that is uniform from batch to batch, each time is uniform, and the loss of a batch varies less
    (Kingma et al., 2021, "Variational diffusion models").
    """
    return ((places / batch_size + shift) % 1).float()


def reverse_step(
    noisy_tokens: TokenIds,
    clean: TokenIds,
    *,
    mask_prob: PerSample,
    next_mask_prob: PerSample,
    mask_id: int,
    streams: Streams,
) -> TokenIds:
    """Sample x_s ~ q(x_s | x_t, x_0), Eq. 3; with a predicted `clean` sequence it is Eq. 4.

    Visible tokens stay; a hidden one shows with probability (alpha_s - alpha_t) / (1 - alpha_t).
    """
    reveal_prob = 1 - next_mask_prob / mask_prob
    shown = streams.uniform(noisy_tokens.shape[1]) < reveal_prob[:, None]
    return torch.where((noisy_tokens == mask_id) & shown, clean, noisy_tokens)


def demasking_loss(
    row_logits: RowLogits, tokens: TokenIds, hidden: Positions, mask_prob: PerSample
) -> Float[Tensor, ""]:
    """Eq. 5: cross-entropy at the hidden positions, weighted by 1 / mask_prob (decision D1).

    `row_logits` are the demasker's at `hidden`, in the order of `tokens[hidden]`.
    """
    losses = F.cross_entropy(row_logits.float(), tokens[hidden], reduction="none")
    weights = (1 / mask_prob)[:, None].expand_as(tokens)[hidden]
    return (weights * losses).sum() / tokens.numel()


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


def _gumbel(streams: Streams, count: int) -> Float[Tensor, "B {count}"]:
    return -(-streams.uniform(count, dtype=torch.float64).log()).log()


# ---------------------------------------------------------------- which proposals are kept


class RevealStep(NamedTuple):
    """What a reveal rule may look at."""

    log_prob: Float[Tensor, "B N"]  # of the proposed tokens; read at hidden positions only
    hidden: Positions  # open positions that were masked before this call
    open: Positions  # positions of the open block, less the given tokens
    calls_left: int | Int[Tensor, ""]  # in this block, this call included
    calls_per_block: int
    streams: Streams

    def quota(self) -> Int[Tensor, "B"]:
        """How many tokens each sample reveals now: an even split, the larger parts first.

        Equal to LLaDA's table (10 tokens in 4 calls: 3, 3, 2, 2), and right for any number of given tokens.
        """
        return -(-self.hidden.sum(dim=1) // self.calls_left)


# Decides, of the open positions, which show their token after a call (decision D8). A token once shown
# stays, except where a rule's name says "remask". After a block's last call every position shows.
RevealRule: TypeAlias = Callable[[RevealStep], Positions]


@dataclass(frozen=True)
class MostConfident:
    """Keep the proposals of highest probability (LLaDA's low-confidence remasking)."""

    def __call__(self, step: RevealStep) -> Positions:
        return _shown(step) | highest(step.log_prob, among=step.hidden, count=step.quota())


@dataclass(frozen=True)
class AtRandom:
    """Keep proposals at random places: the order under which masked diffusion was trained."""

    def __call__(self, step: RevealStep) -> Positions:
        score = step.streams.at("order").uniform(step.hidden.shape[1])
        return _shown(step) | highest(score, among=step.hidden, count=step.quota())


@dataclass(frozen=True)
class NoisyConfidence:
    """Keep the most confident after adding Gumbel noise to log-probabilities (MaskGIT's choice).

    `noise` = 0 is `MostConfident`; a large one is `AtRandom`.
    """

    noise: float = 1.0

    def __call__(self, step: RevealStep) -> Positions:
        return _shown(step) | highest(_noisy(step, self.noise), among=step.hidden, count=step.quota())


@dataclass(frozen=True)
class AboveThreshold:
    """Keep every proposal more probable than `threshold`, and never fewer than the plan's share.

    A plan with one call a token is then the slowest case (Fast-dLLM, arXiv:2505.22618): calls for which
    nothing is left to reveal are not made.
    """

    threshold: float = 0.9

    def __call__(self, step: RevealStep) -> Positions:
        confident = step.hidden & (step.log_prob.exp() > self.threshold)
        return _shown(step) | confident | highest(step.log_prob, among=step.hidden, count=step.quota())


@dataclass(frozen=True)
class Remask:
    """Forward(x_0, t) as the algorithms are printed: keep all, then hide each token with probability t.

    Tokens that were visible may be hidden again; t falls to 0 at a block's last call.
    """

    def __call__(self, step: RevealStep) -> Positions:
        time = (step.calls_left - 1) / step.calls_per_block
        return step.open & (step.streams.at("order").uniform(step.open.shape[1]) >= time)


@dataclass(frozen=True)
class RemaskByConfidence:
    """Hide a share t of what is shown, at random; the most confident proposals take its place (decision D34).

    As many show after a call as under `NoisyConfidence`, whose noise this is. Wang et al., 2025,
    "Remasking discrete diffusion models" (arXiv:2503.00307), also hide again while they reveal.
    """

    noise: float = 1.0

    def __call__(self, step: RevealStep) -> Positions:
        shown, quota = _shown(step), step.quota()
        num_shown = shown.sum(dim=1)
        share = num_shown * (step.calls_left - 1) // step.calls_per_block
        again = torch.minimum(share, step.hidden.sum(dim=1) - quota)  # each has a proposal to take its place
        order = step.streams.at("stay").uniform(shown.shape[1])
        staying = highest(order, among=shown, count=num_shown - again)
        return staying | highest(_noisy(step, self.noise), among=step.hidden, count=quota + again)


RULES: dict[str, RevealRule] = {  # by the names of `crocodil.processes.plan.RuleName`
    "most confident": MostConfident(),
    "noisy confidence": NoisyConfidence(),
    "at random": AtRandom(),
    "remask": Remask(),
    "remask by confidence": RemaskByConfidence(),
}


def highest(score: Float[Tensor, "B N"], *, among: Positions, count: Int[Tensor, "B"]) -> Bool[Tensor, "B N"]:
    """The `count` positions of highest score in each row, `among` these; the left one wins a tie."""
    order = score.masked_fill(~among, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(score.shape[1], device=score.device).expand_as(order)
    is_high = torch.zeros_like(among).scatter(1, order, rank < count[:, None])
    return among & is_high


def _shown(step: RevealStep) -> Positions:
    return step.open & ~step.hidden


def _noisy(step: RevealStep, noise: float) -> Float[Tensor, "B N"]:
    return step.log_prob + noise * _gumbel(step.streams.at("order"), step.hidden.shape[1])


# ---------------------------------------------------------------- the end of a text


def hold_back_ends(log_prob: Float[Tensor, "B N"], *, ends: Positions, hidden: Positions) -> Float[Tensor, "B N"]:
    """A proposed end is no more confident than the least confident token still hidden before it.

    The filling behind a text is all end tokens, of which a demasker is surest (decision D18). By confidence alone
    they would be revealed first, and the length would be decided before there is any text.
    """
    least_so_far = log_prob.masked_fill(~hidden, 0).cummin(dim=1).values  # no log-probability is above 0
    return log_prob.where(~ends, least_so_far)


def fill_behind_end(tokens: TokenIds, *, may_end: Positions, mask_id: int, eos_id: int) -> TokenIds:
    """Finish the rows that show an end, and everything before it: what is masked behind it is filling.

    `may_end` are the positions that were not given: a beginning may share the end's id.
    """
    masked = tokens == mask_id
    shown_until_here = masked.cumsum(dim=1) == 0
    ended = ((tokens == eos_id) & may_end & shown_until_here).cumsum(dim=1) > 0
    return tokens.masked_fill(masked & ended, eos_id)


def before_given_text(tokens: TokenIds, *, given: Positions, eos_id: int) -> Positions:
    """Positions with given text somewhere behind them: an end there would cut it off."""
    is_text = given & (tokens != eos_id)
    return is_text.flip(1).cumsum(dim=1).flip(1) > 0
