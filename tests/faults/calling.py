"""Run a command of the command line in this process, and check its outcome."""

import contextlib
import io
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The smallest sizes that every class allows: a stage takes a fraction of a second.
_SHAPES = (
    "demasker.backbone.width=16", "demasker.backbone.num_kv_heads=2", "demasker.backbone.num_heads=2",
    "demasker.backbone.mlp_width=16", "demasker.backbone.num_layers=1", "demasker.register_width=8",
    "demasker.num_registers=4", "encoder.width=16", "encoder.num_kv_heads=2", "encoder.num_heads=2",
    "encoder.mlp_width=16", "encoder.num_layers=1", "encoder.register_width=8", "encoder.num_registers=4",
    "encoder.head_width=8", "prior.register_width=8", "prior.width=16", "prior.num_heads=2", "prior.num_layers=1",
    "prior.num_registers=2", "conditional.register_width=8", "conditional.width=16", "conditional.num_heads=2",
    "conditional.num_layers=1", "conditional.num_registers=2", "conditional.condition_width=8",
    "conditional.condition_length=4", "encoder_warmup_steps=1",
)  # fmt: skip
_LOOPS = tuple(
    f"{stage}_loop.{change}"
    for stage in ("base", "guided", "prior", "conditional")
    for change in ("num_steps=4", "save_every=2", "evaluate_every=4", "batch_size=4", "warmup_steps=1")
)
SMALL = (*_SHAPES, *_LOOPS)

LIMIT_S = 20  # per call; the slowest correct call takes a twentieth of it

# What stderr may hold before the one line of an error: progress and our warnings.
_ALLOWED = re.compile(r"crocodil: |(.*: )?\d+/\d+ |.* s left|.* \.\.\.$|\s*$")


class Fault(Exception):  # noqa: N818
    """A guarantee was broken."""

    def __init__(self, category: str, detail: str) -> None:
        super().__init__(f"{category}: {detail}")
        self.category, self.detail = category, detail


TRACEBACK, HANG, LOST, WRONG, UNCLEAR, DIED = (
    "traceback", "hang", "lost file", "silent wrong result", "no clear line", "died",
)  # fmt: skip


class Hang(BaseException):
    """The call exceeded its time limit."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    raised: str = ""  # the exception that main() did not catch
    hung: bool = False

    @property
    def line(self) -> str:
        """The last line of the output."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else ""


def call(*arguments: object, limit_s: float = LIMIT_S) -> Outcome:
    """Run `crocodil ARGUMENTS`, and return its exit code, its output, and the exception if it raised one."""
    words = tuple(str(one) for one in arguments)
    with _captured() as (out, err):
        code, raised, hung = _called(words, limit_s)
    return Outcome(words, code, _read(out), _read(err), raised, hung)


def _called(words: Sequence[str], limit_s: float) -> tuple[int, str, bool]:
    from crocodil.cli import main

    sys.argv = ["crocodil", *words]
    try:
        with _limit(limit_s):
            main()
        return 0, "", False
    except SystemExit as ended:
        code = ended.code
        return (code if isinstance(code, int) else int(code is not None)), "", False
    except Hang:
        return -1, traceback.format_exc(), True
    except BaseException:
        return -1, traceback.format_exc(), False


@contextlib.contextmanager
def _captured() -> Iterator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """Streams with the encoding of real ones: stdout is strict, stderr escapes invalid UTF-8."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("default")
        yield out, err


def _read(stream: io.TextIOWrapper) -> str:
    return stream.buffer.getvalue().decode("utf-8", "replace")


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    # Repeatedly, since an `except BaseException` that cleans up may catch the first exception.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---------------------------------------------------------------- checks


def check(outcome: Outcome) -> Outcome:
    """Require exit code 0, or 1 or 2 with one clear line."""
    shown = shown_command(outcome.arguments)
    if outcome.hung:
        raise Fault(HANG, f"no end within {LIMIT_S} s, at {_innermost(outcome.raised)}: {shown}")
    if outcome.raised or "Traceback" in outcome.err:
        raise Fault(TRACEBACK, f"{_innermost(outcome.raised or outcome.err)}: {shown}")
    if outcome.code == 0:
        return outcome
    if outcome.code not in (1, 2):
        raise Fault(UNCLEAR, f"exit code {outcome.code}: {shown}")
    if not outcome.line.startswith("crocodil: ") or len(outcome.line) <= len("crocodil: "):
        raise Fault(UNCLEAR, f"the last line is {outcome.line[:160]!r}: {shown}")
    if strange := [line for line in outcome.err.splitlines() if not _ALLOWED.match(line)]:
        raise Fault(UNCLEAR, f"more than one line, {strange[0][:160]!r}: {shown}")
    return outcome


def succeeds(outcome: Outcome) -> Outcome:
    """Require exit code 0, for commands that the campaign itself depends on."""
    if check(outcome).code:
        raise Fault(UNCLEAR, f"{shown_command(outcome.arguments)} should succeed: {outcome.line}")
    return outcome


def shown_command(arguments: Sequence[str]) -> str:
    """Return a command as text, without the campaign's folders and the settings that make a run small."""
    words, left = [], list(arguments)
    while left:
        word = left.pop(0)
        if word == "--set" and left and left[0] in SMALL:
            left.pop(0)
        else:
            words.append(_shown(word))
    said = " ".join(["crocodil", *words])
    return re.sub(r"\S*/faults-\w+/sandbox-\d+", "BOX", re.sub(r"\S*/faults-\w+/world", "WORLD", said))


def _shown(word: str) -> str:
    word = word if len(word) < 160 else f"{word[:150]}...({len(word)} characters)"
    return word if re.fullmatch(r"[\w./=:+,-]+", word, re.ASCII) else ascii(word)


def _innermost(trace: str) -> str:
    """Return the exception and the last lines of our own code in its traceback."""
    lines = trace.strip().splitlines() or ["?"]
    places = re.findall(r'File ".*?/src/(crocodil/.*?)", line (\d+)', trace)
    where = " < ".join(f"{file}:{line}" for file, line in places[:-4:-1])
    return f"{lines[-1][:200]} ({where or 'no code of ours'})"


# ---------------------------------------------------------------- in child processes


def forked(*arguments: object, before: object = None) -> "Forked":
    """Start the same call in a forked process, which a test may kill; `before` runs in it first."""
    return Forked(tuple(str(one) for one in arguments), before)


class Forked:
    """A call in a child process. Everything is imported before the fork, so that it starts at once."""

    def __init__(self, arguments: tuple[str, ...], before: object = None) -> None:
        self.arguments = arguments
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.reading)
            _be_the_child(arguments, before, writing)
        os.close(writing)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> Outcome | None:
        """Return the outcome, or None if the process was killed."""
        with os.fdopen(self.reading, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) == signal.SIGKILL:
                return None
            raise Fault(DIED, f"{shown_command(self.arguments)}: signal {os.WTERMSIG(status)}")
        fields = json.loads(said)
        return Outcome(**fields | {"arguments": tuple(fields["arguments"])})


def _be_the_child(arguments: tuple[str, ...], before: object, writing: int) -> None:
    try:
        if callable(before):
            before()
        outcome = call(*arguments, limit_s=10 * LIMIT_S)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(vars(outcome)).encode())
    finally:
        os._exit(0)
