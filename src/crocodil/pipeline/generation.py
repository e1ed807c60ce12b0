"""What one asks of a model, and what one gets."""

from dataclasses import dataclass, field
from enum import StrEnum

from crocodil.config import Guidance, Length, Temperature, TopP, config
from crocodil.cost import Cost
from crocodil.decoding import Decoding
from crocodil.processes.masking import MostConfident, RevealRule
from crocodil.processes.plan import DecodePlan
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.tokenization import SpecialIds

TOKENS_A_CALL = 16  # unless a number of calls is asked for


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
        block_size = length if self.block_size is None else self.block_size
        if calls is None:
            calls = length // block_size * max(1, block_size // TOKENS_A_CALL)
        return Decoding(
            plan=DecodePlan(length=length, block_size=block_size, num_calls=calls),
            mask_id=special.mask,
            rule=self.rule,
            temperature=self.temperature,
            top_p=self.top_p,
            guidance=self.guidance,
            eos_id=special.eos,
            eos_last=self.eos_last,
        )


GREEDY = Choices()


class Method(StrEnum):
    """Where the registers come from that guide a generation."""

    BASE = "base"  # none: plain masked diffusion
    CON_THEN_DISC = "conthendisc"  # Algorithm 2: the prior
    CON_WITHIN_DISC = "conwithindisc"  # Algorithm 3: the prior, and again the conditional prior on the way

    @classmethod
    def _missing_(cls, value: object) -> "Method":
        raise ValueError(f"no method {value!r}: take one of {', '.join(cls)}")


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
