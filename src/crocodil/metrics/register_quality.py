"""How close drawn or denoised registers come to encoded ones: PRDC and PSNR (App. E)."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from crocodil.processes.gaussian import Denoise, add_noise
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank

ROWS_AT_ONCE = 1024  # of a matrix of distances

Features = Float[Tensor, "N D"]


class PRDC(NamedTuple):
    """Naeem et al. (2020), "Reliable fidelity and diversity metrics for generative models", arXiv:2002.09797."""

    precision: float  # fakes that lie within a real neighbourhood
    recall: float  # reals that lie within a fake neighbourhood
    density: float  # real neighbourhoods around a fake, over how many a real one would be expected to have
    coverage: float  # real neighbourhoods that hold a fake


class RegisterPRDC(NamedTuple):
    """Over the registers of a bank, each a feature space of its own."""

    mean: PRDC
    spread: PRDC  # standard deviation from register to register


def prdc(real: Features, fake: Float[Tensor, "M D"], *, nearest: int = 5) -> PRDC:
    """A neighbourhood is the open ball around a sample that reaches its `nearest`-th neighbour of its own kind."""
    real, fake = real.double(), fake.double()  # float32 distances of close points are mostly rounding
    real_radii, fake_radii = _radii(real, nearest), _radii(fake, nearest)
    balls_around_fake = torch.zeros(len(fake), dtype=torch.float64, device=fake.device)
    num_recalled, num_covered = 0, 0
    for some, radii in zip(real.split(ROWS_AT_ONCE), real_radii.split(ROWS_AT_ONCE), strict=True):
        distances = torch.cdist(some, fake)
        balls_around_fake += (distances < radii[:, None]).sum(dim=0)
        num_recalled += int((distances < fake_radii).any(dim=1).sum())
        num_covered += int((distances.amin(dim=1) < radii).sum())
    return PRDC(
        precision=(balls_around_fake > 0).double().mean().item(),
        recall=num_recalled / len(real),
        density=balls_around_fake.mean().item() / nearest,
        coverage=num_covered / len(real),
    )


def prdc_per_register(
    real: Float[Tensor, "N K D"], fake: Float[Tensor, "M K D"], *, nearest: int = 5
) -> RegisterPRDC:
    """PRDC of every register position, averaged over positions (App. E)."""
    found = torch.tensor(
        [prdc(real[:, k], fake[:, k], nearest=nearest) for k in range(real.shape[1])], dtype=torch.float64
    )
    return RegisterPRDC(PRDC(*found.mean(dim=0).tolist()), PRDC(*found.std(dim=0, correction=0).tolist()))


def _radii(features: Features, nearest: int) -> Float[Tensor, "N"]:
    """How far the `nearest`-th neighbour of each sample is; the sample itself is the zeroth."""
    if not 1 <= nearest < len(features):
        raise ValueError(f"{len(features)} samples have no neighbour number {nearest}")
    distances = (torch.cdist(some, features) for some in features.split(ROWS_AT_ONCE))
    return torch.cat([some.topk(nearest + 1, largest=False).values[:, -1] for some in distances])


def psnr(squared_error: float, *, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in decibel.

    The paper names no peak. Normalised registers have entries of mean square 1, which is the peak here: predicting
    zero then gives 0 dB.
    """
    return 10 * math.log10(peak**2 / squared_error) if squared_error else math.inf


@torch.no_grad()
def squared_error_by_time(
    denoise: Denoise, registers: RegisterBank, times: Iterable[float], *, streams: Streams
) -> dict[float, float]:
    """Mean squared error of the predicted z_0 at each diffusion time, always under the same noise."""
    noise = streams.normal(*registers.shape[1:])
    found = {}
    for time in times:
        register_time = torch.full(registers.shape[:2], time, device=registers.device)
        predicted = denoise(add_noise(registers, register_time, noise), register_time)
        found[time] = F.mse_loss(predicted, registers).item()
    return found


def psnr_by_time(
    denoise: Denoise, registers: RegisterBank, times: Iterable[float], *, streams: Streams, peak: float = 1.0
) -> dict[float, float]:
    """PSNR(g_psi(z_t, t), z_0) as a function of t (App. E): of the mean squared error over all samples."""
    errors = squared_error_by_time(denoise, registers, times, streams=streams)
    return {time: psnr(error, peak=peak) for time, error in errors.items()}
