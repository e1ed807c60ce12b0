"""Which faults are tried, how often, and the table of what came of them."""

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
    Kind("arguments", "mutated arguments of every verb", arguments.trial, 0.44),
    Kind("models", "damaged model folders", folders.models, 0.25),
    Kind("registers", "damaged files of registers", folders.registers, 0.08),
    Kind("corpora", "damaged corpora", folders.corpora, 0.06),
    Kind("texts", "any bytes as a text", folders.texts, 0.05),
    Kind("archives", "damaged folders, archives and tables as sources of a corpus", archives.archives, 0.04),
    Kind("checkpoints", "damaged checkpoints of training", folders.checkpoints, 0.03),
    Kind("pieces", "damaged pieces of a packed corpus", folders.pieces, 0.02),
    Kind("runs", "damaged runs, assembled or shown", folders.runs, 0.018),
    Kind("judges", "damaged judges and texts to judge", folders.judges, 0.01),
    Kind("results", "damaged rows of results", folders.results, 0.002),
    Kind("kills", "SIGKILL, then finished", processes.kills),
    Kind("full disks", "no more room, then finished", processes.full_disks),
    Kind("rivals", "two processes on one --out", processes.rivals),
]
TRIALS = {kind.name: kind.trial for kind in KINDS}


@dataclass
class Row:
    """Of the table."""

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
    """All kinds of faults, or `only` some; one trial alone where its number is given."""
    prepare_process()
    counts = _counts(inputs, kills, only)
    with tempfile.TemporaryDirectory(prefix="faults-", dir=_fast_folder()) as root:
        (Path(root) / "world").mkdir()
        _say("building small models and corpora to damage")
        world = build_world(Path(root) / "world")
        rows = {name: Row(kind) for kind in KINDS if (name := kind.name) in counts}
        until = time.monotonic() + 60 * minutes
        for wanted in _phases(counts, number):
            for finding in _told(
                run_trials(TRIALS, wanted, world, seed, workers=workers, until=until), len(wanted)
            ):
                row = rows[finding.kind]
                row.tried += 1
                row.seconds += finding.seconds
                if finding.category:
                    row.failures.append(finding)
                    _say(reproduced(finding, seed))
    return list(rows.values())


def _counts(inputs: int, kills: int, only: Sequence[str]) -> dict[str, int]:
    """How often each kind is tried: a fifth as many full disks and rivals as kills, each."""
    counts = {kind.name: max(1, round(inputs * kind.share)) for kind in KINDS if kind.share and inputs}
    if kills:
        counts |= {"kills": kills, "full disks": max(1, 2 * kills // 5), "rivals": max(1, 2 * kills // 5)}
    return {name: count for name, count in counts.items() if not only or name in only}


def _phases(counts: dict[str, int], number: int | None) -> Iterator[list[tuple[str, int]]]:
    """Faults of processes first, then inputs: each mixed, so that a budget of minutes cuts all kinds alike."""
    for of_inputs in (False, True):
        names = [kind.name for kind in KINDS if bool(kind.share) is of_inputs and kind.name in counts]
        numbers = [(name, n) for name in names for n in (range(counts[name]) if number is None else [number])]
        if numbers:
            yield sorted(numbers, key=lambda one: (one[1] + 0.5) / counts[one[0]])


def _fast_folder() -> str | None:
    """In memory, where there is such a folder: nothing of this is kept."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None


# ---------------------------------------------------------------- telling


def _told(findings: Iterator[Finding], total: int) -> Iterator[Finding]:
    """A line now and then."""
    started_at = last_at = time.monotonic()
    for done, finding in enumerate(findings, start=1):
        yield finding
        now = time.monotonic()
        if now - last_at > 15 or done == total:
            last_at = now
            left_s = (now - started_at) / done * (total - done)
            _say(f"{done}/{total} trials, {left_s:.0f} s left")


def _say(line: str) -> None:
    print(line.encode("utf-8", "backslashreplace").decode(), file=sys.stderr, flush=True)


def reproduced(finding: Finding, seed: int) -> str:
    """What failed, and the line that makes it fail again."""
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
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEADS))]
    return "\n".join(
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(one.rjust(width) for one, width in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        for line in lines
    )


def as_markdown(rows: Sequence[Row]) -> str:
    heads, *body = [f"| {' | '.join(line)} |" for line in table(rows)]
    return "\n".join([heads, "|---|---|---|---|", *body]) + "\n"
