"""The plan of a decoding: the blocks of the canvas, and the demasker calls for each block (Sec. 5, App. G).

This module does not import torch, so that settings can be checked before heavy modules are loaded.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from crocodil.runtime.config import Length, config

# Names of the reveal rules, which are in `crocodil.processes.reveal`.
RULE_NAMES = ("confidence", "noisy-confidence", "random", "remask", "remask-confidence", "revise")
OLD_RULE_NAMES = {  # in model folders of format 1 and in older rows of results
    "most confident": "confidence",
    "noisy confidence": "noisy-confidence",
    "at random": "random",
    "remask by confidence": "remask-confidence",
}


def rule_name(name: str) -> str:
    """Return the current name of a reveal rule, which may be given by an old name."""
    name = OLD_RULE_NAMES.get(name, name)
    if name not in RULE_NAMES:
        raise ValueError(f"should be a reveal rule ({', '.join(RULE_NAMES)}), not {name!r}")
    return name


TOKENS_PER_CALL = 16  # by default, there is one call per this many tokens


@dataclass(frozen=True)
class Call:
    """One call of the demasker: which block of the plan is open, and how many calls it still has."""

    index: int
    block_start: int
    block_end: int
    calls_left: int  # in this block, this call included


@config
class DecodePlan:
    """How a masked sequence is revealed: in blocks from left to right, a few tokens per call."""

    length: Length
    block_size: Length
    num_calls: Length  # T: demasker calls for the whole sequence

    def __post_init__(self) -> None:
        if self.length % self.block_size:
            raise ValueError(
                f"block_size {self.block_size} does not divide length {self.length}: use "
                + " or ".join(str(size) for size in _divisors_around(self.block_size, self.length))
            )
        if self.num_calls % self.num_blocks:
            raise ValueError(
                f"{self.num_calls} calls do not split over {self.num_blocks} blocks: "
                f"use a multiple of {self.num_blocks}"
            )
        if self.calls_per_block > self.block_size:
            raise ValueError(
                f"{self.num_calls} calls exceed the {self.length} tokens of the canvas: use {self.length} or fewer"
            )

    @classmethod
    def usual(cls, length: int, *, block_size: int | None = None, num_calls: int | None = None) -> "DecodePlan":
        """Return a plan; by default it has one block and one call per 16 tokens."""
        block_size = length if block_size is None else block_size
        if num_calls is None:
            num_calls = length // max(block_size, 1) * max(1, block_size // TOKENS_PER_CALL)
        return cls(length=length, block_size=block_size, num_calls=num_calls)

    @property
    def num_blocks(self) -> int:
        return self.length // self.block_size

    @property
    def calls_per_block(self) -> int:
        return self.num_calls // self.num_blocks

    def calls(self) -> Iterator[Call]:
        for index in range(self.num_calls):
            block, done = divmod(index, self.calls_per_block)
            start = block * self.block_size
            yield Call(index, start, start + self.block_size, self.calls_per_block - done)


def _divisors_around(number: int, whole: int) -> list[int]:
    """The largest divisor of `whole` below a number, and the smallest one above it."""
    divisors = [size for size in range(1, whole + 1) if whole % size == 0]
    below, above = [size for size in divisors if size < number], [size for size in divisors if size > number]
    return below[-1:] + above[:1]
