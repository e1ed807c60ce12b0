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
    what: str,
    total: int | None,
    *,
    unit: str,
    start: int = 0,
    shown: bool = True,
    lines: bool = True,
    worth_s: float = 0.0,
) -> Iterator[Advance]:
    """Show a bar in a terminal, or print a line now and then in a log, both to stderr.

    A `total` of None is unknown. `start` was done before, so it does not count in the speed. The bar appears only
    if the work is expected to take longer than `worth_s`. `lines=False` turns off log lines.
    """
    console = Console(file=sys.stderr)
    if shown and console.is_terminal:
        yield from _bar(what, total, start, unit, console, worth_s)
    elif shown and lines:
        yield from _lines(what, total, start, unit, console)
    else:
        yield lambda count=1, note="": None


def _bar(
    what: str, total: int | None, start: int, unit: str, console: Console, worth_s: float
) -> Iterator[Advance]:
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
    # On a screen, texts that are printed meanwhile go above the bar; in a file or pipe they must stay unchanged.
    bars = Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty())
    task = bars.add_task(what, total=total, completed=start, note="")
    started_at, done = time.monotonic(), float(start)

    def advance(count: float = 1, note: str = "") -> None:
        nonlocal done
        done += count
        bars.update(task, completed=_rounded(done), note=note)
        elapsed_s = time.monotonic() - started_at
        # The first step is often slow, so do not estimate the total from it alone.
        takes_long = total is None or elapsed_s * (total - start) > worth_s * (done - start)
        if not bars.live.is_started and elapsed_s > worth_s / 6 and takes_long:
            bars.start()

    if not worth_s:
        bars.start()
    try:
        yield advance
    finally:
        bars.stop()


def _lines(what: str, total: int | None, start: int, unit: str, console: Console) -> Iterator[Advance]:
    started_at = last_line_at = time.monotonic()
    done = float(start)

    def advance(count: float = 1, note: str = "") -> None:
        nonlocal done, last_line_at
        done += count
        now = time.monotonic()
        is_complete = total is not None and _rounded(done) >= total
        if is_complete or now - last_line_at > SECONDS_BETWEEN_LINES:
            last_line_at = now
            per_s = (done - start) / max(now - started_at, 1e-9)
            of_all, left = "", ""
            if total is not None:
                of_all, left = f"/{total}", f", {(total - done) / max(per_s, 1e-9):,.0f} s left"
            line = f"{what}: {int(_rounded(done))}{of_all} {unit}, {rate(per_s, unit)}{left} {note}"
            console.print(line, highlight=False, markup=False)

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
