"""What one asks of a model, and what one gets."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.processes.plan import DecodePlan
from crocodil.processes.reveal import MostConfident, RevealRule
from crocodil.runtime.config import Guidance, Length, Temperature, TopP, config
from crocodil.sampling.cost import Cost, Size, num_parameters
from crocodil.sampling.decode import Decoding
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.tokenizer import SpecialIds


@config
class Choices:
    """In which order and how boldly tokens are found."""

    block_size: Length | None = None  # None: the whole canvas is one block
    rule: RevealRule = field(default_factory=MostConfident)
    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    guidance: Guidance = 1.0
    eos_last: bool = True

    def decoding(self, length: int, calls: int | None, special: SpecialIds) -> Decoding:
        """The same for the decode loop: on a canvas of this length, in so many calls."""
        assert special.mask is not None
        return Decoding(
            plan=DecodePlan.usual(length, block_size=self.block_size, num_calls=calls),
            mask_id=special.mask,
            rule=self.rule,
            temperature=self.temperature,
            top_p=self.top_p,
            guidance=self.guidance,
            eos_id=special.eos,
            eos_last=self.eos_last,
        )


SEPARATOR = "-" * 40  # between texts that are printed
GREEDY = Choices()


@dataclass(frozen=True)
class Registers:
    """Registers of texts, K for each, and the length of the canvas that they describe.

    `registers[:, :k]` is the coarser description of all texts, `registers[a:b]` are those of some.
    """

    bank: RegisterBank
    length: int

    def __getitem__(self, index: Any) -> "Registers":
        return Registers(self.bank[index], self.length)

    def __len__(self) -> int:
        return len(self.bank)

    @property
    def shape(self) -> torch.Size:
        return self.bank.shape


@dataclass(frozen=True, kw_only=True)
class Generation:
    texts: list[str]
    tokens: TokenIds
    registers: RegisterBank | None  # those in use at the end; None where nothing guided
    cost: Cost  # the calls that were made, all batches together
    costs: list[Cost]  # of each sample: the calls it would have taken alone
    nfe: float  # of a sample on average, in the paper's unit
    flop_nfe: float  # the same weighted by positions too, in calls of the base over the bare text
    seconds: float
    note: str = ""  # what the caller may not expect

    def __str__(self) -> str:
        return f"\n{SEPARATOR}\n".join(self.texts)


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
