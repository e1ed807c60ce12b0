"""Reveal rules decide which proposed tokens are visible after a call. This module also handles the end of a text.

Pure tensor mathematics. The blocks and calls of a decoding are in `crocodil.processes.plan`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import Positions, ReadLength, TokenIds


class RevealStep(NamedTuple):
    """The input of a reveal rule."""

    log_prob: Float[Tensor, "B N"]  # of the proposed tokens; only valid where a token was proposed
    hidden: Positions  # open positions that were masked before this call
    open: Positions  # positions of the current block, without the given tokens
    calls_left: int | Int[Tensor, ""]  # in this block, this call included
    calls_per_block: int
    streams: Streams
    after_end: Positions | None = None  # hidden positions that only the last call has to fill
    curve: float = 1.0  # after a share s of the calls, a share s^curve of the tokens is visible (D75)

    def quota(self) -> Int[Tensor, "B"]:
        """Return how many tokens each sample reveals in this call: an even split, larger parts first.

        Equal to LLaDA's table (10 tokens in 4 calls: 3, 3, 2, 2), for any number of given tokens. With another
        `curve` than 1 the split is not even.
        """
        if self.curve == 1:
            return -(-self.num_due() // self.calls_left)
        calls_done = self.calls_per_block - self.calls_left
        hidden_before = 1 - (calls_done / self.calls_per_block) ** self.curve
        hidden_after = 1 - ((calls_done + 1) / self.calls_per_block) ** self.curve
        return (self.num_due() * (1 - hidden_after / hidden_before) - _ROUNDING).ceil().long()

    def num_due(self) -> Int[Tensor, "B"]:
        """Return how many hidden positions the remaining calls, this one included, have to fill evenly."""
        if self.after_end is None:
            return self.hidden.sum(dim=1)
        return (self.hidden & ~(self.after_end & (self.calls_left != 1))).sum(dim=1)

    def best(self, score: Float[Tensor, "B N"], count: Int[Tensor, "B"]) -> Positions:
        """Return the `count` hidden positions of highest score in each row; those behind the text come last."""
        if self.after_end is not None:
            score = score - _BEHIND * self.after_end
        return highest(score, among=self.hidden, count=count)


@runtime_checkable
class RevealRule(Protocol):
    """Decide which open positions show their token after a call (decision D8).

    A visible token stays visible, unless the rule masks tokens again. After the last call of a block every
    position is visible. A rule must be hashable, and two rules must be equal only if they do the same: use a
    frozen dataclass.
    """

    @property
    def reveals_quota(self) -> bool:
        """Whether every call leaves at least `RevealStep.quota` fewer hidden positions.

        The decode loop then knows an upper bound of the hidden positions before a call is made.
        """

    @property
    def may_finish_early(self) -> bool:
        """Whether a sample can be complete before the last call; the decode loop then skips the calls left."""

    def __call__(self, step: RevealStep) -> Positions:
        """Return the positions that are visible after the call, a subset of `step.open`."""


@dataclass(frozen=True)
class MostConfident:
    """Keep the proposals of highest probability (LLaDA's low-confidence remasking)."""

    reveals_quota: ClassVar[bool] = True
    may_finish_early: ClassVar[bool] = False

    def __call__(self, step: RevealStep) -> Positions:
        return _visible(step) | step.best(step.log_prob, step.quota())


@dataclass(frozen=True)
class AtRandom:
    """Keep proposals at random positions: the order that masked diffusion is trained on."""

    reveals_quota: ClassVar[bool] = True
    may_finish_early: ClassVar[bool] = False

    def __call__(self, step: RevealStep) -> Positions:
        score = step.streams.at("order").uniform(step.hidden.shape[1])
        return _visible(step) | step.best(score, step.quota())


@dataclass(frozen=True)
class NoisyConfidence:
    """Keep the most confident proposals after adding Gumbel noise to their log-probabilities (MaskGIT).

    `noise` = 0 is `MostConfident`; a large value approaches `AtRandom`.
    """

    noise: float = 1.0
    reveals_quota: ClassVar[bool] = True
    may_finish_early: ClassVar[bool] = False

    def __call__(self, step: RevealStep) -> Positions:
        return _visible(step) | step.best(_noisy(step, self.noise), step.quota())


@dataclass(frozen=True)
class AboveThreshold:
    """Keep every proposal with a probability above `threshold`, and at least the quota of the plan.

    Use it with a plan of one call per token: a sample that is complete earlier skips the remaining calls
    (Fast-dLLM, arXiv:2505.22618).
    """

    threshold: float = 0.9
    reveals_quota: ClassVar[bool] = True
    may_finish_early: ClassVar[bool] = True

    def __call__(self, step: RevealStep) -> Positions:
        confident = step.hidden & (step.log_prob.exp() > self.threshold)
        return _visible(step) | confident | step.best(step.log_prob, step.quota())


@dataclass(frozen=True)
class Remask:
    """Forward(x_0, t) as printed in the algorithms: keep all proposals, then mask each token with probability t.

    Visible tokens may be masked again. t falls to 0 at the last call of a block.
    """

    reveals_quota: ClassVar[bool] = False
    may_finish_early: ClassVar[bool] = False

    def __call__(self, step: RevealStep) -> Positions:
        time = (step.calls_left - 1) / step.calls_per_block
        return step.open & (step.streams.at("order").uniform(step.open.shape[1]) >= time)


@dataclass(frozen=True)
class RemaskByConfidence:
    """Mask a share t of the visible tokens at random; the most confident proposals replace them (decision D34).

    The number of visible tokens is that of `NoisyConfidence`, and so is the noise. Compare Wang et al., 2025,
    "Remasking discrete diffusion models" (arXiv:2503.00307).
    """

    noise: float = 1.0
    reveals_quota: ClassVar[bool] = True
    may_finish_early: ClassVar[bool] = False

    def __call__(self, step: RevealStep) -> Positions:
        visible, quota = _visible(step), step.quota()
        num_visible = visible.sum(dim=1)
        share = num_visible * (step.calls_left - 1) // step.calls_per_block
        remasked = torch.minimum(share, step.num_due() - quota)  # each needs a proposal to replace it
        order = step.streams.at("stay").uniform(visible.shape[1])
        kept = highest(order, among=visible, count=num_visible - remasked)
        return kept | step.best(_noisy(step, self.noise), quota + remasked)


@dataclass(frozen=True)
class Revise:
    """Keep the most confident of all tokens, new or visible before (decision D62).

    Tokens are proposed at visible positions too, and replace less probable tokens. This needs a demasker that was
    trained on its own proposals (`DemaskerObjective.draft_rate`). The noise falls to 0 at the last call.
    """

    noise: float = 1.0
    reveals_quota: ClassVar[bool] = True
    may_finish_early: ClassVar[bool] = False
    revises: ClassVar[bool] = True

    def __call__(self, step: RevealStep) -> Positions:
        score = _noisy(step, self.noise * (step.calls_left - 1) / step.calls_per_block)
        return highest(score, among=step.open, count=_visible(step).sum(dim=1) + step.quota())


def revises(rule: RevealRule) -> bool:
    """Return whether a rule needs proposals at visible positions too."""
    return getattr(rule, "revises", False)


_ROUNDING = 1e-3  # a share of the tokens that is an integer may come out as slightly more
_BEHIND = 1e6  # more than any difference of log-probabilities

RULES: dict[str, RevealRule] = {  # `crocodil.processes.plan` has the names alone
    "confidence": MostConfident(),
    "noisy-confidence": NoisyConfidence(),
    "random": AtRandom(),
    "remask": Remask(),
    "remask-confidence": RemaskByConfidence(),
    "revise": Revise(),
}


def highest(score: Float[Tensor, "B N"], *, among: Positions, count: Int[Tensor, "B"]) -> Bool[Tensor, "B N"]:
    """Return the `count` positions of each row with the highest scores in `among`; ties go to the left."""
    order = score.masked_fill(~among, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(score.shape[1], device=score.device).expand_as(order)
    is_high = torch.zeros_like(among).scatter(1, order, rank < count[:, None])
    return among & is_high


def neighbours_last(score: Float[Tensor, "B N"], *, among: Positions) -> Float[Tensor, "B N"]:
    """Return scores in which every position with a better direct neighbour ranks behind the others (D45).

    Only positions in `among` are compared. Neighbours depend on each other most, and tokens that are predicted in
    one call do not see each other.
    """
    score = score.double()
    rival = score.masked_fill(~among, -torch.inf)
    best_nearby = F.max_pool1d(rival[:, None], kernel_size=3, stride=1, padding=1)[:, 0]
    return score - _BEHIND * (among & (rival < best_nearby))


def _visible(step: RevealStep) -> Positions:
    return step.open & ~step.hidden


def _noisy(step: RevealStep, noise: float | Tensor) -> Float[Tensor, "B N"]:
    uniform = step.streams.at("order").uniform(step.hidden.shape[1], dtype=torch.float64)
    gumbel = -(-uniform.log()).log()
    return step.log_prob + noise * gumbel


# ---------------------------------------------------------------- corrector calls

CORRECTED_PART = 10  # a corrector call predicts one in ten tokens of a text again


def mask_again(
    tokens: TokenIds,
    complete: Bool[Tensor, "B"],
    open: Positions,
    score: Float[Tensor, "B N"],
    *,
    mask_id: int,
    eos_id: int | None,
) -> TokenIds:
    """Mask the tokens of highest score in complete samples; the next call, a corrector, predicts them again (D45).

    Only tokens up to the first EOS are masked. Compare ReMDM-loop (Wang et al., 2025, arXiv:2503.00307).
    """
    among = open & complete[:, None]
    if eos_id is not None:
        is_eos = open & (tokens == eos_id)
        among = among & (is_eos.cumsum(dim=1) - is_eos.long() == 0)
    count = -(-among.sum(dim=1) // CORRECTED_PART)
    return tokens.masked_fill(highest(score, among=among, count=count), mask_id)


# ---------------------------------------------------------------- EOS tokens


def hold_back_eos(log_prob: Float[Tensor, "B N"], *, is_eos: Positions, hidden: Positions) -> Float[Tensor, "B N"]:
    """Make a proposed EOS no more confident than the least confident hidden token before it.

    The canvas after a text is filled with EOS tokens, which are the easiest to predict (decision D18). By
    confidence alone they would be revealed first, and the length would be fixed before there is any text.
    """
    least_so_far = log_prob.masked_fill(~hidden, 0).cummin(dim=1).values  # no log-probability is above 0
    return log_prob.where(~is_eos, least_so_far)


def after_proposed_end(proposed: TokenIds, *, hidden: Positions, eos_id: int) -> Positions:
    """Return the hidden positions of the predicted end: from each to the end of the canvas, all tokens are EOS."""
    return hidden & (proposed == eos_id).flip(1).long().cummin(dim=1).values.flip(1).bool()


def read_lengths(proposed: TokenIds, *, eos_id: int, spare: int) -> ReadLength:
    """Return how many positions of each canvas to read: those before the predicted end and `spare` more (D87)."""
    position = torch.arange(1, proposed.shape[1] + 1, device=proposed.device)
    end = (position * (proposed != eos_id)).amax(dim=1)
    return (end + spare).clamp(1, proposed.shape[1])


def fill_after_eos(tokens: TokenIds, *, may_end: Positions, mask_id: int, eos_id: int) -> TokenIds:
    """Fill the masks after an EOS with EOS, in rows where everything before that EOS is visible.

    `may_end` excludes the given positions: BOS may have the same id as EOS.
    """
    masked = tokens == mask_id
    visible_so_far = masked.cumsum(dim=1) == 0
    ended = ((tokens == eos_id) & may_end & visible_so_far).cumsum(dim=1) > 0
    return tokens.masked_fill(masked & ended, eos_id)


def before_given_text(tokens: TokenIds, *, given: Positions, eos_id: int) -> Positions:
    """Return the positions with given text somewhere after them: an EOS there would cut it off."""
    is_text = given & (tokens != eos_id)
    return is_text.flip(1).cumsum(dim=1).flip(1) > 0
