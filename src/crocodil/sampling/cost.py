"""What sampling costs: raw calls, the paper's NFE, and calls weighted by their arithmetic."""

from dataclasses import astuple, dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from crocodil.shapes import TokenIds


def num_parameters(network: nn.Module | None) -> int:
    """What a call of a network counts by; 0 for one that is not there."""
    return 0 if network is None else sum(parameter.numel() for parameter in network.parameters())


class Size(NamedTuple):
    """A network at work: how many parameters it has, over how many positions it runs."""

    parameters: int
    positions: int

    @property
    def work(self) -> float:
        return float(self.parameters) * self.positions


@dataclass(frozen=True)
class Cost:
    """Raw calls of each network."""

    demasker_calls: int = 0
    denoiser_calls: int = 0
    encoder_calls: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.demasker_calls + other.demasker_calls,
            self.denoiser_calls + other.denoiser_calls,
            self.encoder_calls + other.encoder_calls,
        )

    def nfe(self, *, demasker_parameters: float, denoiser_parameters: float) -> float:
        """The paper's unit: demasker calls, a denoiser call counting by its share of parameters.

        128 calls of 0.4B beside 8B are 6.4 ("about 6"), 32 are 1.6 ("< 2"). Encoder calls do not count.
        """
        return self.demasker_calls + self.denoiser_calls * denoiser_parameters / demasker_parameters

    def flop_nfe(self, *, unit: Size, demasker: Size, denoiser: Size, encoder: Size) -> float:
        """All calls weighted by parameters x positions, in units of one call of `unit`.

        With the base demasker over the bare text as unit, the prefix and the encoder are paid for too.
        """
        work = (
            self.demasker_calls * demasker.work
            + self.denoiser_calls * denoiser.work
            + self.encoder_calls * encoder.work
        )
        return work / unit.work


NO_COST = Cost()
Numbers: TypeAlias = Int[Tensor, "B"]  # of samples, within the batch that was asked for


class Ledger:
    """What was spent on a batch, and for which of its samples."""

    def __init__(self, canvas: TokenIds, spent: Cost) -> None:
        everyone = torch.ones_like(canvas[:, 0], dtype=torch.bool)
        self.num_samples, self.entries = len(canvas), [(spent, everyone.nonzero()[:, 0], everyone)]

    def enter(self, spent: Cost, numbers: Numbers, concerns: Bool[Tensor, "B"]) -> None:
        """For those of these samples that it concerns. Looks at no value: that would wait for a device."""
        self.entries.append((spent, numbers, concerns))

    def total(self) -> Cost:
        return sum((spent for spent, _, _ in self.entries), NO_COST)

    def costs(self) -> list[Cost]:
        """Of each sample, as if it had been alone."""
        counts = torch.zeros(self.num_samples, len(astuple(NO_COST)), dtype=torch.int64)
        for spent, numbers, concerns in self.entries:
            counts.index_add_(0, numbers.cpu(), concerns.cpu().long()[:, None] * torch.tensor(astuple(spent)))
        return [Cost(*some) for some in counts.tolist()]
