"""Turning registers into tokens: one decode loop for the base sampler and Algorithms 2, 3 and 6.

The base sampler decodes without registers, the autoencoder with encoded ones, ConThenDisc with drawn ones,
and ConWithinDisc draws them again on the way. A prompt or an infilling is a canvas with given tokens.
Samplers return what happened, the raw number of calls included; `Cost` turns these into the paper's NFE.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
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


# ---------------------------------------------------------------- the decode loop


class Draw(NamedTuple):
    """Registers, and what it cost to find them."""

    registers: RegisterBank
    cost: Cost


Refresh: TypeAlias = Callable[[TokenIds, Streams], Draw]  # registers again, given the visible tokens


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How tokens are found: in which blocks and calls, which are kept, and how boldly they are drawn."""

    plan: DecodePlan
    mask_id: int
    rule: RevealRule = field(default_factory=MostConfident)
    temperature: float = 0.0


class Samples(NamedTuple):
    tokens: TokenIds
    cost: Cost
    history: list[TokenIds]  # the canvas after every call, if asked for


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
    keep_history: bool = False,
) -> Samples:
    """Fill the masked positions of `canvas`: the green lines of Algorithms 2, 3 and 6.

    Tokens on the canvas are given and stay. The plan covers the last `plan.length` positions; what stands
    before them is a prompt. `refresh` renews the registers before the calls in `refresh_at`.
    """
    plan, mask_id = decoding.plan, decoding.mask_id
    may_change = canvas == mask_id
    first = _first_planned(may_change, plan)
    tokens, cost, history = canvas, Cost(), []
    refreshes = sorted(refresh_at)
    for call in plan.calls():
        is_open = may_change & _within(call, first, tokens)
        hidden = is_open & (tokens == mask_id)
        log_prob = torch.zeros(tokens.shape, device=tokens.device)
        call_streams = streams.at("call", call.index)
        if hidden.any():  # a call that has nothing to reveal is not made
            if refresh is not None and refreshes and refreshes[0] <= call.index:
                refreshes = [index for index in refreshes if index > call.index]
                registers, spent = refresh(tokens, call_streams.at("refresh"))
                cost += spent
            proposal = _propose(demask(tokens, registers, hidden), hidden, decoding, call_streams)
            cost += Cost(demasker_calls=1)
            tokens = tokens.masked_scatter(hidden, proposal.tokens)
            log_prob = log_prob.masked_scatter(hidden, proposal.log_prob.to(log_prob.dtype))
        step = RevealStep(log_prob, hidden, is_open, call.calls_left, plan.calls_per_block, call_streams)
        tokens = tokens.masked_fill(is_open & ~decoding.rule(step), mask_id)
        if keep_history:
            history.append(tokens)
    return Samples(tokens, cost, history)


def _propose(row_logits: RowLogits, hidden: Positions, decoding: Decoding, streams: Streams) -> Proposal:
    """Every position draws from a stream of its own, whatever else is hidden."""
    sample, position = hidden.nonzero(as_tuple=True)
    row_streams = streams.at("token")[sample].at(position)
    return propose_tokens(
        row_logits, mask_id=decoding.mask_id, temperature=decoding.temperature, streams=row_streams
    )


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
    draw: Callable[[Streams], Draw], demask: Demask, canvas: TokenIds, decoding: Decoding, *, streams: Streams
) -> Samples:
    """Algorithm 2: draw the registers (lines 2-3), then decode them (lines 4-11)."""
    registers, spent = draw(streams.at("prior"))
    samples = decode(demask, canvas, decoding, registers=registers, streams=streams)
    return samples._replace(cost=samples.cost + spent)


def con_within_disc(
    draw: Callable[[Streams], Draw],
    redraw: Refresh,
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    streams: Streams,
    refresh_fractions: Collection[float] = (0.5,),
) -> Samples:
    """Algorithm 3: as Algorithm 2, and the registers are drawn again, given the tokens found so far.

    `refresh_fractions` of the calls are made before each refresh; one half way is what the paper ran
    (decision D9).
    """
    if not all(0 <= fraction < 1 for fraction in refresh_fractions):
        raise ValueError(f"refresh fractions lie in [0, 1), not at {list(refresh_fractions)}")
    registers, spent = draw(streams.at("prior"))
    samples = decode(
        demask,
        canvas,
        decoding,
        registers=registers,
        streams=streams,
        refresh=redraw,
        refresh_at=[round(fraction * decoding.plan.num_calls) for fraction in refresh_fractions],
    )
    return samples._replace(cost=samples.cost + spent)


def autoencode(
    encode: Callable[[TokenIds], RegisterBank],
    demask: Demask,
    tokens: TokenIds,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    streams: Streams,
) -> Samples:
    """Algorithm 6: encode a sequence to registers (line 2) and decode these on a new canvas (lines 3-9)."""
    with torch.no_grad():
        registers = encode(tokens)
    samples = decode(demask, canvas, decoding, registers=registers, streams=streams)
    return samples._replace(cost=samples.cost + Cost(encoder_calls=1))
