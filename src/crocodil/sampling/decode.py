"""The decode loop: fill the masks of a canvas, a few tokens per demasker call.

The base sampler and Algorithms 2, 3 and 6 use the same loop. The demasker is passed as a function
(`crocodil.sampling.guidance`). The loop does not know where registers come from. The result holds the number of
calls; `Cost` converts it to NFE.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from crocodil.processes.plan import DecodePlan
from crocodil.processes.reveal import CORRECTED_PART, revises
from crocodil.sampling.call import (
    PLAIN,
    DemaskerStep,
    Engine,
    RevealConfig,
    hidden_in_block,
    may_end_early,
    reveal_rule,
)
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.guidance import Demask, with_head
from crocodil.sampling.state import Canvas, Refresh, Samples, State
from crocodil.seeding import Streams
from crocodil.shapes import LogProbs, Positions, RegisterBank, TokenIds

ROW_COUNTS = 8  # the number of logit rows per call is rounded up to an eighth of a block: few distinct shapes


@dataclass(frozen=True)
class AfterCall:
    """The batch after a call, for a callback. What is not read costs nothing: reading may wait for the device."""

    call: int  # from 0
    state: State

    @property
    def tokens(self) -> TokenIds:
        return self.state.all_tokens()

    @property
    def cost(self) -> Cost:
        """The cost so far."""
        return self.state.ledger.total()

    @property
    def log_prob(self) -> LogProbs:
        """Of the tokens that the call proposed; 0 elsewhere."""
        return self.state.all_log_probs()


OnCall: TypeAlias = Callable[[AfterCall], None]


@torch.no_grad()
def decode(
    demask: Demask,
    canvas: Canvas,
    decoding: Decoding,
    *,
    plan: DecodePlan | None = None,
    registers: RegisterBank | None = None,
    streams: Streams,
    refresh: Refresh | None = None,
    refresh_at: Collection[int] = (),
    spent: Cost = NO_COST,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Fill the masked positions of `canvas`: the green lines of Algorithms 2, 3 and 6.

    The plan covers the last `plan.length` positions, by default all. Tokens before them are a prompt. `refresh`
    replaces the registers before the calls in `refresh_at`; before call 0 it draws the first registers. `spent` is
    the cost so far. A sample depends only on its own canvas and streams, not on its batch.

    The shapes of all calls are known in advance. Tensor values are read only where this is cheap (on a CPU) or
    saves calls: then finished samples leave the batch, and a call that would reveal nothing is skipped.
    """
    plan = decoding.plan(canvas.length) if plan is None else plan
    _check_registers(registers, decoding, draws_first=refresh is not None and 0 in refresh_at)
    if decoding.in_turn != "no":
        with_head(demask)
    rule = reveal_rule(decoding)
    reads_values = canvas.device.type == "cpu" or rule.may_finish_early or may_end_early(decoding)
    state, last_rows = State(canvas, registers, streams, spent), 0
    for call in planned_calls(canvas, plan, decoding):
        refreshes = refresh is not None and call.index in refresh_at
        if reads_values or refreshes or call.num_rows != last_rows:
            state.drop_finished()
            if not len(state):
                break
        last_rows = call.num_rows
        if refreshes and refresh is not None:
            state.refresh(refresh, call.index)
        if not call.num_rows or (reads_values and not call.hidden(state.tokens, canvas.mask_id).any()):
            continue
        step = DemaskerStep(demask, RevealConfig.of(canvas, decoding, plan), engine.reveal, call.num_rows)
        state.update(engine.play(step, step, step.inputs(state, call.bounds)), step.cost)
        if reads_values:
            state.check_finite()
        if on_call is not None:
            on_call(AfterCall(call.index, state))
    return state.samples()


def _check_registers(registers: RegisterBank | None, decoding: Decoding, *, draws_first: bool) -> None:
    if decoding.guidance != 1 and registers is None and not draws_first:
        raise ValueError(f"guidance {decoding.guidance} needs registers to strengthen, and there are none")
    if registers is not None and not registers.isfinite().all():
        raise ValueError("the registers are not finite and cannot be decoded")


# ---------------------------------------------------------------- planned calls


@dataclass(frozen=True)
class PlannedCall:
    index: int
    num_rows: int  # an upper bound of a sample's hidden positions
    bounds: Int[Tensor, "4"]  # call index, start and end of the block, calls left: on the device

    def hidden(self, tokens: TokenIds, mask_id: int) -> Positions:
        return hidden_in_block(self.bounds, tokens, mask_id)


def planned_calls(canvas: Canvas, plan: DecodePlan, decoding: Decoding) -> Iterator[PlannedCall]:
    first = _first_planned(canvas, plan)
    maskable = (canvas.masked() | canvas.restricted())[:, first:]
    num_rows = rows_per_call(maskable, plan, decoding)
    bounds = torch.tensor(
        [(call.index, first + call.block_start, first + call.block_end, call.calls_left) for call in plan.calls()],
        device=canvas.device,
    )
    for index, rows in enumerate(num_rows):
        yield PlannedCall(index, rows, bounds[index])


def rows_per_call(masked: Positions, plan: DecodePlan, decoding: Decoding) -> list[int]:
    """Return an upper bound of a sample's hidden positions at each call, rounded up to an eighth of a block."""
    corrector_calls = decoding.corrector_calls(plan.calls_per_block)
    rule = reveal_rule(decoding)
    falls = rule.reveals_quota and decoding.pace == "canvas"  # else the quota depends on the text
    falls = falls and not revises(rule) and decoding.curve == 1
    per_block = masked.unflatten(1, (plan.num_blocks, plan.block_size)).sum(dim=2).amax(dim=0).tolist()
    unit = -(-plan.block_size // ROW_COUNTS)
    num_rows = []
    for num_hidden in per_block:
        masked_again = -(-num_hidden // CORRECTED_PART) if corrector_calls else 0
        for calls_left in range(plan.calls_per_block, 0, -1):
            num_rows.append(min(-(-num_hidden // unit) * unit, plan.block_size))
            if falls:
                num_hidden -= -(-num_hidden // max(calls_left - corrector_calls, 1))
                num_hidden = max(num_hidden, masked_again)
    return num_rows


def _first_planned(canvas: Canvas, plan: DecodePlan) -> int:
    first = canvas.length - plan.length
    if first < 0:
        raise ValueError(f"the plan is for {plan.length} tokens, the canvas has {canvas.length}")
    if first and canvas.masked()[:, :first].any():
        raise ValueError(f"the first {first} tokens come before the plan's {plan.length}: they must not be masked")
    return first
