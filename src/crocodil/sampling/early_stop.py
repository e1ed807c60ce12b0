"""Stop a draw of registers early, at noisy registers (decision D63).

At time s, z_s / signal is the clean registers plus noise. The demasker is trained on such registers. Pure tensor
mathematics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.processes.gaussian import (
    Offsets,
    base_time_at,
    effective_time,
    last_base_time,
    signal_and_noise_level,
)
from crocodil.processes.registers import normalise, perturb
from crocodil.sampling.configs import Drawing
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, RegisterTime


@dataclass(frozen=True)
class EarlyStop:
    """Stop a draw when its registers have noise of `noise_std`, before they are clean.

    All registers share one base time, so that the denoiser sees the same times as in training. At the end the
    noisiest coordinate has noise of `noise_std`. Earlier blocks (decision D4) and coordinates of a smaller `scale`
    (D40) have less noise, and get the rest as fresh noise.
    """

    noise_std: float  # above 0, in the units of the encoder
    offsets: Offsets
    shift: float
    scale: Float[Tensor, "1 K D"]  # encoder units per prior unit, for each coordinate

    @classmethod
    def of(cls, drawing: Drawing, offsets: Offsets, scale: Float[Tensor, "1 K D"]) -> "EarlyStop":
        return cls(drawing.register_noise, offsets, drawing.time_shift, scale)

    @cached_property
    def base_time(self) -> float:
        """The base time at which a draw stops."""
        noise_std = self.noise_std / self.scale.max().item()
        return last_base_time(float(self.offsets.max()), noise_std=noise_std, shift=self.shift)

    @cached_property
    def levels(self) -> "StopLevels":
        """What the end of a draw needs, on the device of `scale`."""
        base_time = torch.tensor([self.base_time], device=self.scale.device)
        time = effective_time(base_time, self.offsets.to(self.scale.device), shift=self.shift)
        signal, noise = (level[..., None] for level in signal_and_noise_level(time))
        std = noise / signal * self.scale
        return StopLevels(
            signal,
            longer=(1 + std.square().mean(dim=-1, keepdim=True)).sqrt(),
            lacking=self.noise_std * (1 - (std / std.max().clamp(min=1e-12)).square()).sqrt(),
        )

    def noised(self, replaced: RegisterBank, time: RegisterTime, noise: RegisterBank) -> RegisterBank:
        """Forward(z, s) for registers that already have the noise of an early stop, in the units of the prior."""
        signal, level = (level[..., None] for level in signal_and_noise_level(time))
        present = signal * self.noise_std / self.scale
        return signal * replaced + (level.square() - present.square()).clamp(min=0).sqrt() * noise


class StopLevels(NamedTuple):
    """The levels of signal and noise at an early stop, as tensors: inputs of `finish`."""

    signal: Float[Tensor, "1 K 1"]
    longer: Float[Tensor, "1 K 1"]  # the norm of clean registers with their noise is sqrt(D) times this
    lacking: Float[Tensor, "1 K D"]  # standard deviation of the fresh noise that is added

    def finish(
        self,
        stopped: RegisterBank,
        unstandardise: Callable[[RegisterBank], RegisterBank],
        *,
        streams: Streams,
    ) -> RegisterBank:
        """Return registers with noise of `noise_std` in all coordinates, given z_s.

        z_s / signal is clean registers plus noise, in the units of the prior. Clean registers are projected to the
        sphere (decision D20). With their noise, they have norm sqrt(D (1 + std^2)).
        """
        registers = normalise(unstandardise(stopped / self.signal))
        return perturb(registers * self.longer.to(registers.dtype), std=self.lacking, streams=streams)


def least_noise_read(drawing: Drawing, *, refreshes: bool = True) -> float:
    """Return the least noise that a step of a draw or a refresh reads, in the last block.

    It is more than the noise at which the draw stops: the last step reads more than it returns.
    """
    drawn = _noise_of_last_step(drawing, 1 / drawing.prior_steps)
    if not refreshes:
        return drawn
    return min(drawn, _noise_of_last_step(drawing, drawing.refresh_from / drawing.refresh_steps))


def _noise_of_last_step(drawing: Drawing, share: float) -> float:
    """Return the noise at a share of the way from the end of a draw to pure noise."""
    largest, shift = drawing.largest_offset, drawing.time_shift
    end = last_base_time(largest, noise_std=drawing.register_noise, shift=shift)
    time = torch.tensor([base_time_at(share, end=end)])
    signal, noise = signal_and_noise_level(effective_time(time, torch.tensor([largest]), shift=shift))
    return (noise / signal).item()


def identity(registers: RegisterBank) -> RegisterBank:
    """Return registers unchanged: the `unstandardise` of a prior that is not standardised."""
    return registers


def scale_of(unstandardise: Callable[[RegisterBank], RegisterBank], bank: RegisterBank) -> Float[Tensor, "1 K D"]:
    """Return the factor of each coordinate in a linear map of banks like this one."""
    ones = torch.ones_like(bank[:1])
    return unstandardise(ones) - unstandardise(torch.zeros_like(ones))
