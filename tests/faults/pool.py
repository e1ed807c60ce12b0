"""Run trials in forked processes: if one dies or hangs, that is a finding, and the campaign continues."""

import contextlib
import json
import os
import resource
import selectors
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .calling import DIED, HANG, LIMIT_S, TRACEBACK, Fault
from .world import World

Trial = Callable[[World, Random, Path], None]
HARD_LIMIT_S = 10 * LIMIT_S  # per trial; an alarm does not interrupt code that runs in C
TRIALS_A_PROCESS = 300  # so that leaks do not accumulate
MEMORY = 4 << 30  # address space, in addition to what the imports take


@dataclass(frozen=True)
class Finding:
    """The result of one trial; the category is empty if it passed."""

    kind: str
    number: int
    seconds: float
    category: str = ""
    detail: str = ""


def random_of(seed: int, kind: str, number: int) -> Random:
    """Return the generator of a trial, named by these three, so that the trial can be repeated."""
    return Random(f"{seed}/{kind}/{number}")


def run_trials(
    trials: dict[str, Trial],
    wanted: Sequence[tuple[str, int]],
    world: World,
    seed: int,
    *,
    workers: int,
    until: float,
) -> Iterator[Finding]:
    """Yield the findings of the trials `wanted`, (kind, number), as they finish; none starts after `until`."""
    waiting = list(reversed(wanted))
    busy: list[_Worker] = []
    with selectors.DefaultSelector() as selector:
        while True:
            while len(busy) < workers and waiting and time.monotonic() < until:
                busy.append(_Worker(trials, world, seed, busy))
                selector.register(busy[-1].results, selectors.EVENT_READ, busy[-1])
                busy[-1].give(waiting.pop())
            if not busy:
                return
            ready = {key.data for key, _ in selector.select(timeout=1.0)}
            for worker in list(busy):
                finding = worker.finding() if worker in ready else worker.overdue()
                if finding is None:
                    continue
                yield finding
                goes_on = worker.is_well and waiting and time.monotonic() < until
                if goes_on:
                    worker.give(waiting.pop())
                else:
                    selector.unregister(worker.results)
                    worker.end()
                    busy.remove(worker)


class _Worker:
    """A forked process that runs one trial after another."""

    def __init__(self, trials: dict[str, Trial], world: World, seed: int, others: "Sequence[_Worker]") -> None:
        orders, self.orders = os.pipe()
        results, results_end = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.setpgid(0, 0)
            for own in (self.orders, results, *(other.orders for other in others)):
                os.close(own)  # so that workers end when the campaign does
            _serve(trials, world, seed, orders, results_end)
        os.close(orders)
        os.close(results_end)
        self.results = os.fdopen(results, "rb", buffering=0)
        self.is_well, self.done = True, 0

    def give(self, trial: tuple[str, int]) -> None:
        self.trial, self.started_at = trial, time.monotonic()
        os.write(self.orders, (json.dumps(trial) + "\n").encode())

    def finding(self) -> Finding | None:
        line = self.results.readline()
        seconds = time.monotonic() - self.started_at
        self.done += 1
        self.is_well = bool(line) and self.done < TRIALS_A_PROCESS
        if line:
            return Finding(*self.trial, seconds, *json.loads(line))
        return Finding(*self.trial, seconds, DIED, f"the process ended: {self._status()}")

    def overdue(self) -> Finding | None:
        if time.monotonic() - self.started_at < HARD_LIMIT_S:
            return None
        self.is_well = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return Finding(*self.trial, HARD_LIMIT_S, HANG, "no answer, not even to an alarm")

    def _status(self) -> str:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"

    def end(self) -> None:
        os.close(self.orders)
        self.results.close()
        if self.pid:
            os.waitpid(self.pid, 0)


def _serve(trials: dict[str, Trial], world: World, seed: int, orders: int, results: int) -> None:
    try:
        _bound_memory()
        sandbox = world.root.parent / f"sandbox-{os.getpid()}"
        with os.fdopen(orders) as lines:
            while (order := json.loads(lines.readline() or "null")) is not None:
                kind, number = order
                found = run_trial(trials[kind], world, random_of(seed, kind, number), sandbox)
                os.write(results, (json.dumps(found) + "\n").encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def run_trial(trial: Trial, world: World, random: Random, sandbox: Path) -> tuple[str, str]:
    """Return the category and the detail of a failure; both are empty if the trial passed."""
    shutil.rmtree(sandbox, ignore_errors=True)
    sandbox.mkdir()
    os.chdir(sandbox)
    before = _state(world.root)
    try:
        trial(world, random, sandbox)
        if changed := before ^ _state(world.root):
            raise Fault("lost file", f"files outside of the sandbox changed: {sorted(changed)[0][0]}")
    except Fault as fault:
        return fault.category, fault.detail
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return TRACEBACK, f"in the campaign itself: {error!r} at {last.filename}:{last.lineno}"
    finally:
        os.chdir("/")
        shutil.rmtree(sandbox, ignore_errors=True)
    return "", ""


def _state(root: Path) -> set[tuple[str, int, int]]:
    """Return name, size and time of all shared files, which no trial may change."""
    found = set()
    for folder, _, names in os.walk(root):
        for name in names:
            if name != ".lock":
                about = os.lstat(os.path.join(folder, name))
                found.add((os.path.join(folder, name), about.st_size, about.st_mtime_ns))
    return found


def _bound_memory() -> None:
    """Limit the memory of a trial: no input of a few kilobytes needs more."""
    with open("/proc/self/statm") as pages:
        taken = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
