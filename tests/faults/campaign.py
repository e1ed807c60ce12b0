"""The kinds of faults, how often each is tried, and the table of results."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import archives, arguments, folders, processes
from .pool import Finding, Trial, run_trials
from .world import build_world, prepare_process


@dataclass(frozen=True)
class Kind:
    """A kind of fault: its name, what it does, and its share of all inputs."""

    name: str
    about: str
    trial: Trial
    share: float = 0.0  # of the inputs; 0: a fault of processes


KINDS = [
    Kind("arguments", "mutated arguments of every command", arguments.trial, 0.44),
    Kind("models", "damaged model folders", folders.models, 0.25),
    Kind("registers", "damaged register files", folders.registers, 0.08),
    Kind("corpora", "damaged corpora", folders.corpora, 0.06),
    Kind("texts", "arbitrary bytes as text", folders.texts, 0.05),
    Kind("archives", "damaged folders, archives and tables as sources of a corpus", archives.archives, 0.04),
    Kind("checkpoints", "damaged training checkpoints", folders.checkpoints, 0.03),
    Kind("pieces", "damaged pieces of a packed corpus", folders.pieces, 0.02),
    Kind("runs", "damaged runs, exported or shown", folders.runs, 0.018),
    Kind("judges", "damaged judges and texts to judge", folders.judges, 0.01),
    Kind("results", "damaged result rows", folders.results, 0.002),
    Kind("kills", "SIGKILL, then resumed", processes.kills),
    Kind("full disks", "full disk, then resumed", processes.full_disks),
    Kind("rivals", "two processes with the same --out", processes.rivals),
]
TRIALS = {kind.name: kind.trial for kind in KINDS}


@dataclass
class Row:
    """A row of the table: the results of one kind of fault."""

    kind: Kind
    tried: int = 0
    failures: list[Finding] = field(default_factory=list)
    seconds: float = 0.0


def run_campaign(
    *,
    seed: int,
    minutes: float,
    inputs: int,
    kills: int,
    workers: int,
    only: Sequence[str] = (),
    number: int | None = None,
) -> list[Row]:
    """Try all kinds of faults, or only those in `only`; with `number`, only that trial of each."""
    prepare_process()
    counts = _counts(inputs, kills, only)
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_fast_folder()) as root:
        (Path(root) / "world").mkdir()
        _print("building small models and corpora to damage")
        world = build_world(Path(root) / "world")
        rows = {name: Row(kind) for kind in KINDS if (name := kind.name) in counts}
        until = time.monotonic() + 60 * minutes
        for wanted in _phases(counts, number):
            for finding in _with_progress(
                run_trials(TRIALS, wanted, world, seed, workers=workers, until=until), len(wanted)
            ):
                row = rows[finding.kind]
                row.tried += 1
                row.seconds += finding.seconds
                if finding.category:
                    row.failures.append(finding)
                    _print(describe(finding, seed))
    return list(rows.values())


def _counts(inputs: int, kills: int, only: Sequence[str]) -> dict[str, int]:
    """Return how often each kind is tried: for every five kills, two full disks and two rivals."""
    counts = {kind.name: max(1, round(inputs * kind.share)) for kind in KINDS if kind.share and inputs}
    if kills:
        counts |= {"kills": kills, "full disks": max(1, 2 * kills // 5), "rivals": max(1, 2 * kills // 5)}
    return {name: count for name, count in counts.items() if not only or name in only}


def _phases(counts: dict[str, int], number: int | None) -> Iterator[list[tuple[str, int]]]:
    """Yield trials of processes, then of inputs, each interleaved, so that a time limit cuts all kinds alike."""
    for of_inputs in (False, True):
        names = [kind.name for kind in KINDS if bool(kind.share) is of_inputs and kind.name in counts]
        numbers = [(name, n) for name in names for n in (range(counts[name]) if number is None else [number])]
        if numbers:
            yield sorted(numbers, key=lambda trial: (trial[1] + 0.5) / counts[trial[0]])


def _fast_folder() -> str | None:
    """Return a folder in memory if there is one, since nothing is kept."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None


# ---------------------------------------------------------------- output


def _with_progress(findings: Iterator[Finding], total: int) -> Iterator[Finding]:
    """Print a line of progress every 15 seconds."""
    started_at = last_at = time.monotonic()
    for done, finding in enumerate(findings, start=1):
        yield finding
        now = time.monotonic()
        if now - last_at > 15 or done == total:
            last_at = now
            left_s = (now - started_at) / done * (total - done)
            _print(f"{done}/{total} trials, {left_s:.0f} s left")


def _print(line: str) -> None:
    print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr, flush=True)


def describe(finding: Finding, seed: int) -> str:
    """Return what failed, and the command that reproduces it."""
    again = f"python -m tests.faults --seed {seed} --only '{finding.kind}' --number {finding.number}"
    return f"FAILED {finding.category}: {finding.detail[:700]}\n    {again}"


HEADS = ("kind of fault", "tried", "failed", "seconds")


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    body = [(row.kind.about, str(row.tried), str(len(row.failures)), f"{row.seconds:.0f}") for row in rows]
    total = ("all", str(sum(row.tried for row in rows)), str(sum(len(row.failures) for row in rows)),
             f"{sum(row.seconds for row in rows):.0f}")  # fmt: skip
    return [HEADS, *body, total]


def as_text(rows: Sequence[Row]) -> str:
    lines = table(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    return "\n".join(
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        for line in lines
    )


def as_markdown(rows: Sequence[Row]) -> str:
    heads, *body = [f"| {' | '.join(line)} |" for line in table(rows)]
    return "\n".join([heads, "|---|---|---|---|", *body]) + "\n"
