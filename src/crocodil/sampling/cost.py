"""The cost of sampling: the calls of each network, the paper's NFE, and calls weighted by their FLOPs."""

from dataclasses import astuple, dataclass
from operator import add, sub
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from crocodil.shapes import TokenIds


def num_parameters(network: nn.Module | None) -> int:
    """Return the number of parameters; 0 for a network that is missing."""
    return 0 if network is None else sum(parameter.numel() for parameter in network.parameters())


class Size(NamedTuple):
    """The parameters of a network and the positions it runs over."""

    parameters: int
    positions: int

    @property
    def work(self) -> float:
        return float(self.parameters) * self.positions


@dataclass(frozen=True)
class Cost:
    """Number of calls of each network, and how many canvas positions the demasker did not read in them (D87)."""

    demasker_calls: int = 0
    denoiser_calls: int = 0
    encoder_calls: int = 0
    left_out: int = 0  # in the cost of a batch: the mean over its samples
    head_calls: int = 0  # demasker calls after which the causal head drew tokens (D88)

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(*map(sub, astuple(self), astuple(other)))

    def nfe(
        self, *, demasker_parameters: float, denoiser_parameters: float, head_parameters: float = 0.0
    ) -> float:
        """The paper's unit: demasker calls, plus calls of denoiser and head weighted by their share of parameters.

        128 calls of a 0.4B denoiser beside an 8B demasker are 6.4 ("about 6" in the paper), 32 calls are 1.6
        ("< 2"). Encoder calls do not count.
        """
        smaller = self.denoiser_calls * denoiser_parameters + self.head_calls * head_parameters
        return self.demasker_calls + smaller / demasker_parameters

    def flop_nfe(
        self, *, unit: Size, demasker: Size, denoiser: Size, encoder: Size, head: Size | None = None
    ) -> float:
        """All calls weighted by parameters x positions, in units of one call of `unit`.

        If the unit is a call of the base on the text alone, the cost includes the registers and the encoder. The
        head counts as if it computed all positions, which is more than it does.
        """
        work = (
            self.demasker_calls * demasker.work
            - self.left_out * demasker.parameters
            + self.denoiser_calls * denoiser.work
            + self.encoder_calls * encoder.work
            + (0.0 if head is None else self.head_calls * head.work)
        )
        return work / unit.work


NO_COST = Cost()


class Ledger:
    """Records the cost of a batch, and which of its samples each cost belongs to."""

    def __init__(self, canvas: TokenIds, spent: Cost) -> None:
        everyone = torch.ones_like(canvas[:, 0], dtype=torch.bool)
        self.num_samples, self.spent = len(canvas), spent
        self.left_out: Int[Tensor, B] | None = None  # of each sample
        self.entries = [(spent, everyone.nonzero()[:, 0], everyone)]

    def enter(
        self,
        spent: Cost,
        index: Int[Tensor, "B"],
        is_charged: Bool[Tensor, "B"],
        left_out: Int[Tensor, "B"] | None = None,
    ) -> None:
        """Charge a cost to some of the samples in `index`. No tensor value is read: that waits for the device."""
        self.spent += spent
        self.entries.append((spent, index, is_charged))
        if left_out is not None:
            if self.left_out is None:
                self.left_out = left_out.new_zeros(self.num_samples)
            self.left_out = self.left_out.index_add(0, index, is_charged * left_out)

    def total(self) -> Cost:
        """Return the cost of the batch. Reads a tensor value if positions were left out."""
        if self.left_out is None:
            return self.spent
        return self.spent + Cost(left_out=round(self.left_out.float().mean().item()))

    def costs(self) -> list[Cost]:
        """Return the cost of each sample if it had been decoded alone."""
        spent, indices, are_charged = zip(*self.entries, strict=True)
        calls = torch.tensor([astuple(cost) for cost in spent])
        calls = calls.repeat_interleave(torch.tensor([len(index) for index in indices]), dim=0)
        charged = torch.cat(are_charged).cpu().long()[:, None] * calls  # two copies to the host, for all entries
        counts = torch.zeros(self.num_samples, calls.shape[1], dtype=torch.int64)
        counts.index_add_(0, torch.cat(indices).cpu(), charged)
        left_out = [0] * self.num_samples if self.left_out is None else self.left_out.tolist()
        return [Cost(*calls) + Cost(left_out=more) for calls, more in zip(counts.tolist(), left_out, strict=True)]
