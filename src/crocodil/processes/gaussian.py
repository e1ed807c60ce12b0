"""Gaussian diffusion over registers: cosine schedule, forward noise, block offsets, DDIM (App. E).

Pure tensor mathematics. A bank is the tensor of all registers of a text. The denoiser is a function that predicts
the clean bank (x0-prediction). Every register has its own diffusion time, from 0 (clean) to 1 (pure noise), so
block offsets need no special case.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from crocodil.runtime.graphs import Play, eager
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, RegisterBank, RegisterTime


class Denoised(NamedTuple):
    """The output of a denoiser."""

    clean: RegisterBank  # the z_0 that a step moves to, guidance included
    prediction: RegisterBank  # what a self-conditioned denoiser is given at the next step


Denoise: TypeAlias = Callable[[RegisterBank, RegisterTime], RegisterBank]  # g_psi(z_s, s) -> z_0
# As DDIM calls it: with the registers, their time, the next time, the last prediction and any further inputs.
DenoiseAgain: TypeAlias = Callable[..., Denoised]
OnStep: TypeAlias = Callable[[int, int], None]  # how many steps are done, and how many there are
Offsets: TypeAlias = Float[Tensor, "K"]

SCHEDULE_SHIFT = 0.008  # Nichol and Dhariwal (2021), "Improved DDPM", Sec. 3.2


def signal_and_noise_level(time: RegisterTime) -> tuple[RegisterTime, RegisterTime]:
    """The cosine schedule: z_s = signal z_0 + noise e, with signal^2 + noise^2 = 1.

    signal = cos(a) / cos(a_0), where the angle `a` grows linearly in time from a_0 to pi/2. The noise level is
    computed as a product, because 1 - signal^2 loses all digits near time 0.
    """
    quarter = math.pi / 2
    first = quarter * SCHEDULE_SHIFT / (1 + SCHEDULE_SHIFT)
    angle = quarter * (time + SCHEDULE_SHIFT) / (1 + SCHEDULE_SHIFT)
    passed = quarter * time / (1 + SCHEDULE_SHIFT)  # angle - first, without the cancellation
    signal = angle.cos().clamp(min=0) / math.cos(first)
    noise = (passed.sin() * (angle + first).sin()).clamp(min=0).sqrt() / math.cos(first)
    return signal, noise


def time_of_noise(std: float) -> float:
    """Return the time at which z_s / signal is z_0 plus noise of this standard deviation."""
    if not 0 < std < math.inf:
        raise ValueError(f"the standard deviation of noise must be above 0 and finite, not {std}")
    quarter = math.pi / 2
    first = quarter * SCHEDULE_SHIFT / (1 + SCHEDULE_SHIFT)
    angle = math.acos(math.cos(first) / math.sqrt(1 + std**2))
    return angle / quarter * (1 + SCHEDULE_SHIFT) - SCHEDULE_SHIFT


def add_noise(registers: RegisterBank, time: RegisterTime, noise: RegisterBank) -> RegisterBank:
    """Forward(z_0, s): return z_s ~ q(z_s | z_0) for the standard normal `noise`."""
    signal_level, noise_level = signal_and_noise_level(time)
    return signal_level[..., None] * registers + noise_level[..., None] * noise


def block_offsets(block: Int[Tensor, "K"], *, largest: float) -> Offsets:
    """Return Delta_b, linear in each register's `block` index, from 0 to `largest` (App. E, decision D4)."""
    return largest * block / block[-1:].clamp(min=1)


def effective_time(base_time: PerSample, offsets: Offsets, *, shift: float = 1.0) -> RegisterTime:
    """Return t^(b) = clip(t + Delta_b): later blocks are noisier (App. E)."""
    return shifted_time((base_time[:, None] + offsets).clamp(0, 1), shift=shift)


def shifted_time(time: RegisterTime, *, shift: float) -> RegisterTime:
    """Return a t / (1 + (a - 1) t): a shift a above 1 makes more times noisy, a shift below 1 fewer.

    This is the timestep shift of Esser et al. (2024, arXiv:2403.03206) for larger images. Times 0 and 1 stay.
    """
    if not shift > 0:
        raise ValueError(f"time_shift must be positive (1: no shift), not {shift}")
    return time if shift == 1 else shift * time / (1 + (shift - 1) * time)


def sample_base_time(offsets: Offsets, *, first: float | None = None, streams: Streams) -> PerSample:
    """Sample base times uniformly from [-largest offset, 1]; every block then covers [0, 1] (decision D4).

    `first` is another start of this range.
    """
    start = -offsets.max() if first is None else first
    return start + (1 - start) * streams.uniform()


def last_base_time(largest_offset: float, *, noise_std: float = 0.0, shift: float = 1.0) -> float:
    """Return the base time at which z_s / signal has this noise in the last block, and less in the others.

    `largest_offset` is that of the last block.
    """
    time = time_of_noise(noise_std) if noise_std else 0.0  # 0: all blocks are clean
    return time / (shift - (shift - 1) * time) - largest_offset  # the inverse of `effective_time`


def base_time_at(share: float, *, end: float) -> float:
    """Return the base time at this fraction of the way from `end` to pure noise."""
    return end + (1 - end) * share


def ddim_times(num_steps: int, offsets: Offsets, *, start: float = 1.0, end: float | None = None) -> list[float]:
    """Return the base times of `num_steps` even steps, from pure noise until all blocks are clean.

    `start` and `end` replace the first and the last of these base times.
    """
    if num_steps < 1:
        raise ValueError(f"DDIM needs at least one step, not {num_steps}")
    end = -float(offsets.max()) if end is None else end
    return [start + (end - start) * step / num_steps for step in range(num_steps)] + [end]


def register_times_at(
    times: Sequence[float], offsets: Offsets, *, shift: float = 1.0, stops_early: bool = False
) -> Float[Tensor, "T K"]:
    """Return the time of each register at each of the base times, as `ddim` takes them.

    The last base time leaves all registers clean, unless the draw `stops_early`.
    """
    _check_times(times, offsets, stops_early=stops_early)
    return effective_time(torch.tensor(times), offsets, shift=shift)


def ddim(
    denoise: DenoiseAgain,
    noisy_registers: RegisterBank,
    register_times: Float[Tensor, "T K"],
    *,
    eta: float = 0.0,
    streams: Streams | None = None,
    inputs: Sequence[Tensor] = (),
    on_step: OnStep | None = None,
    play: Play = eager,
) -> RegisterBank:
    """Compute G_psi: DDIM with x0-prediction over falling times of each register (Song et al., 2021).

    The input is pure noise if the first times are 1, else registers noised to these times. The result is clean
    registers, or z_s at the last times.

    `eta` = 0 is deterministic, `eta` = 1 is DDPM's ancestral sampling, and with `eta` = inf all noise of a step is
    fresh, as in consistency models (Song et al., 2023); values above 0 draw noise from `streams`.
    `denoise` gets the registers, their times, the times of the next step, its previous prediction (zero at first)
    and `inputs`. `play` executes a step. Nothing is copied from the host: the times are on the device already.
    """
    if eta and streams is None:
        raise ValueError("eta > 0 draws fresh noise: pass streams")
    registers, prediction = noisy_registers, torch.zeros_like(noisy_registers)
    step, keys = DDIMStep(denoise, eta), streams.keys if eta and streams else None
    num_steps = len(register_times) - 1
    numbers = torch.arange(num_steps, device=registers.device)
    times = register_times[:, None].expand(-1, len(registers), -1)
    for done, (time, next_time, number) in enumerate(zip(times[:-1], times[1:], numbers, strict=True), start=1):
        registers, prediction = play(step, step, (registers, prediction, time, next_time, keys, number, *inputs))
        if on_step is not None:
            on_step(done, num_steps)
    return registers


def _check_times(times: Sequence[float], offsets: Offsets, *, stops_early: bool) -> None:
    if any(later >= earlier for earlier, later in pairwise(times)) or len(times) < 2:
        raise ValueError(f"the base times of DDIM must fall from step to step, these do not: {list(times)}")
    if offsets.max() + times[-1] > 0 and not stops_early:
        raise ValueError(f"base time {times[-1]} leaves noise: the last one must be {-offsets.max():.3g}")


@dataclass(frozen=True)
class DDIMStep:
    """One step of DDIM and its fresh noise, as a function of tensors: a GPU can record it as a graph."""

    denoise: DenoiseAgain
    eta: float

    def __call__(
        self,
        registers: RegisterBank,
        last_prediction: RegisterBank,
        time: RegisterTime,
        next_time: RegisterTime,
        keys: Int[Tensor, "B"] | None,  # of the random streams; None without fresh noise
        number: Int[Tensor, ""],
        *inputs: Tensor,
    ) -> tuple[RegisterBank, RegisterBank]:
        fresh = None
        if keys is not None:
            fresh = Streams(keys).at("ddim", number.expand_as(keys)).normal(*registers.shape[1:])
        clean, prediction = self.denoise(registers, time, next_time, last_prediction, *inputs)
        return ddim_step(registers, clean, time, next_time, eta=self.eta, fresh=fresh), prediction


def first_part(time: RegisterTime, middle: RegisterTime, end: RegisterTime) -> RegisterTime:
    """Return the weight w of the first of two DDIM steps, from `time` to `middle` and on to `end`.

    One step with the prediction w first + (1 - w) second ends where the two steps do: with l = signal / noise, a
    DDIM step adds (l_end - l_time) prediction to z / noise, so w = (l_middle - l_time) / (l_end - l_time). A
    register that the second step does not move has w = 1.
    """
    moves = end < middle
    (signal, noise), (middle_signal, middle_noise), (end_signal, end_noise) = map(
        signal_and_noise_level, (time, middle, end)
    )
    first = (middle_signal * noise - signal * middle_noise) * end_noise
    whole = (end_signal * noise - signal * end_noise) * middle_noise
    return (first / whole.where(moves, 1)).where(moves, 1)


def ddim_step(
    noisy_registers: RegisterBank,
    clean: RegisterBank,
    time: RegisterTime,
    next_time: RegisterTime,
    *,
    eta: float = 0.0,
    fresh: RegisterBank | None = None,
) -> RegisterBank:
    """Step from z_t and the predicted z_0 to z_s; `eta` = inf: noise z_0 anew.

    A register whose time does not change is not changed (decision D4). Otherwise a clean register would divide by
    its noise level 0 and give NaN.
    """
    moves = (next_time < time)[..., None]
    if math.isinf(eta):
        assert fresh is not None
        return torch.where(moves, add_noise(clean, next_time, fresh), noisy_registers)
    signal, noise = (level[..., None] for level in signal_and_noise_level(time))
    next_signal, next_noise = (level[..., None] for level in signal_and_noise_level(next_time))
    safe_noise, safe_signal = noise.where(moves, 1), next_signal.where(moves, 1)
    direction = (noisy_registers - signal * clean) / safe_noise
    renewed = eta * (next_noise / safe_noise) * (1 - (signal / safe_signal) ** 2).clamp(min=0).sqrt()
    kept = (next_noise**2 - renewed**2).clamp(min=0).sqrt()
    stepped = next_signal * clean + kept * direction
    if fresh is not None:
        stepped = stepped + renewed * fresh
    return torch.where(moves, stepped, noisy_registers)
