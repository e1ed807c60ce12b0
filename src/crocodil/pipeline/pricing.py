"""Convert calls to NFE or FLOPs: the size of each network, and the number of positions it runs on."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from crocodil.models.causal_head import CausalHead
from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.sampling.cost import Cost, Size, num_parameters


@dataclass(frozen=True)
class Pricing:
    """The sizes of a model's networks. If the two priors differ in size, the larger one counts."""

    demasker: Demasker
    encoder: RegisterEncoder
    priors: tuple[RegisterDenoiser | None, ...]
    head: CausalHead | None = None
    has_base: bool = False  # if not, plain masked diffusion is the demasker without registers

    @cached_property
    def prior(self) -> RegisterDenoiser | None:
        return max((prior for prior in self.priors if prior is not None), key=num_parameters, default=None)

    def nfe(self, cost: Cost) -> float:
        """Return the paper's NFE: denoiser and head count by their parameters, the encoder not at all."""
        counts = self._counts
        return cost.nfe(
            demasker_parameters=counts.demasker, denoiser_parameters=counts.prior, head_parameters=counts.head
        )

    def flop_nfe(self, cost: Cost, *, length: int, num_registers: int | None) -> float:
        """Return the cost in units of one call of the base on the text.

        `num_registers` registers stand before the text, between START and END; None means no guidance.
        """
        counts, prior = self._counts, self.prior
        base = Size(counts.base, length)
        has_no_slots = num_registers is None and self.has_base
        with_slots = Size(counts.demasker, length + 2 + (num_registers or 0))
        return cost.flop_nfe(
            unit=base,
            demasker=base if has_no_slots else with_slots,
            denoiser=Size(counts.prior, 0 if prior is None else prior.config.num_positions),
            encoder=Size(counts.encoder, length + self.encoder.config.num_registers),
            head=Size(counts.head, length),
        )

    @cached_property
    def _counts(self) -> "_Counts":
        """The numbers of parameters: counting takes time, and every sample may have another cost."""
        backbone, networks = self.demasker.backbone, (self.demasker, self.encoder, self.prior, self.head)
        return _Counts(num_parameters(backbone), *map(num_parameters, networks))


class _Counts(NamedTuple):
    base: int
    demasker: int
    encoder: int
    prior: int
    head: int


def mean_price(price: Callable[[Cost], float], costs: Sequence[Cost]) -> float:
    """Return the mean price of samples. Equal costs are priced once, since counting parameters takes time."""
    return sum(times * price(cost) for cost, times in Counter(costs).items()) / len(costs)
