"""f_theta as the decode loop sees it: a canvas and registers, or none, in; logits at the rows that are wanted out.

It knows that the base takes no registers, that the guided demasker has an empty prefix, and how guidance is
strengthened. It knows nothing of plans, reveal rules, randomness or costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.shapes import Places, RegisterBank, RowLogits, TokenIds

Demask: TypeAlias = Callable[[TokenIds, RegisterBank | None, Places], RowLogits]


@dataclass(frozen=True)
class Unguided:
    """The base MDM: registers are ignored."""

    demasker: LLaDA

    def __call__(self, noisy_tokens: TokenIds, registers: RegisterBank | None, rows: Places) -> RowLogits:
        return self.demasker(noisy_tokens, rows=rows)


@dataclass(frozen=True)
class Guided:
    """The guided demasker; no registers at all is its empty prefix (decision D14)."""

    demasker: Demasker

    def __call__(self, noisy_tokens: TokenIds, registers: RegisterBank | None, rows: Places) -> RowLogits:
        if registers is None:
            empty = (len(noisy_tokens), 0, self.demasker.config.register_width)
            registers = torch.zeros(empty, device=noisy_tokens.device)
        return self.demasker(noisy_tokens, registers, rows=rows)


def strengthened(demask: Demask, strength: float) -> Demask:
    """Register guidance: logits moved from those of the empty prefix towards, or past, the guided ones.

    1 is the guided demasker itself, more exaggerates what the registers say. Takes two calls for one, and a
    demasker that has seen empty prefixes in training (decision D14).
    """
    if strength == 1:
        return demask

    def demask_strongly(noisy_tokens: TokenIds, registers: RegisterBank | None, rows: Places) -> RowLogits:
        without = demask(noisy_tokens, None, rows)
        return without + strength * (demask(noisy_tokens, registers, rows) - without)

    return demask_strongly
