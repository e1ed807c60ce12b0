"""Run a program that nobody has read, with its doctests, in a process without rights (decision D58).

The process has no network, starts no other process, writes no file, reads none but the standard library and its
own empty folder, and has bounded seconds and memory. Nothing but its exit status comes back. There is no shell.
"""

import json
import secrets
import subprocess
import sys
import tempfile
from functools import cache
from typing import Literal, TypeAlias

from crocodil.runtime import sandboxed
from crocodil.runtime.config import Count, config

Outcome: TypeAlias = Literal["passed", "failed", "stopped"]


@config
class Limits:
    """The limits of one program."""

    seconds: Count = 5  # of CPU time; the limit on the clock is twice as long
    megabytes: Count = 512


def run_checks(program: str, limits: Limits | None = None) -> Outcome:
    """Run a program and its doctests. It passes if nothing fails; it is stopped where it exceeds a limit.

    A program that ends its process, by `sys.exit` for example, has failed: success is a random exit status. A
    program that searches the memory of its process for it could cheat.
    """
    if not can_run_checks():
        raise ValueError("programs are run on Linux only: this system cannot take rights from a process")
    return _outcome(program, limits or Limits())


def _outcome(program: str, limits: Limits) -> Outcome:
    success = 2 + secrets.randbelow(100)
    request = {
        "program": program, "success": success, "seconds": limits.seconds, "megabytes": limits.megabytes,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-s", "-S", "-B", sandboxed.__file__],  # -I would ignore PYTHONHASHSEED
                input=json.dumps(request).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={"PYTHONHASHSEED": "0"},
                timeout=2 * limits.seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:  # the process was killed
            return "stopped"
    if ended.returncode < 0:
        return "stopped"
    return "passed" if ended.returncode == success else "failed"


@cache
def can_run_checks() -> bool:
    """Whether this system can enforce the limits."""
    return _outcome("", Limits()) == "passed"  # if it cannot, not even this passes
