"""Metrics of a run: metrics.jsonl, TensorBoard if it is installed, the progress bar, and plots in the terminal."""

import json
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from crocodil.runtime.atomic import whole_file
from crocodil.runtime.progress import Advance
from crocodil.training.work import Work

METRICS_FILE = "metrics.jsonl"
NUM_RECENT = 20  # steps: the bar shows their mean speed
_LARGEST = 3.5e38  # above the largest float32
Row: TypeAlias = dict[str, Any]
Log: TypeAlias = Callable[[Row], None]


class StepResult(NamedTuple):
    """The result of one step. The tensors are still on the device."""

    losses: Tensor  # one per rank
    gradient_norm: Tensor
    learning_rate: float
    parts: Mapping[str, Tensor] = {}  # of the loss, one value per rank


class Arriving(NamedTuple):
    """A result whose copy to the host may still be under way."""

    step: int
    result: StepResult
    copied: torch.cuda.Event | None  # None: it was on the host

    @classmethod
    def of(cls, step: int, result: StepResult) -> "Arriving":
        """Start to copy a result to the host. Reading it later would also wait for all steps started since."""
        if not result.losses.is_cuda:
            return cls(step, result, None)
        losses, norm, *parts = (
            tensor.to("cpu", non_blocking=True)
            for tensor in (result.losses, result.gradient_norm, *result.parts.values())
        )
        copied = torch.cuda.Event(enable_timing=True)
        copied.record()
        return cls(
            step,
            StepResult(losses, norm, result.learning_rate, dict(zip(result.parts, parts, strict=True))),
            copied,
        )

    def wait(self) -> StepResult:
        if self.copied is not None:
            self.copied.synchronize()
        return self.result


class Journal:
    """Log the metrics of each step, and stop the run if they are not finite.

    On a GPU a step is logged one step late, since waiting for its loss would leave the GPU idle. Before a
    checkpoint is saved, all steps are logged and thereby checked.
    """

    def __init__(
        self, stage: str, work: Work, batch_size: int, matrix_rate: float, log: Log, advance: Advance
    ) -> None:
        self.stage, self.log, self.advance = stage, log, advance
        self.tokens = batch_size * work.tokens
        self.ideal_s = batch_size * work.flops / matrix_rate  # duration of a step at an MFU of 1
        self.pending: list[Arriving] = []
        self.last_at = time.perf_counter()
        self.last_copied: torch.cuda.Event | None = None  # on a GPU: of the last logged step
        self.recent: deque[float] = deque(maxlen=NUM_RECENT)  # seconds of the last steps

    def add(self, step: int, result: StepResult) -> None:
        self.pending.append(Arriving.of(step, result))
        self._log_pending(keep=1 if result.losses.is_cuda else 0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Log all pending steps, and exclude the time inside the block from the next step."""
        self._log_pending(keep=0)
        yield
        self.last_at = time.perf_counter()
        if self.last_copied is not None:
            self.last_copied = torch.cuda.Event(enable_timing=True)
            self.last_copied.record()

    def _log_pending(self, *, keep: int) -> None:
        while len(self.pending) > keep:
            arriving = self.pending.pop(0)
            self._log_step(arriving.step, arriving.wait(), arriving.copied)

    def _seconds_since_last(self, copied: torch.cuda.Event | None) -> float:
        """Return the duration of a step. On a GPU it is measured there, since steps are logged late."""
        now = time.perf_counter()
        seconds, self.last_at = now - self.last_at, now
        if copied is not None and self.last_copied is not None:
            seconds = self.last_copied.elapsed_time(copied) / 1000
        self.last_copied = copied
        return seconds

    def _log_step(self, step: int, result: StepResult, copied: torch.cuda.Event | None) -> None:
        losses, norm = result.losses.tolist(), result.gradient_norm.item()
        for rank, loss in enumerate(losses):
            self._check_finite(f"loss {loss} at step {step} on rank {rank}", loss)
        self._check_finite(f"gradient norm {norm} at step {step}", norm)  # it would make all weights NaN
        loss = sum(losses) / len(losses)
        seconds = self._seconds_since_last(copied)
        self.recent.append(seconds)
        parts = {name: values.mean().item() for name, values in result.parts.items()}
        row = {"step": step + 1, "loss": loss, **parts, "gradient_norm": norm}
        row["learning_rate"] = result.learning_rate
        tokens_per_s, mfu = self._speed(seconds)
        self.log({**row, "step_s": round(seconds, 4), "tokens_per_s": tokens_per_s, "mfu": round(mfu, 4)})
        tokens_per_s, mfu = self._speed(sum(self.recent) / len(self.recent))
        self.advance(1, f"loss {loss:.3f}, {tokens_per_s:,} tokens/s, MFU {mfu:.0%}")

    def _speed(self, step_s: float) -> tuple[int, float]:
        """Return tokens per second and MFU."""
        return round(self.tokens / step_s), self.ideal_s / step_s

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise FloatingPointError(
                f"stage {self.stage}: {what}: training diverged, this step is not saved; "
                "start again with a lower learning rate and another --out"
            )


@contextmanager
def metrics_log(out: Path, first_step: int, *, written: bool = True) -> Iterator[Log]:
    """Yield a function that writes rows to metrics.jsonl and TensorBoard.

    Rows after `first_step`, which a killed run may have left, are removed first: their steps are taken again.
    """
    if not written:
        yield lambda row: None
        return
    file = out / METRICS_FILE
    if file.exists():
        rows = [row for row in map(read_row, _lines(file)) if row is not None and _is_before(row, first_step)]
        with whole_file(file) as unfinished:
            unfinished.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with file.open("a") as lines, _tensorboard(out / "tensorboard", first_step) as show:

        def log(row: Row) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            show(row)

        yield log


def _is_before(row: Row, first_step: int) -> bool:
    """Whether a row was written before the checkpoint of `first_step`; its evaluation is repeated."""
    return row["step"] < first_step or (row["step"] == first_step and "loss" in row)


def _lines(file: Path) -> list[str]:
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is not a regular file")  # reading a pipe would not end
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def read_row(line: str) -> Row | None:
    """Parse a line of metrics.jsonl; None if it is damaged, or incomplete because the run was killed."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not (isinstance(row, dict) and isinstance(row.get("step"), int)):
        return None
    return row if all(map(_is_metric, row.values())) else None


def _is_metric(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _LARGEST or (isinstance(value, float) and not math.isfinite(value))


def read_rows(directory: Path) -> list[Row]:
    """Read the metrics of one stage; an incomplete last line, left by a killed run, is skipped silently."""
    file = directory / METRICS_FILE
    lines = [read_row(line) for line in _lines(file)]
    damaged = [number for number, row in enumerate(lines, 1) if row is None and number < len(lines)]
    if damaged:
        warnings.warn(f"{file}: skipped line {damaged[0]} and {len(damaged) - 1} more, damaged", stacklevel=2)
    rows = [row for row in lines if row is not None]
    if lines and not rows:
        raise ValueError(f"{file} is damaged: no line holds metrics")
    return rows


@contextmanager
def _tensorboard(directory: Path, first_step: int) -> Iterator[Log]:
    if find_spec("tensorboard") is None:
        yield lambda row: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory), purge_step=first_step) as writer:

        def show(row: Row) -> None:
            for name, value in row.items():
                if name != "step":
                    writer.add_scalar(name, value, row["step"])

        yield show


# ---------------------------------------------------------------- in the terminal

PLOT_WIDTH, PLOT_HEIGHT = 72, 10


def read_stages(directory: Path) -> dict[str, list[Row]]:
    """Read the metrics of all stages of a run."""
    stages = {file.parent.name: read_rows(file.parent) for file in sorted(directory.glob(f"*/{METRICS_FILE}"))}
    if not stages:
        raise ValueError(f"{directory} holds no run: none of its stages has a {METRICS_FILE}")
    return stages


def last_values(directory: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the last value of every metric of every stage."""
    return {
        stage: [(name, f"{value:.4g}") for name, value in {k: v for row in rows for k, v in row.items()}.items()]
        for stage, rows in read_stages(directory).items()
    }


def curves(directory: Path) -> dict[str, str]:
    """Return a plot of the loss of every stage."""
    return {
        f"{stage}: loss": plot([row["loss"] for row in rows if math.isfinite(row.get("loss", math.nan))])
        for stage, rows in read_stages(directory).items()
    }


def plot(values: list[float]) -> str:
    """Plot values as text; each column is a mean of consecutive values."""
    if not values:
        return "no values yet"
    columns = min(PLOT_WIDTH, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    heights = [round((PLOT_HEIGHT - 1) * (mean - low) / ((high - low) or 1)) for mean in means]
    lines = []
    for height in reversed(range(PLOT_HEIGHT)):
        label = f"{low + (high - low) * height / (PLOT_HEIGHT - 1):9.3f}"
        lines.append(f"{label} │" + "".join("•" if column == height else " " for column in heights))
    return "\n".join([*lines, " " * 10 + "└" + "─" * columns, f"{'':11}1{len(values):>{max(columns - 1, 1)}}"])
