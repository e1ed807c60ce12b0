"""Algorithms 2, 3 and 6: registers are found, then decoded.

ConThenDisc draws them from a prior, ConWithinDisc draws them again on the way, the autoencoder encodes a text. The
base sampler has none: it is the loop alone (`crocodil.sampling.decode`). A prompt or an infilling is a canvas with
given tokens. Networks are functions here: how they are built and trained is not known, nor is text.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.processes.categorical import Allowed
from crocodil.processes.gaussian import block_offsets, ddim_step, ddim_times, walk
from crocodil.processes.registers import block_index, normalise
from crocodil.runtime.config import Coherence, Positive, Share, Steps, Width, config
from crocodil.runtime.devices import check_finite
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import PLAIN, Decoding, Draw, Engine, OnCall, Refresh, Samples, decode
from crocodil.sampling.guidance import Demask
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, RegisterTime, TokenIds

# ---------------------------------------------------------------- registers from the prior


@config
class PriorSampling:
    """How registers are drawn from a prior."""

    num_registers: Width
    register_width: Width
    num_steps: Steps = 128  # Sec. 5; 32 for the conditional prior
    largest_offset: Share = 0.1  # as in training (decision D4)
    time_shift: Positive = 1.0  # as in training
    eta: Share = 0.0
    self_conditioned: bool = False  # the denoiser sees its guess of the step before (decision D25)
    coherence: Coherence = 0.0  # away from registers that do not see each other (D33); twice the calls

    @property
    def num_calls(self) -> int:
        return self.num_steps * (2 if self.coherence else 1)


OnStep: TypeAlias = Callable[[int, int], None]  # how many steps are done, of how many


@torch.no_grad()
def draw_registers(
    denoise: Callable[..., RegisterBank],
    sampling: PriorSampling,
    *,
    known: Mapping[str, Tensor] | None = None,
    streams: Streams,
    on_step: OnStep | None = None,
    engine: Engine = PLAIN,
) -> Draw:
    """z_0 = G_psi(eps), brought to the sphere that the demasker knows (decision D20).

    `denoise` is g_psi(z_s, s), also called with what is `known`, a condition, and with its last guess if it wants.
    `on_step` is called after every step.
    """
    noise: Float[Tensor, "B K D"] = streams.at("noise").normal(sampling.num_registers, sampling.register_width)
    offsets = block_offsets(block_index(sampling.num_registers), largest=sampling.largest_offset)
    times = ddim_times(sampling.num_steps, offsets)
    known = known or {}
    how = (denoise, sampling, tuple(known))
    steps_done = 0

    def step(*inputs: Tensor | None) -> tuple[RegisterBank, RegisterBank]:
        nonlocal steps_done
        stepped = engine.play(partial(_denoise_once, *how), how, (*inputs, *known.values()))
        steps_done += 1
        if on_step is not None:
            on_step(steps_done, sampling.num_steps)
        return stepped

    drawn = walk(step, noise, times, offsets=offsets, shift=sampling.time_shift, eta=sampling.eta, streams=streams)
    registers = normalise(drawn)
    check_finite(registers, "the prior's registers")
    return Draw(registers, Cost(denoiser_calls=sampling.num_calls))


def _denoise_once(
    denoise: Callable[..., RegisterBank],
    sampling: PriorSampling,
    names: tuple[str, ...],
    noisy_registers: RegisterBank,
    guess: RegisterBank,
    time: RegisterTime,
    next_time: RegisterTime,
    fresh: RegisterBank | None,
    *known: Tensor,
) -> tuple[RegisterBank, RegisterBank]:
    """A step, and the guess that the next one sees: what was predicted, not what coherence made of it."""
    options = dict(zip(names, known, strict=True))
    seen = {"guess": guess} if sampling.self_conditioned else {}
    if not sampling.coherence:
        predicted = clean = denoise(noisy_registers, time, **seen, **options)
    else:
        predicted, apart = _together_and_apart(denoise, noisy_registers, time, seen, options)
        clean = predicted + sampling.coherence * (predicted - apart)
    return ddim_step(noisy_registers, clean, time, next_time, eta=sampling.eta, fresh=fresh), predicted


def _together_and_apart(
    denoise: Callable[..., RegisterBank],
    noisy_registers: RegisterBank,
    time: RegisterTime,
    seen: Mapping[str, RegisterBank],
    known: Mapping[str, Tensor],
) -> tuple[RegisterBank, ...]:
    """What is predicted where registers see each other and where they do not, in one batch twice as large."""
    twice = {name: torch.cat([bank, bank]) for name, bank in seen.items()}
    identity = torch.arange(2 * len(time), device=time.device) >= len(time)
    both = denoise(
        torch.cat([noisy_registers] * 2), torch.cat([time] * 2), **twice, **known, identity_attention=identity
    )
    return both.chunk(2)


# ---------------------------------------------------------------- Algorithms 2, 3 and 6


def con_then_disc(
    draw: Callable[[Streams], Draw],
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    allowed: Allowed | None = None,
    streams: Streams,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 2: draw the registers (lines 2-3), then decode them (lines 4-11)."""
    registers, spent = draw(streams.at("prior"))
    return decode(
        demask,
        canvas,
        decoding,
        registers=registers,
        allowed=allowed,
        streams=streams,
        spent=spent,
        on_call=on_call,
        engine=engine,
    )


def con_within_disc(
    draw: Callable[[Streams], Draw],
    redraw: Refresh,
    demask: Demask,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    allowed: Allowed | None = None,
    streams: Streams,
    refresh_fractions: Collection[float] = (0.5,),
    spent: Cost = NO_COST,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 3: as Algorithm 2, and the registers are drawn again, given the tokens found so far.

    `refresh_fractions` of the calls are made before each refresh; one half way is what the paper ran
    (decision D9). A refresh before the first call draws the first registers: the prior draws none. `spent` is
    what the canvas has cost already.
    """
    refresh_at = refresh_calls(refresh_fractions, decoding.plan.num_calls)
    registers = None
    if 0 not in refresh_at:
        registers, cost = draw(streams.at("prior"))
        spent = spent + cost
    return decode(
        demask,
        canvas,
        decoding,
        registers=registers,
        allowed=allowed,
        streams=streams,
        refresh=redraw,
        refresh_at=refresh_at,
        spent=spent,
        on_call=on_call,
        engine=engine,
    )


def refresh_calls(fractions: Collection[float], num_calls: int) -> set[int]:
    """The calls before which the registers are drawn again."""
    if not all(0 <= fraction < 1 for fraction in fractions):
        raise ValueError(f"refresh fractions lie in [0, 1), not at {list(fractions)}")
    return {min(round(fraction * num_calls), num_calls - 1) for fraction in fractions}


def autoencode(
    encode: Callable[[TokenIds], RegisterBank],
    demask: Demask,
    tokens: TokenIds,
    canvas: TokenIds,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 6: encode a sequence to registers (line 2) and decode these on a new canvas (lines 3-9)."""
    with torch.no_grad():
        registers = encode(tokens)
    spent = Cost(encoder_calls=1)
    return decode(
        demask, canvas, decoding, registers=registers, streams=streams, spent=spent, on_call=on_call, engine=engine
    )
