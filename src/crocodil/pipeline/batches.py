"""Many samples, a batch at a time: each has its own streams, so that the size of a batch changes none of them.

How a batch is sampled is a function; networks, tokenizers and costs in other units than calls are not known here.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from crocodil.runtime.progress import Advance, progress
from crocodil.sampling.cost import NO_COST
from crocodil.sampling.decode import Samples
from crocodil.seeding import Streams
from crocodil.shapes import TokenIds

SECONDS_WORTH_A_BAR = 3.0

Tick: TypeAlias = Callable[..., None]  # one call or one step more is done; whatever it is told is not looked at
Sample: TypeAlias = Callable[[range, TokenIds, Streams, Tick], Samples]  # these places: canvas, streams


def in_batches(
    sample: Sample,
    canvas: Int[Tensor, "N"],
    key: tuple[str, int],
    *,
    count: int,
    size: int,
    num_ticks: int,
    watched: bool,
) -> Samples:
    """Samples 0, 1, 2 ... of a key; a bar shows where long work stands, unless the caller watches.

    A batch takes at most `num_ticks` calls and steps: each moves the bar by its share of the batch.
    """
    batches = []
    with progress(
        "sampling", count, unit="texts", shown=not watched, lines=count > size, worth_s=SECONDS_WORTH_A_BAR
    ) as advance:
        for start in range(0, count, size):
            places = range(start, min(start + size, count))
            streams = Streams.of(*key, samples=places, device=canvas.device)
            ticks = _Ticks(advance, len(places), num_ticks)
            batches.append(sample(places, canvas.expand(len(places), -1), streams, ticks))
            ticks.finish()
    return joined(batches)


class _Ticks:
    """Moves a bar by the texts of one batch, a bit with every tick."""

    def __init__(self, advance: Advance, num_texts: int, num_ticks: int) -> None:
        self.advance, self.num_texts, self.num_ticks, self.done = advance, num_texts, num_ticks, 0

    def __call__(self, *_: object) -> None:
        if self.done < self.num_ticks - 1:  # the last bit is for `finish`: then nothing is left to round
            self.done += 1
            self.advance(self.num_texts / self.num_ticks)

    def finish(self) -> None:
        """Calls that were not needed count as done."""
        self.advance(self.num_texts - self.num_texts * self.done / self.num_ticks)


def joined(batches: Sequence[Samples]) -> Samples:
    """All samples as one batch."""
    banks = [batch.registers for batch in batches if batch.registers is not None]
    return Samples(
        tokens=torch.cat([batch.tokens for batch in batches]),
        cost=sum((batch.cost for batch in batches), NO_COST),
        costs=[cost for batch in batches for cost in batch.costs],
        registers=torch.cat(banks) if banks else None,
    )
