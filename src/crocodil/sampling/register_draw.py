"""Draw registers from a prior: z_0 = G_psi(eps), App. E.

A draw is a beginning (noise), the steps of DDIM and an end. Each of them is a function of tensors that a GPU can
record as a graph; the random numbers are drawn inside.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.processes.gaussian import (
    DenoiseAgain,
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
class Prior:
    """A prior as a draw uses it: its denoiser g_psi(z_s, s), the banks that it models, and how it was trained."""

    denoiser: Callable[..., RegisterBank]
    shape: tuple[int, int]  # the number of registers and their width
    self_conditioned: bool = False
    flow_map: bool = False  # distilled: one call per step, for any number of steps (decision D51)
    fresh_noise: bool = False  # distilled by matching: all noise of a step is fresh (D80)
    unstandardise: Callable[[RegisterBank], RegisterBank] = identity  # to the units of the encoder (D40)
    weak: Callable[..., RegisterBank] | None = None  # the weak prior, for autoguidance (D43)

    @classmethod
    def of(cls, denoiser: RegisterDenoiser, weak: RegisterDenoiser | None = None) -> "Prior":
        config = denoiser.config
        return cls(
            denoiser,
            (config.num_registers, config.register_width),
            config.self_conditioned,
            config.flow_map,
            config.fresh_noise,
            denoiser.unstandardise,
            weak,
        )

    def check(self, drawing: Drawing) -> None:
        """Refuse kinds of guidance that this prior does not support."""
        is_distilled = self.flow_map or self.fresh_noise
        if is_distilled and (drawing.eta or drawing.calls_per_step > 1):
            raise ValueError(
                "this prior is distilled, with its guidance inside: use eta 0, pag_scale 0, self_cond_scale 1 and "
                "autoguidance 1"
            )
        if drawing.self_cond_scale != 1 and not self.self_conditioned:
            raise ValueError("self_cond_scale needs a self-conditioned prior: use 1 with this one")
        if drawing.autoguidance != 1 and self.weak is None:
            raise ValueError("autoguidance needs a weak prior, and this model has none: use 1")

    def guided(self, drawing: Drawing, dropped_scales: tuple[float, ...] = ()) -> DenoiseAgain:
        """Return the denoiser with all its guidance, as `ddim` calls it."""
        if self.flow_map:
            return FlowMap(self.denoiser)
        scales = (drawing.pag_scale, self.self_conditioned, drawing.self_cond_scale)
        guided = GuidedDenoiser(self.denoiser, *scales, self.weak, drawing.autoguidance)
        return DualGuided(guided, dropped_scales) if dropped_scales else guided


@dataclass(frozen=True)
class Conditions:
    """What the cross-attention of a draw reads, as keys and values."""

    kv: Tensor | None = None
    weak_kv: Tensor | None = None  # the same for the weak prior
    # A guidance scale and the keys and values without the condition, and the same for the prompt (D57).
    dropped: Sequence[tuple[float, Tensor]] = field(default=(), kw_only=True)

    def inputs(self) -> list[Tensor]:
        """Return all that are there, in the order in which denoisers take them."""
        return [kv for kv in (self.kv, self.weak_kv, *(kv for _, kv in self.dropped)) if kv is not None]


UNCONDITIONAL = Conditions()


@dataclass(frozen=True)
class Schedule:
    """The times of a draw and the levels of noise at its end: the same in all draws of a prior and a `Drawing`."""

    register_times: Float[Tensor, "T K"]
    stop: EarlyStop | None  # None: the draw ends with clean registers

    @classmethod
    def of(
        cls, prior: Prior, drawing: Drawing, *, num_steps: int, replaces: bool = False, device: torch.device
    ) -> "Schedule":
        """Return the schedule of draws from a prior. If they replace registers, they start at `refresh_from`."""
        offsets = block_offsets(block_index(prior.shape[0]), largest=drawing.largest_offset)
        stop = None
        if drawing.early_stop:
            scale = scale_of(prior.unstandardise, torch.empty(1, *prior.shape, device=device))
            stop = EarlyStop.of(drawing, offsets, scale)
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
    prior: Prior,
    drawing: Drawing,
    *,
    num_steps: int,
    conditions: Conditions = UNCONDITIONAL,
    replaced: RegisterBank | None = None,
    schedule: Schedule | None = None,
    streams: Streams,
    on_step: OnStep | None = None,
    engine: Engine = PLAIN,
) -> Draw:
    """Draw z_0 = G_psi(eps) and project it to the sphere that the demasker was trained on (decision D20).

    `replaced` are the old registers in the units of the prior: with `drawing.refresh_from` below 1, the draw
    starts from them with noise added, not from pure noise (D50). With `drawing.early_stop` it ends with noisy
    registers (D63). `schedule` is computed unless it is given.
    """
    prior.check(drawing)
    start = replaced if drawing.refresh_from < 1 else None
    if schedule is None:
        schedule = Schedule.of(
            prior, drawing, num_steps=num_steps, replaces=start is not None, device=streams.keys.device
        )
    begin = Begin(prior.shape)
    registers = engine.play(begin, begin, (streams.keys,))
    if start is not None:
        if start.shape[1:] != prior.shape:
            raise ValueError("refresh_from below 1 needs two priors of equally many registers: use 1")
        registers = _noised(start, registers, schedule)
    registers = ddim(
        prior.guided(drawing, tuple(scale for scale, _ in conditions.dropped)),
        registers,
        schedule.register_times,
        eta=math.inf if prior.fresh_noise else drawing.eta,
        streams=streams,
        inputs=conditions.inputs(),
        on_step=on_step,
        play=engine.play,
    )
    levels = () if schedule.stop is None else schedule.stop.levels
    end = End(prior.unstandardise, 0.0 if schedule.stop else drawing.register_noise)
    registers = engine.play(end, end, (registers, streams.keys, *levels))
    check_finite(registers, "the prior's registers")
    calls_per_step = drawing.calls_per_step + len(conditions.dropped)
    return Draw(registers, Cost(denoiser_calls=num_steps * calls_per_step))


@dataclass(frozen=True)
class Begin:
    """The beginning of a draw: eps."""

    shape: tuple[int, int]

    def __call__(self, keys: Int[Tensor, "B"]) -> RegisterBank:
        return Streams(keys).at("noise").normal(*self.shape)


@dataclass(frozen=True)
class End:
    """The end of a draw: project the registers to the sphere, and add noise.

    After an early stop, `levels` say how much noise is added; otherwise `noise_std`, which may be 0, says it.
    """

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
