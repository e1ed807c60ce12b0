"""Reveal rules: which proposed tokens stay visible after a call, and how a text ends.

Pure tensor mathematics. The blocks and calls of a decoding are in `crocodil.processes.plan`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import Positions, TokenIds


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
