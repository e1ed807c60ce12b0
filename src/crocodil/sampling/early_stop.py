"""Stop a draw of registers early, at noisy registers (decision D63).

At time s, z_s / signal is the clean registers plus noise. The demasker is trained on such registers. Pure tensor
mathematics.
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
        return last_base_time(self.offsets, noise_std=self.noise_std / self.scale.max().item(), shift=self.shift)

    def over_signal(self, stopped: RegisterBank) -> RegisterBank:
        """Return z_s / signal: clean registers plus noise, in the units of the prior."""
        signal, _ = self._levels
        return stopped / signal

    def with_noise(self, registers: RegisterBank, *, streams: Streams) -> RegisterBank:
        """Return registers with noise of `noise_std` in all coordinates, given z_s / signal on the sphere.

        Clean registers are projected to the sphere (decision D20). With their noise, they have norm
        sqrt(D (1 + std^2)).
        """
        signal, noise = self._levels
        std = noise / signal * self.scale
        lacking = self.noise_std * (1 - (std / std.max().clamp(min=1e-12)).square()).sqrt()
        longer = registers * (1 + std.square().mean(dim=-1, keepdim=True)).sqrt().to(registers.dtype)
        return perturb(longer, std=lacking, streams=streams)

    def noised(self, replaced: RegisterBank, time: RegisterTime, noise: RegisterBank) -> RegisterBank:
        """Forward(z, s) for registers that already have the noise of an early stop, in the units of the prior."""
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
    """Return registers unchanged: the `unstandardise` of a prior that is not standardised."""
    return registers


def scale_of(unstandardise: Callable[[RegisterBank], RegisterBank], bank: RegisterBank) -> Float[Tensor, "1 K D"]:
    """Return the factor of each coordinate in a linear map of banks like this one."""
    ones = torch.ones_like(bank[:1])
    return unstandardise(ones) - unstandardise(torch.zeros_like(ones))
