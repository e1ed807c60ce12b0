"""One demasker call: propose a token at every hidden position, and keep those that the reveal rule chooses.

A call is a function of tensors, so that a GPU can record it as a graph (`DemaskerStep`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from crocodil.models.causal_head import Choose
from crocodil.models.llada import Embeddings
from crocodil.processes.categorical import Allowed, propose_tokens
from crocodil.processes.plan import DecodePlan
from crocodil.processes.reveal import (
    RULES,
    AboveThreshold,
    RevealRule,
    RevealStep,
    after_proposed_end,
    before_given_text,
    fill_after_eos,
    hold_back_eos,
    mask_again,
    neighbours_last,
    read_lengths,
    revises,
)
from crocodil.runtime.devices import check_finite
from crocodil.runtime.graphs import Play, eager
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import Cost
from crocodil.sampling.guidance import Demask, strengthened, with_head
from crocodil.sampling.state import Canvas, Revealed, State
from crocodil.seeding import Streams
from crocodil.shapes import (
    LogProbs,
    PositionIndices,
    Positions,
    ReadLength,
    RegisterBank,
    RowLogits,
    RowTokens,
    TokenIds,
)

IN_TURN_QUOTAS = 4  # a call draws at most this many times its share of the tokens in turn (D88)

Reveal: TypeAlias = Callable[..., Revealed]
# (canvas, its positions to fill from left to right, how to choose a token) -> the canvas with tokens there
DrawInTurn: TypeAlias = Callable[[TokenIds, PositionIndices, Choose], TokenIds]


def reveal_rule(decoding: Decoding) -> RevealRule:
    """Return the reveal rule of a config, which holds its name or the rule itself."""
    if decoding.threshold is not None:
        return AboveThreshold(decoding.threshold)
    return RULES[decoding.rule] if isinstance(decoding.rule, str) else decoding.rule


def may_end_early(decoding: Decoding) -> bool:
    """Whether texts can be complete before the last call. A rule that revises may use the calls left."""
    return decoding.pace == "text" and not revises(reveal_rule(decoding))


@dataclass(frozen=True)
class RevealConfig:
    """The settings that are the same for all calls of a decoding."""

    decoding: Decoding
    rule: RevealRule
    mask_id: int
    eos_id: int | None
    block_size: int
    calls_per_block: int
    corrector_calls: int = 0  # how many of them correct the text

    @classmethod
    def of(cls, canvas: Canvas, decoding: Decoding, plan: DecodePlan) -> "RevealConfig":
        calls = plan.calls_per_block
        rule, num_correctors = reveal_rule(decoding), decoding.corrector_calls(calls)
        return cls(decoding, rule, canvas.mask_id, canvas.eos_id, plan.block_size, calls, num_correctors)

    @property
    def most_in_turn(self) -> int:
        """How many tokens a call draws in turn at most; those further right stay as proposed."""
        if self.decoding.in_turn == "all":
            return self.block_size
        share = -(-self.block_size // (self.calls_per_block - self.corrector_calls))
        return min(self.block_size, IN_TURN_QUOTAS * share)

    @property
    def ends_early(self) -> bool:
        """Whether a text is complete once all that is hidden is predicted to be behind it (D46)."""
        return self.eos_id is not None and may_end_early(self.decoding)

    @property
    def crops(self) -> bool:
        """Whether calls leave out the canvas behind the predicted end."""
        return self.decoding.crop is not None and self.eos_id is not None

    def read_next(self, proposed: TokenIds) -> ReadLength | None:
        """Return how much of each canvas the next call reads; None: all of it."""
        if self.decoding.crop is None or self.eos_id is None:
            return None
        return read_lengths(proposed, eos_id=self.eos_id, spare=self.decoding.crop)


@dataclass(frozen=True)
class DemaskerStep:
    """One demasker call and its reveal step, as a function of tensors that a GPU can record as a graph."""

    demask: Demask
    config: RevealConfig
    reveal: Reveal
    num_rows: int

    def inputs(self, state: State, bounds: Int[Tensor, "4"]) -> tuple[Tensor | None, ...]:
        allowed = state.allowed or (None, None)
        read_length = state.read_length if self.config.crops else None
        return (state.tokens, state.given, state.registers, state.streams.keys, bounds, *allowed, read_length)

    def __call__(
        self,
        tokens: TokenIds,
        given: Positions,
        registers: RegisterBank | None,
        keys: Int[Tensor, "B"],
        bounds: Int[Tensor, "4"],
        allowed_row: TokenIds | None,
        allowed_tokens: Tensor | None,
        read_length: ReadLength | None,
    ) -> Revealed:
        proposed_at = _proposed_at(self.config.rule, bounds, tokens, given, self.config.mask_id)
        if read_length is not None:
            proposed_at = proposed_at & _is_read(tokens, read_length)
        positions = _positions(proposed_at, self.num_rows)
        rows = positions.clamp(max=tokens.shape[1] - 1)
        allowed = None if allowed_row is None or allowed_tokens is None else Allowed(allowed_row, allowed_tokens)
        canvas = (positions, tokens, given, keys, bounds, allowed, read_length)
        if self.config.decoding.in_turn == "no":
            return self.reveal(self.config, self._logits(tokens, registers, rows, read_length), *canvas)
        # Its loop over tokens would be unrolled by a compiler, so this reveal step is never compiled.
        demask, states = with_head(self.demask), self._states(tokens, registers, read_length)
        return reveal(self.config, demask.logits(states, rows), *canvas, partial(demask.draw, states))

    @property
    def cost(self) -> Cost:
        decoding = self.config.decoding
        return Cost(demasker_calls=decoding.calls_per_step, head_calls=int(decoding.in_turn != "no"))

    def _logits(
        self,
        tokens: TokenIds,
        registers: RegisterBank | None,
        positions: PositionIndices,
        read_length: ReadLength | None,
    ) -> RowLogits:
        demask = strengthened(self.demask, self.config.decoding.guidance)
        if read_length is None:
            return demask(tokens, registers, positions)
        if tokens.device.type != "cpu":
            return demask(tokens, registers, positions, read_length)
        # On a CPU each sample is read alone: in a batch, all would be as long as the longest.
        samples = zip(*_alone(tokens, registers, read_length), positions.split(1), strict=True)
        return torch.cat([demask(one, bank, rows, end) for one, bank, end, rows in samples])

    def _states(
        self, tokens: TokenIds, registers: RegisterBank | None, read_length: ReadLength | None
    ) -> Embeddings:
        """Return the demasker's states; where the canvas is not read, they are 0."""
        demask = with_head(self.demask)
        if read_length is None or tokens.device.type != "cpu":
            return demask.states(tokens, registers, read_length)
        samples = zip(*_alone(tokens, registers, read_length), strict=True)
        states = [demask.states(*sample)[0] for sample in samples]
        return torch.stack([F.pad(one, (0, 0, 0, tokens.shape[1] - len(one))) for one in states])


def _alone(
    tokens: TokenIds, registers: RegisterBank | None, read_length: ReadLength
) -> tuple[Sequence[Tensor], Sequence[Tensor | None], Sequence[Tensor]]:
    """Return the canvas, the registers and the length to read of each sample alone."""
    banks = [None] * len(tokens) if registers is None else registers.split(1)
    return tokens.split(1), banks, read_length.split(1)


def _is_read(tokens: TokenIds, read_length: ReadLength) -> Positions:
    return torch.arange(tokens.shape[1], device=tokens.device) < read_length[:, None]


def _positions(chosen: Positions, count: int) -> PositionIndices:
    """Return the first `count` chosen positions from left to right, padded with a position outside of the canvas.

    On a CPU, they are padded only to the largest number of any sample.
    """
    num_samples, length = chosen.shape
    if chosen.device.type == "cpu":
        count = min(count, int(chosen.sum(dim=1).max()))
    rank = (chosen.cumsum(dim=1) - 1).clamp(max=count).where(chosen, count)  # all others go to an extra column
    index = torch.arange(length, device=chosen.device).expand_as(chosen)
    outside = torch.full((num_samples, count + 1), length, device=chosen.device)
    return outside.scatter(1, rank, index)[:, :count]


def reveal(
    config: RevealConfig,
    row_logits: RowLogits,
    positions: PositionIndices,
    tokens: TokenIds,
    given: Positions,
    keys: Int[Tensor, "B"],
    bounds: Int[Tensor, "4"],
    allowed: Allowed | None = None,
    read_length: ReadLength | None = None,
    draw_in_turn: DrawInTurn | None = None,
) -> Revealed:
    """Propose a token at every hidden position and keep those that the rule chooses.

    `positions` holds all hidden positions of a sample, and the other open ones if the rule revises; positions
    outside of the canvas are padding. Where the demasker did not read the canvas, EOS is proposed. With
    `draw_in_turn`, tokens are drawn again where they are kept: from left to right, each given those before it.
    """
    index, _, _, calls_left = bounds.unbind()
    streams = Streams(keys).at("call", index.expand(len(keys)))
    hidden = hidden_in_block(bounds, tokens, config.mask_id)
    was_hidden = hidden.any(dim=1)  # samples whose block is complete do not change
    is_open = in_block(bounds, tokens) & ~given & was_hidden[:, None]
    proposal = _propose(config, row_logits, positions, tokens, given, streams, allowed)
    proposed = tokens
    if read_length is not None and config.eos_id is not None:
        proposed = tokens.masked_fill(hidden & ~_is_read(tokens, read_length), config.eos_id)
    proposed = _put(proposed, positions, proposal.tokens)
    log_prob = _put(torch.zeros(tokens.shape, device=tokens.device), positions, proposal.log_prob)
    step = _reveal_step(config, proposed, log_prob, hidden, is_open, calls_left, streams)
    kept = is_open & config.rule(step)
    if config.ends_early:
        kept = kept | (is_open & (step.num_due() == 0)[:, None])
    if draw_in_turn is not None:

        def choose(logits: RowLogits, index: Int[Tensor, "B"]) -> RowTokens:
            own = streams.at("in turn")  # numbers of its own: the rule has chosen positions by those of proposals
            proposed = _propose(config, logits, index[:, None], tokens, given, own, allowed, may_end=False)
            return proposed.tokens[:, 0]

        is_new = kept if config.decoding.in_turn == "all" else kept & (hidden | (proposed != tokens))
        proposed = _drawn_in_turn(config, draw_in_turn, proposed, is_new, is_open & ~kept, choose)
    revealed = proposed.masked_fill(is_open & ~kept, config.mask_id)
    if config.eos_id is not None:
        revealed = fill_after_eos(revealed, may_end=~given, mask_id=config.mask_id, eos_id=config.eos_id)
    if config.corrector_calls:
        complete = ~hidden_in_block(bounds, revealed, config.mask_id).any(dim=1) & (calls_left > 1)
        doubt = _doubt(config, log_prob, is_open, streams)
        revealed = mask_again(revealed, complete, is_open, doubt, mask_id=config.mask_id, eos_id=config.eos_id)
    return Revealed(revealed, was_hidden, log_prob.isfinite().all(), log_prob, config.read_next(proposed))


def _reveal_step(
    config: RevealConfig,
    proposed: TokenIds,
    log_prob: LogProbs,
    hidden: Positions,
    is_open: Positions,
    calls_left: Int[Tensor, ""],
    streams: Streams,
) -> RevealStep:
    """Return what the reveal rule chooses from. Calls that correct the text are not calls to fill it."""
    decoding, after_end = config.decoding, None
    if config.eos_id is not None and decoding.eos_last:
        log_prob = hold_back_eos(log_prob, is_eos=hidden & (proposed == config.eos_id), hidden=hidden)
    if config.eos_id is not None and decoding.pace == "text":
        after_end = after_proposed_end(proposed, hidden=hidden, eos_id=config.eos_id)
    left_to_fill = (calls_left - config.corrector_calls).clamp(min=1)
    calls_to_fill = config.calls_per_block - config.corrector_calls
    return RevealStep(
        log_prob,
        hidden,
        is_open,
        left_to_fill,
        calls_to_fill,
        streams,
        after_end,
        decoding.curve,
    )


def _drawn_in_turn(
    config: RevealConfig,
    draw: DrawInTurn,
    proposed: TokenIds,
    is_new: Positions,
    stays_hidden: Positions,
    choose: Choose,
) -> TokenIds:
    """Draw the new tokens again: from left to right, each given those before it."""
    if config.eos_id is not None:
        is_new = is_new & (proposed != config.eos_id)  # the demasker decides where a text ends
    at = _positions(is_new, config.most_in_turn)
    drawn = draw(proposed.masked_fill(is_new | stays_hidden, config.mask_id), at, choose)
    return proposed.where(drawn == config.mask_id, drawn)


def _doubt(config: RevealConfig, log_prob: LogProbs, is_open: Positions, streams: Streams) -> LogProbs:
    """Return how doubtful each token of a complete text is: a rule that revises knows how probable it is."""
    if revises(config.rule):
        return neighbours_last(-log_prob, among=is_open)
    return streams.at("corrector").uniform(is_open.shape[1])


def _put(canvas: Tensor, positions: PositionIndices, values: Tensor) -> Tensor:
    """Write values at their positions; positions outside of the canvas are ignored."""
    return F.pad(canvas, (0, 1)).scatter(1, positions, values)[:, :-1]


class _Proposals(NamedTuple):
    tokens: Int[Tensor, "B P"]
    log_prob: Float[Tensor, "B P"]


def _propose(
    config: RevealConfig,
    row_logits: RowLogits,
    positions: PositionIndices,
    tokens: TokenIds,
    given: Positions,
    streams: Streams,
    allowed: Allowed | None,
    *,
    may_end: bool = True,
) -> _Proposals:
    """Draw a token at each position from its own stream. No EOS is proposed where it would cut off given text.

    Unless the text `may_end`, no EOS is proposed at all.
    """
    no_eos = allowed_row = None
    if config.eos_id is not None:
        text = given if allowed is None else given | allowed.restricted()  # restricted positions hold given text
        text_follows = F.pad(before_given_text(tokens, given=text, eos_id=config.eos_id), (0, 1))
        no_eos = text_follows.gather(1, positions).flatten() | (not may_end)
    if allowed is not None:
        allowed_row = F.pad(allowed.row, (0, 1)).gather(1, positions).flatten()
    current = None
    if revises(config.rule):
        current = F.pad(tokens, (0, 1), value=config.mask_id).gather(1, positions).flatten()
    sample = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(positions).flatten()
    proposed, log_prob = propose_tokens(
        row_logits,
        mask_id=config.mask_id,
        eos_id=config.eos_id,
        no_eos=no_eos,
        allowed_row=allowed_row,
        allowed_tokens=None if allowed is None else allowed.tokens,
        current=current,
        temperature=config.decoding.temperature,
        top_p=config.decoding.top_p,
        streams=streams.at("token")[sample].at(positions.flatten()),
    )
    return _Proposals(proposed.view(positions.shape), log_prob.float().view(positions.shape))


# ---------------------------------------------------------------- where


def hidden_in_block(bounds: Int[Tensor, "4"], tokens: TokenIds, mask_id: int) -> Positions:
    return in_block(bounds, tokens) & (tokens == mask_id)


def in_block(bounds: Int[Tensor, "4"], tokens: TokenIds) -> Positions:
    position = torch.arange(tokens.shape[1], device=tokens.device)
    return ((position >= bounds[1]) & (position < bounds[2])).expand_as(tokens)


def _proposed_at(
    rule: RevealRule, bounds: Int[Tensor, "4"], tokens: TokenIds, given: Positions, mask_id: int
) -> Positions:
    """Return where tokens are proposed: hidden positions or, to revise, all open ones of unfinished samples."""
    hidden = hidden_in_block(bounds, tokens, mask_id)
    return in_block(bounds, tokens) & ~given & hidden.any(dim=1, keepdim=True) if revises(rule) else hidden


@dataclass(frozen=True)
class Engine:
    """How a step is executed: directly, compiled, or as a CUDA graph. The result is the same."""

    play: Play = eager
    reveal: Reveal = reveal  # or the same, compiled


PLAIN = Engine()


@torch.no_grad()
def settle(demask: Demask, canvas: Canvas, decoding: Decoding, *, streams: Streams) -> tuple[Canvas, Cost]:
    """Fill the restricted positions (healed tokens) with one call without registers, before all other tokens.

    Tokens that are revealed in one call do not see each other. If the last token of a prompt were still masked,
    the text after it and the drawn registers might continue a different word.
    """
    assert canvas.allowed is not None
    restricted = canvas.restricted() & canvas.masked()
    positions = _positions(restricted, int(restricted.sum(dim=1).max()))
    row_logits = demask(canvas.tokens, None, positions.clamp(max=canvas.length - 1))
    config = RevealConfig(
        decoding, reveal_rule(decoding), canvas.mask_id, canvas.eos_id, block_size=canvas.length, calls_per_block=1
    )
    given = ~canvas.masked()
    proposal = _propose(config, row_logits, positions, canvas.tokens, given, streams.at("settle"), canvas.allowed)
    check_finite(proposal.log_prob, "the demasker's logits")
    tokens = _put(canvas.tokens, positions, proposal.tokens)
    return Canvas(tokens, canvas.mask_id, canvas.eos_id, canvas.allowed), Cost(demasker_calls=1)
