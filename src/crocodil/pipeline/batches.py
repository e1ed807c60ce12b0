"""Split a job of many samples into batches. Each sample has its own random streams, so batch size changes no text.

The function that samples a batch is an argument: this module knows neither networks nor tokenizers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from crocodil.processes.gaussian import OnStep
from crocodil.runtime.progress import Advance, progress
from crocodil.sampling.cost import NO_COST
from crocodil.sampling.decode import OnCall
from crocodil.sampling.state import Canvas, Samples
from crocodil.seeding import Streams

SECONDS_BEFORE_A_BAR = 3.0


class Watch(NamedTuple):
    """Callbacks of a batch in progress."""

    on_call: OnCall
    on_step: OnStep


SampleBatch: TypeAlias = Callable[[range, Canvas, Streams, Watch], Samples]


@dataclass(frozen=True)
class Job:
    """A number of samples to generate: samples 0, 1, 2 ... of a seed, or those in `numbers`."""

    sample: SampleBatch  # (positions in the job, their canvases, their streams, callbacks)
    canvas: Canvas  # one for all samples, or one for each
    key: tuple[str, int]
    count: int
    num_calls: int  # per batch, at most
    num_steps: int = 0  # of diffusion per batch, at most
    note: str = ""
    numbers: Sequence[int] | None = None  # of the samples within the seed; default: 0, 1, 2 ...

    @property
    def num_ticks(self) -> int:
        """The largest number of calls and diffusion steps per batch."""
        return self.num_calls + self.num_steps

    def batches(
        self, size: int, *, show_progress: bool, watch: Watch | None = None
    ) -> Iterator[tuple[Samples, float]]:
        """Yield each batch and its seconds. A long job shows a progress bar, unless the caller has callbacks."""
        with progress(
            "sampling",
            self.count,
            unit="texts",
            shown=show_progress and watch is None,
            lines=self.count > size,
            worth_s=SECONDS_BEFORE_A_BAR,
        ) as advance:
            for start in range(0, self.count, size):
                started_at = time.perf_counter()
                batch = range(start, min(start + size, self.count))
                ticks = _Ticks(advance, len(batch), self.num_ticks)
                samples = self.sample(
                    batch, self._canvases(batch), self._streams(batch), watch or Watch(ticks, ticks)
                )
                ticks.finish()
                yield samples, time.perf_counter() - started_at

    def _canvases(self, batch: range) -> Canvas:
        return self.canvas.repeated(len(batch)) if len(self.canvas) == 1 else self.canvas.rows(batch)

    def _streams(self, batch: range) -> Streams:
        numbers = batch if self.numbers is None else self.numbers[batch.start : batch.stop]
        return Streams.of(*self.key, samples=numbers, device=self.canvas.device)


class _Ticks:
    """Advances a progress bar by the texts of one batch, a part of them with every tick."""

    def __init__(self, advance: Advance, num_texts: int, num_ticks: int) -> None:
        self.advance, self.num_texts, self.num_ticks, self.done = advance, num_texts, num_ticks, 0

    def __call__(self, *_: object) -> None:
        if self.done < self.num_ticks - 1:  # `finish` adds the last part, so that nothing is lost to rounding
            self.done += 1
            self.advance(self.num_texts / self.num_ticks)

    def finish(self) -> None:
        """Count calls that were not needed as done."""
        self.advance(self.num_texts - self.num_texts * self.done / self.num_ticks)


def joined(batches: Sequence[Samples]) -> Samples:
    """Return all samples as one batch."""
    banks = [batch.registers for batch in batches if batch.registers is not None]
    return Samples(
        tokens=torch.cat([batch.tokens for batch in batches]),
        cost=sum((batch.cost for batch in batches), NO_COST),
        costs=[cost for batch in batches for cost in batch.costs],
        registers=torch.cat(banks) if banks else None,
    )
