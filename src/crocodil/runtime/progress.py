"""Progress of long work: a bar in a terminal, or lines in a log."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

SECONDS_BETWEEN_LINES = 30.0  # if the output is a file, not a terminal


@runtime_checkable
class Advance(Protocol):
    def __call__(self, count: float = 1, note: str = "") -> None: ...


@contextmanager
def progress(
    what: str, total: int, *, unit: str, shown: bool = True, lines: bool = True, worth_s: float = 0.0
) -> Iterator[Advance]:
    """Show a bar in a terminal, or print a line now and then in a log, both to stderr.

    The bar appears only if the work is expected to take longer than `worth_s`. `lines=False` turns off log lines.
    """
    console = Console(file=sys.stderr)
    if shown and console.is_terminal:
        yield from _bar(what, total, unit, console, worth_s)
    elif shown and lines:
        yield from _lines(what, total, unit, console)
    else:
        yield lambda count=1, note="": None


def _bar(what: str, total: int, unit: str, console: Console, worth_s: float) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Speed(unit),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),  # a file name may look like markup
    )
    bars = Progress(*columns, console=console)
    task = bars.add_task(what, total=total, note="")
    started_at, done = time.monotonic(), 0.0

    def advance(count: float = 1, note: str = "") -> None:
        nonlocal done
        done += count
        bars.update(task, completed=_rounded(done), note=note)
        elapsed_s = time.monotonic() - started_at
        # The first step is often slow, so do not estimate the total from it alone.
        if not bars.live.is_started and elapsed_s > worth_s / 6 and elapsed_s * total > worth_s * done:
            bars.start()

    if not worth_s:
        bars.start()
    try:
        yield advance
    finally:
        bars.stop()


def _lines(what: str, total: int, unit: str, console: Console) -> Iterator[Advance]:
    started_at = last_line_at = time.monotonic()
    done = 0.0

    def advance(count: float = 1, note: str = "") -> None:
        nonlocal done, last_line_at
        done += count
        now = time.monotonic()
        if _rounded(done) >= total or now - last_line_at > SECONDS_BETWEEN_LINES:
            last_line_at = now
            per_s = done / max(now - started_at, 1e-9)
            left_s = (total - done) / max(per_s, 1e-9)
            console.print(
                f"{what}: {int(_rounded(done))}/{total} {unit}, {rate(per_s, unit)}, {left_s:,.0f} s left {note}",
                highlight=False,
                markup=False,
            )

    yield advance


def _rounded(done: float) -> float:
    """Remove rounding errors: seven sevenths add up to one."""
    return round(done, 6)


class _Speed(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(rate(speed, self.unit) if speed else f"- {self.unit}/s", style="cyan")


def rate(per_s: float, unit: str) -> str:
    """Format a rate with three significant digits: 73,400 tokens/s, 5.21 steps/s, 0.004 programs/s."""
    rounded = float(f"{per_s:.3g}")
    if rounded >= 100:
        return f"{rounded:,.0f} {unit}/s"
    return f"{rounded:.4f}".rstrip("0").rstrip(".") + f" {unit}/s"
