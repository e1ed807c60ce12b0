"""How close drawn or denoised registers are to encoded ones: PRDC and PSNR (App. E)."""

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

ROWS_PER_BATCH = 1024  # of a matrix of distances

Features = Float[Tensor, "N D"]


class PRDC(NamedTuple):
    """Naeem et al. (2020), "Reliable fidelity and diversity metrics for generative models", arXiv:2002.09797."""

    precision: float  # the share of fake samples inside a real neighbourhood
    recall: float  # the share of real samples inside a fake neighbourhood
    density: float  # real neighbourhoods around a fake sample, relative to the number expected for a real one
    coverage: float  # the share of real neighbourhoods that contain a fake sample


class RegisterPRDC(NamedTuple):
    """PRDC over the registers of a bank; each register position is a separate feature space."""

    mean: PRDC
    spread: PRDC  # standard deviation from register to register


def prdc(real: Features, fake: Float[Tensor, "M D"], *, nearest: int = 5) -> PRDC:
    """Return PRDC. A sample's neighbourhood is the open ball up to its `nearest`-th neighbour in the same set."""
    real, fake = (
        real.double(),
        fake.double(),
    )  # float32 distances between close points are mostly rounding error
    real_radii, fake_radii = _radii(real, nearest), _radii(fake, nearest)
    balls_around_fake = torch.zeros(len(fake), dtype=torch.float64, device=fake.device)
    num_recalled, num_covered = 0, 0
    for batch, radii in zip(real.split(ROWS_PER_BATCH), real_radii.split(ROWS_PER_BATCH), strict=True):
        distances = torch.cdist(batch, fake)
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
    """Return PRDC averaged over register positions (App. E)."""
    values = torch.tensor(
        [prdc(real[:, k], fake[:, k], nearest=nearest) for k in range(real.shape[1])], dtype=torch.float64
    )
    return RegisterPRDC(PRDC(*values.mean(dim=0).tolist()), PRDC(*values.std(dim=0, correction=0).tolist()))


def _radii(features: Features, nearest: int) -> Float[Tensor, "N"]:
    """Return the distance of each sample to its `nearest`-th neighbour; the sample itself is the zeroth."""
    if not 1 <= nearest < len(features):
        raise ValueError(f"{len(features)} samples have no neighbour number {nearest}")
    distances = (torch.cdist(batch, features) for batch in features.split(ROWS_PER_BATCH))
    return torch.cat([batch.topk(nearest + 1, largest=False).values[:, -1] for batch in distances])


def psnr(squared_error: float, *, peak: float = 1.0) -> float:
    """Return the peak signal-to-noise ratio in decibels.

    The paper does not state the peak. It is 1 here, the root mean square of the entries of normalised registers:
    predicting zero then gives 0 dB.
    """
    return 10 * math.log10(peak**2 / squared_error) if squared_error else math.inf


@torch.no_grad()
def squared_error_by_time(
    denoise: Denoise, registers: RegisterBank, times: Iterable[float], *, streams: Streams
) -> dict[float, float]:
    """Return the mean squared error of the predicted z_0 at each diffusion time, with the same noise each time."""
    noise = streams.normal(*registers.shape[1:])
    errors = {}
    for time in times:
        register_time = torch.full(registers.shape[:2], time, device=registers.device)
        predicted = denoise(add_noise(registers, register_time, noise), register_time)
        errors[time] = F.mse_loss(predicted, registers).item()
    return errors
