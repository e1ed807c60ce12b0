"""Processes for tests that kill them, limit them, or let several of them work together.

They are forked from a process that has imported the package: an import takes longer than most of them work.
Shapes are not checked in them, which takes half the time.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "crocodil.cli.train", "crocodil.pipeline", "crocodil.training.run"])


class Finished(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def start(work: Callable[..., object], *arguments: object, out: Path) -> BaseProcess:
    """Begin `work(*arguments)` in a process of its own; what it prints goes to two files in the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    process = _FORKS.Process(target=_do, args=(work, arguments, out))
    process.start()
    return process


def run(work: Callable[..., object], *arguments: object, out: Path) -> Finished:
    """Return the exit code of `work(*arguments)` in a process of its own, and what it printed."""
    process = start(work, *arguments, out=out)
    process.join()
    assert process.exitcode is not None
    return Finished(process.exitcode, (out / "stdout").read_text(), (out / "stderr").read_text())


def command_line(*arguments: object) -> None:
    """Do what `crocodil` does with these arguments; for `start` and `run`."""
    from crocodil.cli import main

    sys.argv = ["crocodil", *map(str, arguments)]
    main()


def _do(work: Callable[..., Any], arguments: tuple[object, ...], out: Path) -> None:
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    work(*arguments)
