"""Run a job: sample its batches, decode tokens to text, and compute the costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from crocodil.models.demasker import Demasker
from crocodil.pipeline.batches import Job, joined
from crocodil.pipeline.engine import affordable_batch
from crocodil.pipeline.pricing import Pricing, mean_price
from crocodil.pipeline.results import Generation, OnSnapshot, snapshots
from crocodil.processes.gaussian import OnStep
from crocodil.sampling.state import Samples
from crocodil.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Runner:
    """Runs the jobs of a model.

    By default, `batch_size` is as large as memory allows. With `on_call` or `on_step` there is no progress bar.
    """

    demasker: Demasker
    tokenizer: Tokenizer
    pricing: Pricing

    def run(
        self,
        job: Job,
        *,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        on_step: OnStep | None = None,
        show_progress: bool = True,
    ) -> Generation:
        """Return all samples of a job."""
        batches = list(self._batches(job, batch_size, on_call, on_step, show_progress))
        seconds = sum(seconds for _, seconds in batches)
        return self._generation(joined([samples for samples, _ in batches]), seconds, job)

    def stream(
        self,
        job: Job,
        *,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
    ) -> Iterator[Generation]:
        """Yield the samples of a job, one batch at a time."""
        batches = self._batches(job, batch_size, on_call, None, show_progress)
        return (self._generation(samples, seconds, job) for samples, seconds in batches)

    def affordable_batch(self, length: int) -> int:
        """Return the largest useful batch of canvases of this length."""
        config, device = self.demasker.config, self.demasker.boundaries.device
        return affordable_batch(config.backbone, length, device, prefix=config.num_registers + 2)

    def _batches(
        self,
        job: Job,
        batch_size: int | None,
        on_call: OnSnapshot | None,
        on_step: OnStep | None,
        show_progress: bool,
    ) -> Iterator[tuple[Samples, float]]:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: at least one text is in a batch")
        size = batch_size or self.affordable_batch(job.canvas.length)
        watch = snapshots(on_call, job.num_calls, self.tokenizer, on_step=on_step)
        return job.batches(size, show_progress=show_progress, watch=watch)

    def _generation(self, samples: Samples, seconds: float, job: Job) -> Generation:
        length, price = job.canvas.length, self.pricing
        num_registers = None if samples.registers is None else samples.registers.shape[1]
        return Generation(
            texts=[self.tokenizer.decode(ids) for ids in samples.tokens.tolist()],
            tokens=samples.tokens,
            registers=samples.registers,
            cost=samples.cost,
            costs=samples.costs,
            nfe=mean_price(price.nfe, samples.costs),
            flop_nfe=mean_price(
                lambda cost: price.flop_nfe(cost, length=length, num_registers=num_registers), samples.costs
            ),
            seconds=seconds,
            note=job.note,
        )
