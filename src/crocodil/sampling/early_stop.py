"""Draws that stop early: z_s / signal is a bank of registers with noise, as the demasker reads it (decision D63).

Pure tensor mathematics.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.processes.gaussian import Offsets, effective_time, last_base_time, signal_and_noise_level
from crocodil.processes.registers import perturb
from crocodil.sampling.configs import Drawing
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, RegisterTime


@dataclass(frozen=True)
class EarlyStop:
    """Stop a draw where registers have noise of `noise_std`, without waiting for clean ones.

    All registers have one clock, so that the denoiser sees the times of its training. At the end the noisiest
    coordinate has `noise_std`. Earlier blocks (decision D4), and coordinates of a smaller `scale` (D40), have less
    and get the rest as fresh noise.
    """

    noise_std: float  # above 0, in the units of the encoder
    offsets: Offsets
    shift: float
    scale: Float[Tensor, "1 K D"]  # of a coordinate: the encoder's units in one of the prior's

    @classmethod
    def of(cls, drawing: Drawing, offsets: Offsets, scale: Float[Tensor, "1 K D"]) -> "EarlyStop":
        return cls(drawing.register_noise, offsets, drawing.time_shift, scale)

    @cached_property
    def base_time(self) -> float:
        """The base time at which a draw stops."""
        return last_base_time(self.offsets, noise_std=self.noise_std / self.scale.max().item(), shift=self.shift)

    def over_signal(self, stopped: RegisterBank) -> RegisterBank:
        """Return z_s / signal: clean registers plus noise, in the units of the prior."""
        signal, _ = self._levels
        return stopped / signal

    def with_noise(self, registers: RegisterBank, *, streams: Streams) -> RegisterBank:
        """Return registers with noise of `noise_std` in all coordinates, given z_s / signal on the sphere.

        Decision D20 for noisy registers: those on the sphere get the length sqrt(D (1 + std^2)) by their noise.
        """
        signal, noise = self._levels
        std = noise / signal * self.scale
        lacking = self.noise_std * (1 - (std / std.max().clamp(min=1e-12)).square()).sqrt()
        longer = registers * (1 + std.square().mean(dim=-1, keepdim=True)).sqrt().to(registers.dtype)
        return perturb(longer, std=lacking, streams=streams)

    def noised(self, replaced: RegisterBank, time: RegisterTime, noise: RegisterBank) -> RegisterBank:
        """Forward(z, s) for registers, in the units of the prior, that have the noise of such a draw already."""
        signal, level = (level[..., None] for level in signal_and_noise_level(time))
        present = signal * self.noise_std / self.scale
        return signal * replaced + (level.square() - present.square()).clamp(min=0).sqrt() * noise

    @cached_property
    def _levels(self) -> tuple[Float[Tensor, "1 K 1"], Float[Tensor, "1 K 1"]]:
        base_time = torch.tensor([self.base_time], device=self.scale.device)
        time = effective_time(base_time, self.offsets.to(self.scale.device), shift=self.shift)
        signal, noise = signal_and_noise_level(time)
        return signal[..., None], noise[..., None]


def identity(registers: RegisterBank) -> RegisterBank:
    """The units of a prior that is not standardised."""
    return registers


def scale_of(unstandardise: Callable[[RegisterBank], RegisterBank], bank: RegisterBank) -> Float[Tensor, "1 K D"]:
    """Return the factor of each coordinate in a linear map of banks like this one."""
    ones = torch.ones_like(bank[:1])
    return unstandardise(ones) - unstandardise(torch.zeros_like(ones))
