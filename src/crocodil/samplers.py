"""Turning registers into tokens: one decode loop for the base sampler and Algorithms 2, 3 and 6.

The base sampler decodes without registers, the autoencoder with encoded ones, ConThenDisc with drawn ones,
and ConWithinDisc draws them again on the way. A prompt or an infilling is a canvas with given tokens.
Samplers return what happened, the raw number of calls included; `Cost` turns these into the paper's NFE.
"""

from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.processes.gaussian import Denoise, block_offsets, ddim, ddim_times
from crocodil.processes.masking import (
    Call,
    DecodePlan,
    MostConfident,
    Proposal,
    RevealRule,
    RevealStep,
    before_given_text,
    fill_behind_end,
    hold_back_ends,
    propose_tokens,
)
from crocodil.processes.registers import block_index, normalise
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RegisterBank, RowLogits, TokenIds

# f_theta as the loop sees it: logits at the rows that are wanted.
Demask: TypeAlias = Callable[[TokenIds, RegisterBank | None, Positions], RowLogits]


def unguided(demasker: LLaDA) -> Demask:
    """The base MDM: registers are ignored."""
    return lambda noisy_tokens, registers, rows: demasker(noisy_tokens, rows=rows)


def guided(demasker: Demasker) -> Demask:
    """The guided demasker; no registers at all is its empty prefix (decision D14)."""

    def demask(noisy_tokens: TokenIds, registers: RegisterBank | None, rows: Positions) -> RowLogits:
        if registers is None:
            empty = (len(noisy_tokens), 0, demasker.config.register_width)
            registers = torch.zeros(empty, device=noisy_tokens.device)
        return demasker(noisy_tokens, registers, rows=rows)

    return demask


def strengthened(demask: Demask, strength: float) -> Demask:
    """Register guidance: logits moved from those of the empty prefix towards, or past, the guided ones.

    1 is the guided demasker itself, more exaggerates what the registers say. Takes two calls for one, and a
    demasker that has seen empty prefixes in training (decision D14).
    """

    def demask_strongly(noisy_tokens: TokenIds, registers: RegisterBank | None, rows: Positions) -> RowLogits:
        without = demask(noisy_tokens, None, rows)
        return without + strength * (demask(noisy_tokens, registers, rows) - without)

    return demask_strongly


def without_end(demask: Demask, eos_id: int, where: Positions) -> Demask:
    """Never the end token at these positions."""

    def demask_on(noisy_tokens: TokenIds, registers: RegisterBank | None, rows: Positions) -> RowLogits:
        logits = demask(noisy_tokens, registers, rows)
        is_end = torch.arange(logits.shape[1], device=logits.device) == eos_id
        return logits.masked_fill(where[rows, None] & is_end, -torch.inf)

    return demask_on


# ---------------------------------------------------------------- what it cost


class Size(NamedTuple):
    """A network at work: how many parameters it has, over how many positions it runs."""

    parameters: int
    positions: int

    @property
    def work(self) -> float:
        return float(self.parameters) * self.positions


@dataclass(frozen=True)
class Cost:
    """Raw calls of each network."""

    demasker_calls: int = 0
    denoiser_calls: int = 0
    encoder_calls: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.demasker_calls + other.demasker_calls,
            self.denoiser_calls + other.denoiser_calls,
            self.encoder_calls + other.encoder_calls,
        )

    def nfe(self, *, demasker_parameters: float, denoiser_parameters: float) -> float:
        """The paper's unit: demasker calls, a denoiser call counting by its share of parameters.

        128 calls of 0.4B beside 8B are 6.4 ("about 6"), 32 are 1.6 ("< 2"). Encoder calls do not count.
        """
        return self.demasker_calls + self.denoiser_calls * denoiser_parameters / demasker_parameters

    def flop_nfe(self, *, unit: Size, demasker: Size, denoiser: Size, encoder: Size) -> float:
        """All calls weighted by parameters x positions, in units of one call of `unit`.

        With the base demasker over the bare text as unit, the prefix and the encoder are paid for too.
        """
        work = (
            self.demasker_calls * demasker.work
            + self.denoiser_calls * denoiser.work
            + self.encoder_calls * encoder.work
        )
        return work / unit.work


NO_COST = Cost()


class Ledger:
    """What was spent on a batch, and for which of its samples."""

    def __init__(self, canvas: TokenIds, spent: Cost) -> None:
        self.spent, self.samples = [spent], [torch.ones_like(canvas[:, 0], dtype=torch.bool)]

    def enter(self, spent: Cost, samples: Bool[Tensor, "B"]) -> None:
        """Looks at no value: that would wait for the device after every call."""
        self.spent.append(spent)
        self.samples.append(samples)

    def total(self) -> Cost:
        return sum(self.spent, NO_COST)

    def costs(self) -> list[Cost]:
        """Of each sample, as if it had been alone."""
        taken = torch.stack(self.samples, dim=1).cpu().long()
        return [Cost(*counts) for counts in (taken @ torch.tensor([astuple(one) for one in self.spent])).tolist()]


# ---------------------------------------------------------------- the decode loop


class Draw(NamedTuple):
    """Registers, and what it cost to find them."""

    registers: RegisterBank
    cost: Cost


Refresh: TypeAlias = Callable[[TokenIds, Streams], Draw]  # registers again, given the visible tokens
OnCall: TypeAlias = Callable[[TokenIds, int, Cost], None]  # the canvas after a call, its index, the cost so far


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How tokens are found: in which blocks and calls, which are kept, and how boldly they are drawn."""

    plan: DecodePlan
    mask_id: int
    rule: RevealRule = field(default_factory=MostConfident)
    temperature: float = 0.0
    top_p: float = 1.0  # tokens are drawn among the most probable that have this much of the probability
    guidance: float = 1.0  # how strongly registers guide; any other strength than 1 doubles the demasker's calls
    eos_id: int | None = None  # where a text ends the canvas is filled; None: the end is a token like any other
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


@torch.no_grad()
def decode(
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    registers: RegisterBank | None = None,
    streams: Streams,
    refresh: Refresh | None = None,
    refresh_at: Collection[int] = (),
    spent: Cost = NO_COST,
    on_call: OnCall | None = None,
) -> Samples:
    """Fill the masked positions of `canvas`: the green lines of Algorithms 2, 3 and 6.

    Tokens on the canvas are given and stay. The plan covers the last `plan.length` positions; what stands
    before them is a prompt. `refresh` renews the registers before the calls in `refresh_at`. `spent` is what
    the registers have cost already; `on_call` sees the canvas after every call. A sample depends on its own
    row and streams alone, never on its batch.
    """
    plan, mask_id = decoding.plan, decoding.mask_id
    may_change = canvas == mask_id
    first = _first_planned(may_change, plan)
    demask = _as_asked(demask, canvas, decoding, guided=registers is not None)
    tokens, ledger = canvas, Ledger(canvas, spent)
    for call in plan.calls():
        call_streams = streams.at("call", call.index)
        masked = tokens == mask_id
        if refresh is not None and call.index in refresh_at and masked.any():
            registers, refresh_cost = refresh(tokens, call_streams.at("refresh"))
            ledger.enter(refresh_cost, masked.any(dim=1))
        block = _within(call, first, tokens)
        hidden = masked & block
        if not hidden.any():  # a call that has nothing to reveal is not made
            continue
        proposal = _propose(demask(tokens, registers, hidden), hidden, decoding, call_streams)
        unfinished = hidden.any(dim=1)  # in this block; a row that has filled it is left alone
        ledger.enter(Cost(demasker_calls=decoding.calls_each_time), unfinished)
        is_open = may_change & block & unfinished[:, None]
        proposed = tokens.masked_scatter(hidden, proposal.tokens)
        confidence = _confidence(proposal, proposed, hidden, decoding)
        step = RevealStep(confidence, hidden, is_open, call.calls_left, plan.calls_per_block, call_streams)
        tokens = proposed.masked_fill(is_open & ~decoding.rule(step), mask_id)
        if decoding.eos_id is not None:
            tokens = fill_behind_end(tokens, may_end=may_change, mask_id=mask_id, eos_id=decoding.eos_id)
        if on_call is not None:
            on_call(tokens, call.index, ledger.total())
    return Samples(tokens, ledger.total(), ledger.costs(), registers)


def _as_asked(demask: Demask, canvas: TokenIds, decoding: Decoding, *, guided: bool) -> Demask:
    """With the guidance strength, and without ends that would cut off given text."""
    if decoding.guidance != 1:
        if not guided:
            raise ValueError(f"guidance {decoding.guidance} strengthens registers, and there are none")
        demask = strengthened(demask, decoding.guidance)
    if decoding.eos_id is None:
        return demask
    text_follows = before_given_text(canvas, mask_id=decoding.mask_id, eos_id=decoding.eos_id)
    if not (text_follows & (canvas == decoding.mask_id)).any():
        return demask
    return without_end(demask, decoding.eos_id, text_follows)


def _propose(row_logits: RowLogits, hidden: Positions, decoding: Decoding, streams: Streams) -> Proposal:
    """Every position draws from a stream of its own, whatever else is hidden."""
    sample, position = hidden.nonzero(as_tuple=True)
    row_streams = streams.at("token")[sample].at(position)
    return propose_tokens(
        row_logits,
        mask_id=decoding.mask_id,
        temperature=decoding.temperature,
        top_p=decoding.top_p,
        streams=row_streams,
    )


def _confidence(
    proposal: Proposal, proposed: TokenIds, hidden: Positions, decoding: Decoding
) -> Float[Tensor, "B N"]:
    """Log-probabilities of the proposals, those of ends held back."""
    nothing = torch.zeros(hidden.shape, device=hidden.device)
    log_prob = nothing.masked_scatter(hidden, proposal.log_prob.to(nothing.dtype))
    if decoding.eos_id is None or not decoding.eos_last:
        return log_prob
    return hold_back_ends(log_prob, ends=hidden & (proposed == decoding.eos_id), hidden=hidden)


def _first_planned(masked: Positions, plan: DecodePlan) -> int:
    first = masked.shape[1] - plan.length
    if first < 0:
        raise ValueError(f"a plan for {plan.length} tokens on a canvas of {masked.shape[1]}")
    if masked[:, :first].any():
        raise ValueError(f"the first {first} tokens are before the plan's {plan.length}: they must be given")
    return first


def _within(call: Call, first: int, tokens: TokenIds) -> Positions:
    index = torch.arange(tokens.shape[1], device=tokens.device)
    return ((index >= first + call.block_start) & (index < first + call.block_end)).expand_as(tokens)


# ---------------------------------------------------------------- registers from the prior


@dataclass(frozen=True, kw_only=True)
class PriorSampling:
    """How registers are drawn from a prior."""

    num_registers: int
    register_width: int
    num_steps: int = 128  # Sec. 5; 32 for the conditional prior
    largest_offset: float = 0.1  # as in training (decision D4)
    eta: float = 0.0


@torch.no_grad()
def draw_registers(denoise: Denoise, sampling: PriorSampling, *, streams: Streams) -> Draw:
    """z_0 = G_psi(eps), brought to the sphere that the demasker knows (decision D20)."""
    noise: Float[Tensor, "B K D"] = streams.at("noise").normal(sampling.num_registers, sampling.register_width)
    offsets = block_offsets(block_index(sampling.num_registers), largest=sampling.largest_offset)
    times = ddim_times(sampling.num_steps, offsets)
    registers = ddim(denoise, noise, times, offsets=offsets, eta=sampling.eta, streams=streams)
    return Draw(normalise(registers), Cost(denoiser_calls=sampling.num_steps))


# ---------------------------------------------------------------- Algorithms 2, 3 and 6


def con_then_disc(
    draw: Callable[[Streams], Draw],
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
) -> Samples:
    """Algorithm 2: draw the registers (lines 2-3), then decode them (lines 4-11)."""
    registers, spent = draw(streams.at("prior"))
    return decode(demask, canvas, decoding, registers=registers, streams=streams, spent=spent, on_call=on_call)


def con_within_disc(
    draw: Callable[[Streams], Draw],
    redraw: Refresh,
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    streams: Streams,
    refresh_fractions: Collection[float] = (0.5,),
    on_call: OnCall | None = None,
) -> Samples:
    """Algorithm 3: as Algorithm 2, and the registers are drawn again, given the tokens found so far.

    `refresh_fractions` of the calls are made before each refresh; one half way is what the paper ran
    (decision D9).
    """
    if not all(0 <= fraction < 1 for fraction in refresh_fractions):
        raise ValueError(f"refresh fractions lie in [0, 1), not at {list(refresh_fractions)}")
    last = decoding.plan.num_calls - 1
    registers, spent = draw(streams.at("prior"))
    return decode(
        demask,
        canvas,
        decoding,
        registers=registers,
        streams=streams,
        refresh=redraw,
        refresh_at={min(round(fraction * decoding.plan.num_calls), last) for fraction in refresh_fractions},
        spent=spent,
        on_call=on_call,
    )


def autoencode(
    encode: Callable[[TokenIds], RegisterBank],
    demask: Demask,
    tokens: TokenIds,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
) -> Samples:
    """Algorithm 6: encode a sequence to registers (line 2) and decode these on a new canvas (lines 3-9)."""
    with torch.no_grad():
        registers = encode(tokens)
    spent = Cost(encoder_calls=1)
    return decode(demask, canvas, decoding, registers=registers, streams=streams, spent=spent, on_call=on_call)
