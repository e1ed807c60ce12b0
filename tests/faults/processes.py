"""Processes that are killed, run out of disk space or run concurrently, compared with an undisturbed one."""

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from .calling import DIED, LOST, WRONG, Fault, Outcome, check, forked, shown_command, succeeds
from .world import STAGES, World

# Times always differ. Everything else is compared byte for byte.
CLOCKS = {"step_s", "tokens_per_s", "mfu", "seconds", "num_seconds", "seconds_a_text"}
# The order of entries in a safetensors header is random too, and with it the checksums in a checkpoint.
CHANCE = {"state.json": {"sha256", "checksum"}}
DERIVED = (".html", ".md", ".svg")  # made from rows, which are compared


@dataclass(frozen=True)
class Job:
    """A command that writes to OUT, and the command that finishes it after a fault."""

    name: str
    arguments: Callable[[World, Path], list[str]]
    finish: tuple[str, ...] = ()  # additional words
    out: str = "out"  # what is compared
    share: float = 1.0


def _stage(stage: str) -> Job:
    def arguments(world: World, out: Path) -> list[str]:
        return [*world.training(stage, out / "run"), "--from", str(world.run)]

    return Job(f"train {stage}", arguments, ("--resume",), share=1.5)


JOBS = [
    Job("corpus build, a folder", lambda world, out: world.building(world.files, out / "corpus"), share=2),
    Job("corpus build, an archive", lambda world, out: world.building(world.sources[1], out / "corpus")),
    *(_stage(stage) for stage in STAGES),
    Job(
        "assemble",
        lambda world, out: ["assemble", str(world.run), "--data", str(world.corpus), "--out", str(out / "model")],
        share=1.5,
    ),
    Job(
        "encode",
        lambda world, out: [
            "encode", str(world.text(0)), "--model", str(world.model), "--device", "cpu",
            "--out", str(out / "registers.safetensors"),
        ],
        share=0.7,
    ),
    Job(
        "corpus pack",
        lambda world, out: [
            "corpus", "pack", str(world.corpus), "--out", str(out / "pieces"), "--piece-megabytes", "0.004",
        ],
        share=0.7,
    ),
    Job(
        "corpus unpack",
        lambda world, out: ["corpus", "unpack", str(world.pieces), "--out", str(out / "corpus")],
        share=0.7,
    ),
    Job(
        "corpus card",
        lambda world, out: ["corpus", "card", str(world.corpus), "--out", str(out / "card.md")],
        share=0.3,
    ),
    Job("reproduce", lambda world, out: world.reproducing(out / "results", "demasker", "memorisation"), share=1.5),
]  # fmt: skip


# ---------------------------------------------------------------- the files of a run


def tree(out: Path) -> dict[str, str]:
    """Return a digest of every file without times and locks; hidden leftovers beside a target are marked."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out)
        if path.name == ".lock" or "work" in name.parts or (path.suffix in DERIVED and path.name != "card.md"):
            continue
        if name.parts[0].startswith(".unfinished-"):
            continue  # beside the target, where nothing reads it
        if path.is_file():
            found[name.as_posix()] = hashlib.sha256(_comparable(path)).hexdigest()
        elif path.is_dir() and not any(path.iterdir()):
            found[f"{name.as_posix()}/"] = "empty"
    return found


def _comparable(file: Path) -> bytes:
    data = file.read_bytes()
    left_out = CLOCKS | CHANCE.get(file.name, set())
    with contextlib.suppress(ValueError):
        if file.suffix == ".jsonl":
            rows = [_without(left_out, json.loads(line)) for line in data.splitlines()]
            return "\n".join(map(json.dumps, rows)).encode()
        if file.suffix == ".json":
            return json.dumps(_without(left_out, json.loads(data))).encode()
        if file.suffix == ".safetensors":
            end = 8 + int.from_bytes(data[:8], "little")
            return json.dumps(json.loads(data[8:end]), sort_keys=True).encode() + data[end:]
    return data


def _without(names: set[str], value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(names, one) for name, one in value.items() if name not in names}
    return [_without(names, one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Whole:
    """An undisturbed run."""

    tree: dict[str, str]
    seconds: float
    events: int  # file operations
    largest: int  # size of the largest file, in bytes
    total: int


@cache
def whole(world: World, number: int) -> Whole:
    """Measure a job once per campaign: two runs must be equal, and the second is timed."""
    known = world.root.parent / f"whole-{number}.json"
    if not known.exists():
        unfinished = known.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(_measured(world, number))))
        unfinished.rename(known)
    return Whole(**json.loads(known.read_text()))


def _measured(world: World, number: int) -> Whole:
    job, out = JOBS[number], world.root.parent / f"whole {number} {os.getpid()}"
    counted = out.parent / f"events {number} {os.getpid()}"
    trees = []
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        started_at = time.monotonic()
        outcome = forked(*job.arguments(world, out), before=lambda: _count_events(out, counted)).wait()
        seconds = time.monotonic() - started_at
        assert outcome is not None
        succeeds(outcome)
        trees.append(tree(out))
    if differ := {name for name in trees[0] | trees[1] if trees[0].get(name) != trees[1].get(name)}:
        raise Fault(WRONG, f"{job.name}: two runs that nothing disturbed differ in {sorted(differ)}")
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    found = Whole(trees[1], seconds, counted.stat().st_size, max(sizes), sum(sizes))
    shutil.rmtree(out)
    counted.unlink()
    return found


def same(job: Job, expected: dict[str, str], out: Path, what: str) -> None:
    found = tree(out)
    if lost := sorted(set(expected) - set(found)):
        raise Fault(LOST, f"{job.name}, {what}: {', '.join(lost[:3])} missing")
    if more := sorted(set(found) - set(expected)):
        raise Fault(WRONG, f"{job.name}, {what}: {', '.join(more[:3])} left behind")
    if differ := sorted(name for name in expected if found[name] != expected[name]):
        raise Fault(WRONG, f"{job.name}, {what}: {', '.join(differ[:3])} differ")


def finish(job: Job, world: World, out: Path, expected: dict[str, str], what: str) -> None:
    """Run the command again; if all is done already, it may say so."""
    if tree(out) == expected:
        return
    outcome = forked(*job.arguments(world, out), *job.finish).wait()
    assert outcome is not None
    if check(outcome).code:
        raise Fault(LOST, f"{job.name}, {what}: cannot be finished: {outcome.line}")
    same(job, expected, out, what)


def _drawn(random: Random) -> int:
    return random.choices(range(len(JOBS)), [job.share for job in JOBS])[0]


# ---------------------------------------------------------------- kills

_EVENTS = {
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.truncate",
    "shutil.rmtree",
    "tempfile.mkstemp",
}


def _at_events(out: Path, happen: Callable[[], None]) -> None:
    """Call `happen` at every operation of this process on a file under `out`."""
    inside = str(out)

    def hook(event: str, details: tuple) -> None:
        if event in _EVENTS and details and str(details[0]).startswith(inside):
            happen()

    sys.addaudithook(hook)


def _count_events(out: Path, counted: Path) -> None:
    file = os.open(counted, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    _at_events(out, lambda: os.write(file, b"."))


def _die_at_event(out: Path, number: int) -> None:
    left = number

    def happen() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _at_events(out, happen)


def kills(world: World, random: Random, sandbox: Path) -> None:
    """SIGKILL at a random time or file operation; then the same command must finish the work."""
    number = _drawn(random)
    job, before = JOBS[number], whole(world, number)
    out = sandbox / "out"
    out.mkdir()
    for turn in range(random.choice([1, 1, 2])):
        arguments = [*job.arguments(world, out), *(job.finish if turn else ())]
        at_event, after_s = random.randrange(before.events) + 1, random.random() * before.seconds
        if random.random() < 0.6:
            what = f"killed at its {at_event}. touch of a file"
            forked(*arguments, before=lambda at=at_event: _die_at_event(out, at)).wait()
        else:
            what = f"killed after {after_s:.3f} of {before.seconds:.3f} s"
            child = forked(*arguments)
            time.sleep(after_s)
            child.kill()
            child.wait()
    finish(job, world, out, before.tree, what)


# ---------------------------------------------------------------- a full disk


def full_disks(world: World, random: Random, sandbox: Path) -> None:
    """A full disk is one line and leaves no partial result; with space, the command ends with the same bytes."""
    number = _drawn(random)
    job, before = JOBS[number], whole(world, number)
    out = sandbox / "out"
    out.mkdir()
    if random.random() < 0.4 and _can_mount():
        room = random.randrange(4096, before.total + 8192)
        what = f"on a file system of {room} bytes"
        with _mounted(out, room):
            outcome = forked(*job.arguments(world, out)).wait()
            shutil.copytree(out, sandbox / "kept", symlinks=True)
        shutil.rmtree(out)
        (sandbox / "kept").rename(out)
    else:
        room = random.randrange(0, before.largest + 1)
        what = f"files of at most {room} bytes"
        outcome = forked(*job.arguments(world, out), before=lambda: _limit_files(room)).wait()
    if outcome is None:
        raise Fault(DIED, f"{job.name}, {what}: killed")
    _check_full(job, outcome, what)
    finish(job, world, out, before.tree, what)


def _check_full(job: Job, outcome: Outcome, what: str) -> None:
    try:
        check(outcome)
    except Fault as fault:
        raise Fault(fault.category, f"{job.name}, {what}: {fault.detail}") from None


def _limit_files(room: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # Python ignores SIGXFSZ: writing fails with EFBIG


@cache
def _can_mount() -> bool:
    """Whether this process may mount file systems: it needs root, and some containers forbid it."""
    if os.geteuid():
        return False
    try:
        with tempfile.TemporaryDirectory() as where, _mounted(Path(where), 8192):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextlib.contextmanager
def _mounted(where: Path, room: int) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(where)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True, capture_output=True)


# ---------------------------------------------------------------- two processes


def rivals(world: World, random: Random, sandbox: Path) -> None:
    """Of two processes with the same --out, one is refused with one line, or both leave the same result."""
    number = _drawn(random)
    job, before = JOBS[number], whole(world, number)
    out = sandbox / "out"
    out.mkdir()
    later = random.choice([0.0, 0.0, random.random() * before.seconds])
    first = forked(*job.arguments(world, out))
    time.sleep(later)
    second = forked(*job.arguments(world, out))
    outcomes = [first.wait(), second.wait()]
    what = f"two processes, the second {later:.3f} s later"
    for outcome in outcomes:
        assert outcome is not None
        _check_full(job, outcome, what)
    lost = [one for one in outcomes if one is not None and one.code]
    if len(lost) == 2:
        raise Fault(WRONG, f"{job.name}, {what}: nobody wins: {lost[0].line}; {lost[1].line}")
    for one in lost:
        if not any(
            word in one.line for word in ("in use by another process", "exists", "finished", "holds a run")
        ):
            raise Fault(
                WRONG, f"{job.name}, {what}: the loser is told {one.line!r}: {shown_command(one.arguments[:2])}"
            )
    same(job, before.tree, out, what)
