"""What is written down of a run: metrics.jsonl, TensorBoard where it is installed, and a line for a person."""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from crocodil.runtime.atomic import whole_file
from crocodil.runtime.progress import Advance
from crocodil.training.work import Work

METRICS_FILE = "metrics.jsonl"
_LARGEST = 3.5e38  # that single precision holds
Row: TypeAlias = dict[str, Any]
Log: TypeAlias = Callable[[Row], None]


class Outcome(NamedTuple):
    """Of one step; still on the device."""

    losses: Tensor  # of every rank
    gradient_norm: Tensor
    learning_rate: float


class Journal:
    """Writes down each step; on an accelerator one step late, since waiting for a loss would leave it idle.

    Nothing is saved of a step that was not looked at.
    """

    def __init__(
        self, stage: str, work: Work, batch_size: int, matrix_rate: float, log: Log, advance: Advance
    ) -> None:
        self.stage, self.log, self.advance = stage, log, advance
        self.tokens, self.use = batch_size * work.tokens, batch_size * work.flops / matrix_rate
        self.pending: list[tuple[int, Outcome]] = []
        self.last_at = time.perf_counter()

    def add(self, step: int, outcome: Outcome) -> None:
        self.pending.append((step, outcome))
        self._record_all_but(1 if outcome.losses.is_cuda else 0)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While something else than steps is done; everything before is written down."""
        self._record_all_but(0)
        yield
        self.last_at = time.perf_counter()

    def _record_all_but(self, count: int) -> None:
        while len(self.pending) > count:
            self._record(*self.pending.pop(0))

    def _record(self, step: int, outcome: Outcome) -> None:
        losses, norm = outcome.losses.tolist(), outcome.gradient_norm.item()
        for rank, loss in enumerate(losses):
            self._check_finite(f"loss {loss} at step {step} on rank {rank}", loss)
        self._check_finite(f"gradient norm {norm} at step {step}", norm)  # such a gradient spoils all weights
        loss = sum(losses) / len(losses)
        seconds = time.perf_counter() - self.last_at
        self.last_at += seconds
        tokens_per_s, mfu = round(self.tokens / seconds), self.use / seconds
        row = {"step": step + 1, "loss": loss, "gradient_norm": norm, "learning_rate": outcome.learning_rate}
        self.log({**row, "step_s": round(seconds, 4), "tokens_per_s": tokens_per_s, "mfu": round(mfu, 4)})
        self.advance(1, f"loss {loss:.3f}, {tokens_per_s:,} tokens/s, MFU {mfu:.0%}")

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise FloatingPointError(
                f"stage {self.stage}: {what}: training diverged and nothing of this step is saved; "
                "start anew with a lower learning rate and another --out"
            )


@contextmanager
def metrics_log(out: Path, first_step: int, *, written: bool = True) -> Iterator[Log]:
    """Rows go to metrics.jsonl and TensorBoard; those of steps that will be done again are dropped first."""
    if not written:
        yield lambda row: None
        return
    file = out / METRICS_FILE
    if file.exists():
        rows = [row for row in map(read_row, _lines(file)) if row is not None and _still_true(row, first_step)]
        with whole_file(file) as unfinished:
            unfinished.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with file.open("a") as lines, _tensorboard(out / "tensorboard", first_step) as show:

        def log(row: Row) -> None:
            lines.write(json.dumps(row) + "\n")
            lines.flush()
            show(row)

        yield log


def _still_true(row: Row, first_step: int) -> bool:
    """A killed run may have logged past its checkpoint."""
    return row["step"] < first_step or (row["step"] == first_step and "loss" in row)


def _lines(file: Path) -> list[str]:
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is no plain file")  # reading a pipe would never end
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def read_row(line: str) -> Row | None:
    """A row of metrics.jsonl; None where it is none: half a line that a killed run left, or damage."""
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
    """The rows of one stage; half a line at the end, of a killed run, is left out."""
    file = directory / METRICS_FILE
    found = [read_row(line) for line in _lines(file)]
    damaged = [number for number, row in enumerate(found, 1) if row is None and number < len(found)]
    if damaged:
        warnings.warn(f"{file}: line {damaged[0]} and {len(damaged) - 1} more are damaged, left out", stacklevel=2)
    rows = [row for row in found if row is not None]
    if found and not rows:
        raise ValueError(f"{file} is damaged: no line of it is a row of metrics")
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


WIDTH, HEIGHT = 72, 10


def stages_of(directory: Path) -> dict[str, list[Row]]:
    """The rows of every stage of a run."""
    found = {file.parent.name: read_rows(file.parent) for file in sorted(directory.glob(f"*/{METRICS_FILE}"))}
    if not found:
        raise ValueError(f"{directory} holds no run: no stage in it has a {METRICS_FILE}")
    return found


def last_values(directory: Path) -> dict[str, list[tuple[str, str]]]:
    """The newest value of every metric, stage by stage."""
    return {
        stage: [(name, f"{value:.4g}") for name, value in {k: v for row in rows for k, v in row.items()}.items()]
        for stage, rows in stages_of(directory).items()
    }


def curves(directory: Path) -> dict[str, str]:
    """The loss of every stage against its steps."""
    return {
        f"{stage}: loss": plot([row["loss"] for row in rows if math.isfinite(row.get("loss", math.nan))])
        for stage, rows in stages_of(directory).items()
    }


def plot(values: list[float]) -> str:
    """A curve of characters; each column is the mean of its share of the values."""
    if not values:
        return "nothing yet"
    columns = min(WIDTH, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    level = [round((HEIGHT - 1) * (mean - low) / ((high - low) or 1)) for mean in means]
    lines = []
    for height in reversed(range(HEIGHT)):
        label = f"{low + (high - low) * height / (HEIGHT - 1):9.3f}"
        lines.append(f"{label} │" + "".join("•" if one == height else " " for one in level))
    return "\n".join([*lines, " " * 10 + "└" + "─" * columns, f"{'':11}1{len(values):>{max(columns - 1, 1)}}"])
