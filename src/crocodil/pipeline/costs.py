"""What calls cost in the units of `Cost`: which network a call was of, and over how many positions it ran.

Pure functions of networks and counts; what was sampled, and how, is not known here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from crocodil.cost import Cost, Size, num_parameters
from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder


def largest(priors: Iterable[RegisterDenoiser | None]) -> RegisterDenoiser | None:
    return max((prior for prior in priors if prior is not None), key=num_parameters, default=None)


def nfe(cost: Cost, *, demasker: Demasker, prior: RegisterDenoiser | None) -> float:
    """In the paper's unit: a call of the prior counts by its parameters, one of the encoder not at all."""
    return cost.nfe(demasker_parameters=num_parameters(demasker), denoiser_parameters=num_parameters(prior))


def flop_nfe(
    cost: Cost,
    *,
    demasker: Demasker,
    prior: RegisterDenoiser | None,
    encoder: RegisterEncoder,
    length: int,
    prefix: int | None,
) -> float:
    """In calls of the base over the bare text.

    `prefix` is how many registers stood before the text, between START and END; None: not even these two.
    """
    base = Size(num_parameters(demasker.backbone), length)
    return cost.flop_nfe(
        unit=base,
        demasker=base if prefix is None else Size(num_parameters(demasker), length + 2 + prefix),
        denoiser=Size(num_parameters(prior), 0 if prior is None else prior.config.num_registers),
        encoder=Size(num_parameters(encoder), length + encoder.config.num_registers),
    )


def mean(value: Callable[[Cost], float], costs: Sequence[Cost]) -> float:
    """Most samples cost the same, and to count parameters takes a while."""
    return sum(times * value(cost) for cost, times in Counter(costs).items()) / len(costs)
