"""The register rate: the nats that a prior needs for the registers of a text, as an encoder loss (decision D71).

An encoder that is trained for reconstruction alone fills its registers with details of single tokens, which no
prior can predict. With the rate as a second loss, it keeps what several tokens share.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.models.register_denoiser import Condition, RegisterDenoiser
from crocodil.objectives.priors import PriorObjective, denoise, repeated
from crocodil.processes.gaussian import add_noise, time_of_snr
from crocodil.runtime.config import Amount, Count, Positive, Share, Weight, config
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank


@config
class RateObjective:
    """Options of the register rate in stage guided. The paper trains its priors later, on a fixed encoder."""

    trains_prior: bool = False  # train the conditional prior together with encoder and demasker
    weight: Weight = 0.0  # of the gradient that the encoder gets from the rate
    warmup_steps: Amount = 0  # the weight grows from 0 over them; else a new encoder would empty its registers
    noise_std: Positive = 1.0  # noise on the registers whose rate is measured; finer details cost nothing
    num_draws: Count = 4  # noisy banks per text and step
    visible_rate: Share = 0.0  # share of the texts of which the prior sees a part, as in Algorithm 4

    def __post_init__(self) -> None:
        if self.weight and not self.trains_prior:
            raise ValueError("rate_objective.weight needs a prior: set rate_objective.trains_prior=true")

    def at(self, step: int) -> "RateObjective":
        """Return the objective of a step, with the weight that the warm-up has reached."""
        if step >= self.warmup_steps:
            return self
        return replace(self, weight=self.weight * step / self.warmup_steps)


def register_rate(
    denoiser: RegisterDenoiser,
    registers: RegisterBank,
    condition: Condition,
    *,
    objective: RateObjective,
    prior_objective: PriorObjective,
    streams: Streams,
) -> Float[Tensor, "B"]:
    """Return an unbiased estimate of KL(q(z | x) || p(z)) in nats per text, for z = registers + noise_std e.

    It is the integral of |z_0 - g(z_s, s)|^2 / 2 over the signal-to-noise ratio, from 0 to 1 / noise_std^2 (Kingma
    et al., 2021, "Variational diffusion models", Eq. 18). `metrics.likelihood.register_nats` sums it over many
    steps. The denoiser gets the whole gradient, the encoder `objective.weight` of it. With one condition per text,
    p is the prior given that condition.
    """
    count = objective.num_draws
    if len(condition) > 1:
        condition = condition.repeat_interleave(count, dim=0)
    banks = scale_gradient(registers.float(), objective.weight).repeat_interleave(count, dim=0)
    draw = torch.arange(len(banks), device=banks.device) % count
    draw_streams = repeated(streams, count)
    part = (draw + streams.at("part").uniform().repeat_interleave(count)) / count  # stratified over the draws
    largest_snr = objective.noise_std**-2
    time = time_of_snr(part * largest_snr)[:, None].expand(banks.shape[:2])
    noisy = add_noise(banks, time, draw_streams.at("noise").normal(*banks.shape[1:]))
    squared_error = (banks - denoise(denoiser, noisy, time, prior_objective, condition)).square().sum(dim=(1, 2))
    return largest_snr / 2 * squared_error.unflatten(0, (len(registers), count)).mean(dim=1)


def scale_gradient(values: Tensor, scale: float) -> Tensor:
    """Return the values unchanged, and multiply their gradient by `scale`."""
    fixed = values.detach()
    return fixed + scale * (values - fixed) if scale else fixed
