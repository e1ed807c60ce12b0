"""Algorithms 2, 3 and 6: get registers, then decode them.

- ConThenDisc (Algorithm 2) draws registers from a prior.
- ConWithinDisc (Algorithm 3) also draws them again between calls, given the tokens revealed so far.
- The autoencoder (Algorithm 6) encodes a text.

The base sampler has no registers: it is `decode` alone. For a prompt or for infilling, the canvas has given
tokens. Networks are passed as functions.
"""

import math
from collections.abc import Callable, Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.processes.gaussian import (
    Offsets,
    OnStep,
    add_noise,
    base_time_at,
    block_offsets,
    ddim,
    ddim_times,
    effective_time,
    last_base_time,
)
from crocodil.processes.registers import block_index, normalise, perturb
from crocodil.runtime.devices import check_finite
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import PLAIN, Engine, OnCall, decode
from crocodil.sampling.early_stop import EarlyStop, identity, scale_of
from crocodil.sampling.guidance import Demask, DualGuided, FlowMap, GuidedDenoiser
from crocodil.sampling.state import Canvas, Draw, Refresh, Samples
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds

# ---------------------------------------------------------------- registers from the prior


@torch.no_grad()
def draw_registers(
    denoiser: Callable[..., RegisterBank],
    drawing: Drawing,
    *,
    shape: tuple[int, int],
    num_steps: int,
    self_conditioned: bool = False,
    flow_map: bool = False,
    fresh_noise: bool = False,
    unstandardise: Callable[[RegisterBank], RegisterBank] = identity,
    condition_kv: Tensor | None = None,
    weak: Callable[..., RegisterBank] | None = None,
    weak_condition_kv: Tensor | None = None,
    dropped: Sequence[tuple[float, Tensor]] = (),
    replaced: RegisterBank | None = None,
    streams: Streams,
    on_step: OnStep | None = None,
    engine: Engine = PLAIN,
) -> Draw:
    """Draw z_0 = G_psi(eps) and project it to the sphere that the demasker was trained on (decision D20).

    `denoiser` is g_psi(z_s, s). If `flow_map`, it is a distilled prior (decision D51), which takes any number of
    steps. If `fresh_noise`, it is distilled by matching (D80), and all noise of a step is fresh. `shape` is the
    number of its registers and their width. `unstandardise` converts registers from the units of the prior to
    those of the encoder (D40). `weak` is the weak prior for autoguidance. `dropped` has the guidance scales of
    condition and prompt, each with the keys and values without it (D57). `replaced` are the old registers in the
    units of the prior: with `drawing.refresh_from` below 1, the draw starts from them with noise added, instead of
    from pure noise (D50). With `drawing.early_stop` the draw ends with noisy registers (D63).
    """
    is_distilled = flow_map or fresh_noise
    _check_drawing(
        drawing, self_conditioned=self_conditioned, is_distilled=is_distilled, has_weak=weak is not None
    )
    num_registers, register_width = shape
    noise: Float[Tensor, "B K D"] = streams.at("noise").normal(num_registers, register_width)
    offsets = block_offsets(block_index(num_registers), largest=drawing.largest_offset)
    stop = EarlyStop.of(drawing, offsets, scale_of(unstandardise, noise)) if drawing.early_stop else None
    end = last_base_time(offsets) if stop is None else stop.base_time
    scales = (drawing.pag_scale, self_conditioned, drawing.self_cond_scale)
    first, start = noise, 1.0
    if replaced is not None and drawing.refresh_from < 1:
        if replaced.shape[1:] != noise.shape[1:]:
            raise ValueError("refresh_from below 1 needs two priors of equally many registers: use 1")
        start = base_time_at(drawing.refresh_from, end=end)
        first = _noised(replaced, noise, start, offsets, shift=drawing.time_shift, stop=stop)
    guided = GuidedDenoiser(denoiser, *scales, weak, drawing.autoguidance)
    dual = DualGuided(guided, tuple(scale for scale, _ in dropped)) if dropped else guided
    registers = ddim(
        FlowMap(denoiser) if flow_map else dual,
        first,
        ddim_times(num_steps, offsets, start=start, end=end),
        offsets=offsets,
        shift=drawing.time_shift,
        stops_early=drawing.early_stop,
        eta=math.inf if fresh_noise else drawing.eta,
        streams=streams,
        inputs=[
            keys_values
            for keys_values in (condition_kv, weak_condition_kv, *(without for _, without in dropped))
            if keys_values is not None
        ],
        on_step=on_step,
        play=engine.play,
    )
    registers = registers if stop is None else stop.over_signal(registers)
    registers = normalise(unstandardise(registers))
    check_finite(registers, "the prior's registers")
    if stop is not None:
        registers = stop.with_noise(registers, streams=streams.at("register noise"))
    elif drawing.register_noise:
        registers = perturb(registers, std=drawing.register_noise, streams=streams.at("register noise"))
    return Draw(registers, Cost(denoiser_calls=num_steps * (drawing.calls_per_step + len(dropped))))


def _check_drawing(drawing: Drawing, *, self_conditioned: bool, is_distilled: bool, has_weak: bool) -> None:
    """Refuse kinds of guidance that this prior does not support."""
    if is_distilled and (drawing.eta or drawing.calls_per_step > 1):
        raise ValueError(
            "this prior is distilled, with its guidance inside: use eta 0, pag_scale 0, self_cond_scale 1 and "
            "autoguidance 1"
        )
    if drawing.self_cond_scale != 1 and not self_conditioned:
        raise ValueError("self_cond_scale needs a self-conditioned prior: use 1 with this one")
    if drawing.autoguidance != 1 and not has_weak:
        raise ValueError("autoguidance needs a weak prior, and this model has none: use 1")


def _noised(
    replaced: RegisterBank,
    noise: RegisterBank,
    base_time: float,
    offsets: Offsets,
    *,
    shift: float,
    stop: EarlyStop | None,
) -> RegisterBank:
    """Return the old registers with the noise of a base time, at which a refresh starts (decision D50)."""
    base_times = torch.full(noise.shape[:1], base_time, device=noise.device)
    time = effective_time(base_times, offsets.to(noise.device), shift=shift)
    return add_noise(replaced, time, noise) if stop is None else stop.noised(replaced, time, noise)


# ---------------------------------------------------------------- Algorithms 2, 3 and 6


def con_then_disc(
    draw: Callable[[Streams], Draw],
    demask: Demask,
    canvas: Canvas,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 2: draw the registers (lines 2-3), then decode them (lines 4-11)."""
    registers, cost = draw(streams.at("prior"))
    return decode(
        demask, canvas, decoding, registers=registers, streams=streams, spent=cost, on_call=on_call, engine=engine
    )


def con_within_disc(
    draw: Callable[[Streams], Draw],
    redraw: Refresh,
    demask: Demask,
    canvas: Canvas,
    decoding: Decoding,
    *,
    streams: Streams,
    refresh_at: Collection[float] = (0.5,),
    spent: Cost = NO_COST,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 3: as Algorithm 2, but draw the registers again, given the tokens decoded so far.

    `refresh_at` lists the fractions of the calls after which this happens; the paper uses one half (decision D9).
    A refresh at 0 replaces the first draw. `spent` is the cost before this function is called.
    """
    plan = decoding.plan(canvas.length)
    refresh_calls = calls_at(refresh_at, plan.num_calls)
    registers = None
    if 0 not in refresh_calls:
        registers, cost = draw(streams.at("prior"))
        spent = spent + cost
    return decode(
        demask,
        canvas,
        decoding,
        plan=plan,
        registers=registers,
        streams=streams,
        refresh=redraw,
        refresh_at=refresh_calls,
        spent=spent,
        on_call=on_call,
        engine=engine,
    )


def calls_at(shares: Collection[float], num_calls: int) -> set[int]:
    """Return the calls before which the registers are drawn again."""
    if not all(0 <= share < 1 for share in shares):
        raise ValueError(f"refresh_at holds shares of the calls, from 0 to below 1, not {list(shares)}")
    return {min(round(share * num_calls), num_calls - 1) for share in shares}


def autoencode(
    encode: Callable[[TokenIds], RegisterBank],
    demask: Demask,
    tokens: TokenIds,
    canvas: Canvas,
    decoding: Decoding,
    *,
    streams: Streams,
    on_call: OnCall | None = None,
    engine: Engine = PLAIN,
) -> Samples:
    """Algorithm 6: encode a sequence (line 2) and decode its registers on a new canvas (lines 3-9)."""
    with torch.no_grad():
        registers = encode(tokens)
    cost = Cost(encoder_calls=1)
    return decode(
        demask, canvas, decoding, registers=registers, streams=streams, spent=cost, on_call=on_call, engine=engine
    )
