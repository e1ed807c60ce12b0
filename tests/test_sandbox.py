"""A program that nobody has read can do nothing, and its doctests and asserts are counted."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from crocodil.runtime import sandboxed
from crocodil.runtime.sandbox import Limits, can_run_checks, run_checks

pytestmark = pytest.mark.skipif(not can_run_checks(), reason="this system cannot take rights from a process")

DOUBLE = 'def double(x):\n    """Return twice x.\n\n    >>> double(2)\n    4\n    """\n    return {}\n'


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        (DOUBLE.format("2 * x"), "passed"),
        (DOUBLE.format("x"), "failed"),
        (DOUBLE.format("y"), "failed"),
        (DOUBLE.format("2 * x") + "\nassert double(3) == 7\n", "failed"),
        ("def f(:\n", "failed"),
        ("import sys\nsys.exit(0)\n", "failed"),
        ("import os\nos._exit(0)\n", "failed"),
        (f"import os\nos._exit({sandboxed.UNAVAILABLE})\n", "failed"),
    ],
)
def test_a_doctest_or_an_assert_that_fails_is_counted_as_failed(program, outcome):
    assert run_checks(program) == outcome


def test_the_order_of_a_set_is_always_the_same():
    command = [sys.executable, "-c", "print(hash('a'))"]
    fixed = subprocess.run(command, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True)
    assert run_checks(f"assert hash('a') == {fixed.stdout}") == "passed"


def test_an_endless_loop_and_an_endless_wait_are_stopped():
    started_at = time.perf_counter()
    programs = ["while True:\n    pass\n", "import time\ntime.sleep(60)\n"]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(partial(run_checks, limits=Limits(seconds=1)), programs)) == ["stopped", "stopped"]
    assert time.perf_counter() - started_at < 10


def test_network_files_processes_and_memory_are_out_of_reach(tmp_path):
    """The program passes if every attempt is refused."""
    seen = tmp_path / "seen"
    seen.write_text("secret")
    attempts = f"""
import os, resource, signal, socket, subprocess

def refused(attempt, *kinds):
    try:
        attempt()
    except kinds or PermissionError:
        return True

def memory():
    eaten = []
    while True:
        eaten.append(bytearray(2**24))

assert os.listdir() == []
assert refused(lambda: open({str(tmp_path / "new")!r}, "w"))
assert refused(lambda: open("here", "w"))
assert refused(lambda: open({str(seen)!r}))
assert refused(lambda: os.remove({str(seen)!r}))
assert refused(lambda: os.mkdir({str(tmp_path / "folder")!r}))
assert refused(lambda: socket.create_connection(("127.0.0.1", 9)))
assert refused(lambda: socket.socketpair())
assert refused(lambda: subprocess.run(["true"]))
assert refused(lambda: os.system("true"))
assert refused(lambda: os.fork())
assert refused(lambda: os.kill(os.getppid(), 9))
assert refused(lambda: os.pidfd_open(os.getppid()))
assert refused(lambda: signal.pidfd_send_signal(0, 9))
assert refused(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (99, 99)))
assert refused(lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19))
assert refused(lambda: os.sched_setaffinity(os.getppid(), [0]))
assert refused(memory, MemoryError)
assert refused(lambda: __import__("torch"), ImportError)
"""
    assert run_checks(attempts, Limits(megabytes=256)) == "passed"
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def test_the_kernel_refuses_what_escapes_python(tmp_path):
    """Without Python's part, whose refusals are clearer, the filter of system calls alone is enough."""
    script = f"""
import os, resource, runpy, signal, socket
parts = runpy.run_path({sandboxed.__file__!r})
assert parts["_refuse_system_calls"]()
for attempt in (
    lambda: os.open({str(tmp_path / "new")!r}, os.O_WRONLY | os.O_CREAT),
    lambda: open({str(tmp_path / "new")!r}, "a"), lambda: os.mkdir({str(tmp_path / "folder")!r}),
    socket.socket, socket.socketpair, os.fork, lambda: os.execv("/bin/true", ["true"]),
    lambda: os.kill(os.getpid(), 0), lambda: os.rmdir({str(tmp_path)!r}), lambda: os.utime({str(tmp_path)!r}),
    lambda: os.fchmod(os.open({str(tmp_path)!r}, os.O_RDONLY), 0o777),
    lambda: os.pidfd_open(os.getppid()), lambda: signal.pidfd_send_signal(0, 9),
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (99, 99)),
    lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 19),
    lambda: os.sched_setaffinity(os.getppid(), [0]),
):
    try:
        attempt()
    except PermissionError:
        continue
    raise SystemExit("not refused")
assert open({__file__!r}).read(1)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert not list(tmp_path.iterdir())
