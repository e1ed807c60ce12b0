"""Many samples, a batch at a time: each has its own streams, so that the size of a batch changes none of them.

How a batch is sampled is a function; networks, tokenizers and costs in other units than calls are not known here.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from crocodil.cost import NO_COST
from crocodil.decoding import Samples
from crocodil.progress import progress
from crocodil.seeding import Streams
from crocodil.shapes import TokenIds

Sample: TypeAlias = Callable[[range, TokenIds, Streams], Samples]  # of these places: the canvas, the streams


def in_batches(
    sample: Sample, canvas: Int[Tensor, "N"], key: tuple[str, int], *, count: int, size: int, watched: bool
) -> Samples:
    """Samples 0, 1, 2 ... of a key; a bar shows where long work stands, unless the caller watches."""
    batches = []
    with progress("sampling", count, unit="texts", shown=count > size and not watched) as advance:
        for start in range(0, count, size):
            places = range(start, min(start + size, count))
            streams = Streams.of(*key, samples=places, device=canvas.device)
            batches.append(sample(places, canvas.expand(len(places), -1), streams))
            advance(len(places))
    return joined(batches)


def joined(batches: Sequence[Samples]) -> Samples:
    """All samples as one batch."""
    banks = [batch.registers for batch in batches if batch.registers is not None]
    return Samples(
        tokens=torch.cat([batch.tokens for batch in batches]),
        cost=sum((batch.cost for batch in batches), NO_COST),
        costs=[cost for batch in batches for cost in batch.costs],
        registers=torch.cat(banks) if banks else None,
    )
