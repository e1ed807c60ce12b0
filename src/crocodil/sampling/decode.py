"""The decode loop: a canvas with masks becomes one without, a few tokens a call.

One loop serves the base sampler and Algorithms 2, 3 and 6. It knows plans, reveal rules and given tokens, and that
registers may guide a call and be renewed before one. It does not know where registers come from (an encoder, a
prior), nor which network demasks: that is a function, see `crocodil.sampling.guidance`. It returns what
happened, the raw number of calls included; `Cost` turns these into the paper's NFE.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.processes.categorical import Allowed, propose_tokens
from crocodil.processes.plan import DecodePlan
from crocodil.processes.reveal import (
    AboveThreshold,
    MostConfident,
    Remask,
    RevealRule,
    RevealStep,
    before_given_text,
    fill_behind_end,
    hold_back_ends,
)
from crocodil.runtime.config import Guidance, Temperature, TokenId, TopP, config
from crocodil.runtime.devices import check_all, check_finite
from crocodil.sampling.batch import Batch
from crocodil.sampling.cost import NO_COST, Cost, Ledger
from crocodil.sampling.guidance import Demask, strengthened
from crocodil.seeding import Streams
from crocodil.shapes import Places, Positions, RegisterBank, RowLogits, TokenIds

ROW_COUNTS = 8  # with how many numbers of rows calls are made as hidden positions get fewer


class Draw(NamedTuple):
    """Registers, and what it cost to find them."""

    registers: RegisterBank
    cost: Cost

    def first(self, count: int | None) -> "Draw":
        """The first so many registers: they are nested, coarse to fine."""
        return Draw(self.registers[:, :count], self.cost)


Refresh: TypeAlias = Callable[[TokenIds, Streams], Draw]  # registers again, given the visible tokens
OnCall: TypeAlias = Callable[[TokenIds, int, Cost], None]  # the canvas after a call, its index, the cost so far


@config
class Decoding:
    """How tokens are found: in which blocks and calls, which are kept, and how boldly they are drawn."""

    plan: DecodePlan
    mask_id: TokenId
    rule: RevealRule = field(default_factory=MostConfident)
    temperature: Temperature = 0.0
    top_p: TopP = 1.0  # tokens are drawn among the most probable that have this much of the probability
    guidance: Guidance = 1.0  # how strongly registers guide; all but 1 double the demasker's calls
    eos_id: TokenId | None = None  # behind it the canvas is filled; None: the end is a token like any other
    eos_last: bool = True  # no end is revealed before what stands in front of it

    @property
    def calls_each_time(self) -> int:
        return 1 if self.guidance == 1 else 2


class Samples(NamedTuple):
    tokens: TokenIds
    cost: Cost  # of the batch
    costs: list[Cost]  # of each sample until it was finished: what it would have cost alone
    registers: RegisterBank | None  # those in use at the end


def empty_canvas(num_samples: int, decoding: Decoding, device: str | torch.device = "cpu") -> TokenIds:
    """Nothing given: every position masked."""
    return torch.full((num_samples, decoding.plan.length), decoding.mask_id, device=device)


class Revealed(NamedTuple):
    """A canvas after a call."""

    tokens: TokenIds
    concerned: Bool[Tensor, "B"]  # samples that had hidden tokens
    is_finite: Bool[Tensor, ""]  # whether the logits were


Reveal: TypeAlias = Callable[..., Revealed]

# How a step over tensors is carried out: `play(step, key, inputs)`. Steps of one key do the same to their inputs;
# a device may record the first and replay it for the others (see `crocodil.runtime.graphs`).
Play: TypeAlias = Callable[[Callable[..., Any], Hashable, Sequence[Tensor | None]], Any]


def as_it_is(step: Callable[..., Any], key: Hashable, inputs: Sequence[Tensor | None]) -> Any:
    """The step itself, at once."""
    return step(*inputs)


def rows_by_call(planned: TokenIds, decoding: Decoding) -> list[int]:
    """How many positions of a sample can still be hidden at each call, rounded up to an eighth of a block."""
    plan = decoding.plan
    masked = (planned == decoding.mask_id).unflatten(1, (plan.num_blocks, plan.block_size))
    most_hidden = masked.sum(dim=2).amax(dim=0).tolist()
    unit = -(-plan.block_size // ROW_COUNTS)
    found = []
    for hidden in most_hidden:
        for calls_left in range(plan.calls_per_block, 0, -1):
            found.append(min(-(-hidden // unit) * unit, plan.block_size))
            if not isinstance(decoding.rule, Remask):  # after a call of any other, a quota more are shown
                hidden -= -(-hidden // calls_left)
    return found


def _make_call(
    demask: Demask,
    decoding: Decoding,
    reveal: Reveal,
    num_rows: int,
    tokens: TokenIds,
    given: Positions,
    registers: RegisterBank | None,
    keys: Int[Tensor, "B"],
    where: Int[Tensor, "4"],
    allowed_row: TokenIds | None,
    allowed_tokens: Bool[Tensor, "A W"] | None,
) -> Revealed:
    """One call of the demasker, and what it reveals.

    `where` is the call as numbers: its index, its block's start and end on the canvas, and the calls left.
    """
    places = _places(_hidden(where, tokens, decoding), num_rows)
    last = tokens.shape[1] - 1
    row_logits = strengthened(demask, decoding.guidance)(tokens, registers, places.clamp(max=last))
    allowed = None if allowed_row is None or allowed_tokens is None else Allowed(allowed_row, allowed_tokens)
    return reveal(decoding, row_logits, places, tokens, given, keys, where, allowed)


def _places(hidden: Positions, count: int) -> Places:
    """Where something is hidden, left to right; behind them, up to `count`, a place outside of the canvas."""
    num_samples, length = hidden.shape
    rank = (hidden.cumsum(dim=1) - 1).where(hidden, count)  # all that is visible goes to one more place
    index = torch.arange(length, device=hidden.device).expand_as(hidden)
    outside = torch.full((num_samples, count + 1), length, device=hidden.device)
    return outside.scatter(1, rank, index)[:, :count]


def reveal(
    decoding: Decoding,
    row_logits: RowLogits,
    places: Places,
    tokens: TokenIds,
    given: Positions,
    keys: Int[Tensor, "B"],
    where: Int[Tensor, "4"],
    allowed: Allowed | None = None,
) -> Revealed:
    """Return the canvas with some of the proposals on it.

    All that is hidden of a sample is among its `places`; others lie outside of the canvas.
    """
    index, _, _, calls_left = where.unbind()
    streams = Streams(keys).at("call", index.expand(len(keys)))
    hidden = _hidden(where, tokens, decoding)
    proposal = _propose(decoding, row_logits, places, tokens, given, streams, allowed)
    proposed = _put(tokens, places, proposal.tokens)
    confidence = _put(torch.zeros(tokens.shape, device=tokens.device), places, proposal.log_prob)
    is_finite = confidence.isfinite().all()
    if decoding.eos_id is not None and decoding.eos_last:
        confidence = hold_back_ends(confidence, ends=hidden & (proposed == decoding.eos_id), hidden=hidden)
    concerned = hidden.any(dim=1)  # who has filled this block is left alone
    is_open = _within(where, tokens) & ~given & concerned[:, None]
    step = RevealStep(confidence, hidden, is_open, calls_left, decoding.plan.calls_per_block, streams)
    tokens = proposed.masked_fill(is_open & ~decoding.rule(step), decoding.mask_id)
    if decoding.eos_id is not None:
        tokens = fill_behind_end(tokens, may_end=~given, mask_id=decoding.mask_id, eos_id=decoding.eos_id)
    return Revealed(tokens, concerned, is_finite)


def _put(canvas: Tensor, places: Places, values: Tensor) -> Tensor:
    """Values at their places; what lies outside of the canvas is lost."""
    return F.pad(canvas, (0, 1)).scatter(1, places, values)[:, :-1]


class _Proposals(NamedTuple):
    tokens: Int[Tensor, "B P"]
    log_prob: Float[Tensor, "B P"]


def _propose(
    decoding: Decoding,
    row_logits: RowLogits,
    places: Places,
    tokens: TokenIds,
    given: Positions,
    streams: Streams,
    allowed: Allowed | None,
) -> _Proposals:
    """Every position draws from a stream of its own; no end that would cut off given text is proposed."""
    no_end = allowed_row = None
    if decoding.eos_id is not None:
        text = given if allowed is None else given | allowed.restricted()  # part of it is given there
        text_follows = F.pad(before_given_text(tokens, given=text, eos_id=decoding.eos_id), (0, 1))
        no_end = text_follows.gather(1, places).flatten()
    if allowed is not None:
        allowed_row = F.pad(allowed.row, (0, 1)).gather(1, places).flatten()
    sample = torch.arange(len(tokens), device=tokens.device)[:, None].expand_as(places).flatten()
    found, log_prob = propose_tokens(
        row_logits,
        mask_id=decoding.mask_id,
        eos_id=decoding.eos_id,
        no_end=no_end,
        allowed_row=allowed_row,
        allowed_tokens=None if allowed is None else allowed.tokens,
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        streams=streams.at("token")[sample].at(places.flatten()),
    )
    return _Proposals(found.view(places.shape), log_prob.float().view(places.shape))


def _first_planned(masked: Positions, plan: DecodePlan) -> int:
    first = masked.shape[1] - plan.length
    if first < 0:
        raise ValueError(f"a plan for {plan.length} tokens on a canvas of {masked.shape[1]}")
    if masked[:, :first].any():
        raise ValueError(f"the first {first} tokens are before the plan's {plan.length}: they must be given")
    return first


def _hidden(where: Int[Tensor, "4"], tokens: TokenIds, decoding: Decoding) -> Positions:
    return _within(where, tokens) & (tokens == decoding.mask_id)


def _within(where: Int[Tensor, "4"], tokens: TokenIds) -> Positions:
    index = torch.arange(tokens.shape[1], device=tokens.device)
    return ((index >= where[1]) & (index < where[2])).expand_as(tokens)


class _Finite:
    """Whether all logits were finite, call by call; looked at only where that is cheap."""

    def __init__(self) -> None:
        self.unchecked: list[Tensor] = []

    def enter(self, is_finite: Bool[Tensor, ""]) -> None:
        self.unchecked.append(is_finite)

    def check(self) -> None:
        check_all(self.unchecked, "the demasker's logits")
        self.unchecked.clear()


@dataclass(frozen=True)
class Engine:
    """How the work is carried out; never what comes out."""

    play: Play = as_it_is
    reveal: Reveal = reveal  # the same, perhaps compiled


PLAIN = Engine()


@torch.no_grad()
def settle(
    demask: Demask, canvas: TokenIds, decoding: Decoding, allowed: Allowed, *, streams: Streams
) -> tuple[TokenIds, Cost]:
    """Put tokens where only some are allowed, by one call without registers, before anything else is found.

    Tokens that are found together do not see each other: with the last word of a prompt still masked, what follows
    would go on from another word, and registers would be drawn for it.
    """
    open_places = allowed.restricted() & (canvas == decoding.mask_id)
    places = _places(open_places, int(open_places.sum(dim=1).max()))
    row_logits = demask(canvas, None, places.clamp(max=canvas.shape[1] - 1))
    given = canvas != decoding.mask_id
    proposal = _propose(decoding, row_logits, places, canvas, given, streams.at("settle"), allowed)
    check_finite(proposal.log_prob, "the demasker's logits")
    return _put(canvas, places, proposal.tokens), Cost(demasker_calls=1)


@torch.no_grad()
def decode(
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    registers: RegisterBank | None = None,
    allowed: Allowed | None = None,
    streams: Streams,
    refresh: Refresh | None = None,
    refresh_at: Collection[int] = (),
    spent: Cost = NO_COST,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Fill the masked positions of `canvas`: the green lines of Algorithms 2, 3 and 6.

    Tokens on the canvas are given and stay; `allowed` says where only some may be put, and a token that is there
    already may be replaced by another of them if the rule hides it again. The plan covers the last
    `plan.length` positions; what stands before them is a prompt. `refresh` renews the registers before the calls
    in `refresh_at`; before call 0 it draws the first. `spent` is what the registers have cost already; `on_call`
    sees the canvas after every call. A sample depends on its own row and streams alone, never on its batch.

    All shapes of a call are known beforehand, and its tensors are looked at only where that is cheap or pays:
    finished samples are then left out, and a call that would reveal nothing is not made.
    """
    draws_first = refresh is not None and 0 in refresh_at
    if decoding.guidance != 1 and registers is None and not draws_first:
        raise ValueError(f"guidance {decoding.guidance} strengthens registers, and there are none")
    if registers is not None and not registers.isfinite().all():
        raise ValueError("registers are not finite: nothing can be decoded from them")
    first = _first_planned(canvas == decoding.mask_id, decoding.plan)
    batch = Batch.of(canvas, registers, streams, mask_id=decoding.mask_id, allowed=allowed)
    ledger, finite = Ledger(canvas, spent), _Finite()
    hideable = canvas if allowed is None else canvas.masked_fill(allowed.restricted(), decoding.mask_id)
    num_rows = rows_by_call(hideable[:, first:], decoding)
    calls = torch.tensor(
        [(c.index, first + c.block_start, first + c.block_end, c.calls_left) for c in decoding.plan.calls()],
        device=canvas.device,
    )
    looks_often = canvas.device.type == "cpu" or isinstance(decoding.rule, AboveThreshold)
    last_rows = 0
    for call in decoding.plan.calls():
        refreshes = refresh is not None and call.index in refresh_at
        if looks_often or refreshes or num_rows[call.index] != last_rows:
            finite.check()
            batch.leave_out_finished()
            if not len(batch.numbers):
                break
        last_rows = num_rows[call.index]
        if refreshes and refresh is not None:
            drawn = refresh(batch.tokens, batch.streams.at("call", call.index, "refresh"))
            ledger.enter(drawn.cost, batch.numbers, batch.unfinished())
            batch.registers = drawn.registers
        where = calls[call.index]
        if not last_rows or (looks_often and not _hidden(where, batch.tokens, decoding).any()):
            continue
        how = (demask, decoding, engine.reveal, last_rows)
        allowed_now = batch.allowed or (None, None)
        inputs = (batch.tokens, batch.given, batch.registers, batch.streams.keys, where, *allowed_now)
        batch.tokens, concerned, is_finite = engine.play(partial(_make_call, *how), how, inputs)
        finite.enter(is_finite)
        if looks_often:
            finite.check()
        ledger.enter(Cost(demasker_calls=decoding.calls_each_time), batch.numbers, concerned)
        if on_call is not None:
            on_call(batch.all_tokens(), call.index, ledger.total())
    finite.check()
    return Samples(batch.all_tokens(), ledger.total(), ledger.costs(), batch.all_registers())
