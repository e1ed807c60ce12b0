"""Draw registers from a prior: z_0 = G_psi(eps), App. E.

A draw is a beginning (noise), the steps of DDIM and an end. Each of them is a function of tensors that a GPU can
record as a graph; the random numbers are drawn inside. The denoiser is passed as a function.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from crocodil.processes.gaussian import (
    OnStep,
    add_noise,
    base_time_at,
    block_offsets,
    ddim,
    ddim_times,
    last_base_time,
    register_times_at,
)
from crocodil.processes.registers import block_index, normalise, perturb
from crocodil.runtime.devices import check_finite
from crocodil.sampling.call import PLAIN, Engine
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.early_stop import EarlyStop, StopLevels, identity, scale_of
from crocodil.sampling.guidance import DualGuided, FlowMap, GuidedDenoiser
from crocodil.sampling.state import Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank


@dataclass(frozen=True)
class Schedule:
    """The times of a draw and the levels of noise at its end: the same in all draws of a prior and a `Drawing`."""

    register_times: Float[Tensor, "T K"]
    stop: EarlyStop | None  # None: the draw ends with clean registers

    @classmethod
    def of(
        cls,
        drawing: Drawing,
        *,
        shape: tuple[int, int],
        num_steps: int,
        replaces: bool = False,
        unstandardise: Callable[[RegisterBank], RegisterBank] = identity,
        device: torch.device,
    ) -> "Schedule":
        """Return the schedule for banks of a shape. If it `replaces` registers, it starts at `refresh_from`."""
        offsets = block_offsets(block_index(shape[0]), largest=drawing.largest_offset)
        stop = None
        if drawing.early_stop:
            stop = EarlyStop.of(drawing, offsets, scale_of(unstandardise, torch.empty(1, *shape, device=device)))
        end = last_base_time(float(offsets.max())) if stop is None else stop.base_time
        start = base_time_at(drawing.refresh_from, end=end) if replaces else 1.0
        times = register_times_at(
            ddim_times(num_steps, offsets, start=start, end=end),
            offsets,
            shift=drawing.time_shift,
            stops_early=drawing.early_stop,
        )
        return cls(times.to(device), stop)


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
    schedule: Schedule | None = None,
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
    from pure noise (D50). With `drawing.early_stop` the draw ends with noisy registers (D63). `schedule` is
    computed unless it is given.
    """
    is_distilled = flow_map or fresh_noise
    _check_drawing(
        drawing, self_conditioned=self_conditioned, is_distilled=is_distilled, has_weak=weak is not None
    )
    replaces = replaced is not None and drawing.refresh_from < 1
    if schedule is None:
        schedule = Schedule.of(
            drawing,
            shape=shape,
            num_steps=num_steps,
            replaces=replaces,
            unstandardise=unstandardise,
            device=streams.keys.device,
        )
    begin = Begin(shape)
    registers = engine.play(begin, begin, (streams.keys,))
    if replaces and replaced is not None:
        if replaced.shape[1:] != shape:
            raise ValueError("refresh_from below 1 needs two priors of equally many registers: use 1")
        registers = _noised(replaced, registers, schedule)
    scales = (drawing.pag_scale, self_conditioned, drawing.self_cond_scale)
    guided = GuidedDenoiser(denoiser, *scales, weak, drawing.autoguidance)
    dual = DualGuided(guided, tuple(scale for scale, _ in dropped)) if dropped else guided
    registers = ddim(
        FlowMap(denoiser) if flow_map else dual,
        registers,
        schedule.register_times,
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
    levels = () if schedule.stop is None else schedule.stop.levels
    end = End(unstandardise, 0.0 if schedule.stop else drawing.register_noise)
    registers = engine.play(end, end, (registers, streams.keys, *levels))
    check_finite(registers, "the prior's registers")
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


@dataclass(frozen=True)
class Begin:
    """The beginning of a draw: eps."""

    shape: tuple[int, int]

    def __call__(self, keys: Int[Tensor, "B"]) -> RegisterBank:
        return Streams(keys).at("noise").normal(*self.shape)


@dataclass(frozen=True)
class End:
    """The end of a draw: registers on the sphere, with noise of a `noise_std` above 0 or that of an early stop."""

    unstandardise: Callable[[RegisterBank], RegisterBank]
    noise_std: float

    def __call__(self, registers: RegisterBank, keys: Int[Tensor, "B"], *levels: Tensor) -> RegisterBank:
        streams = Streams(keys).at("register noise")
        if levels:
            return StopLevels(*levels).finish(registers, self.unstandardise, streams=streams)
        registers = normalise(self.unstandardise(registers))
        return perturb(registers, std=self.noise_std, streams=streams) if self.noise_std else registers


def _noised(replaced: RegisterBank, noise: RegisterBank, schedule: Schedule) -> RegisterBank:
    """Return the old registers with the noise of the first time, at which a refresh starts (decision D50)."""
    time = schedule.register_times[0].expand(len(noise), -1)
    return (
        add_noise(replaced, time, noise) if schedule.stop is None else schedule.stop.noised(replaced, time, noise)
    )
