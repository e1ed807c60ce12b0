"""What a page may ask for: one frozen config per view, with limits. Does not import torch.

A wrong value is a `FieldError`: the field that it belongs to, and one line.
"""

from dataclasses import asdict, fields
from typing import Any, TypeAlias

from crocodil.pipeline.settings import Method
from crocodil.runtime.config import Count, Length, Seed, Weight, Width, config, read_as

MAX_CHARACTERS = 20_000  # of a text; the longest canvas of the built-in model holds about a tenth
MAX_CALLS = 512
MAX_STEPS = 9  # of an interpolation
MAX_NOISE = 4.0

_FIRST = """def mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)
"""
_SECOND = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()
"""


class FieldError(ValueError):
    """A mistake in one field of a request."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field

    def event(self) -> dict[str, Any]:
        return {"event": "error", "field": self.field, "error": str(self)}


@config
class Generate:
    """Texts of several methods from one seed; a prefix or a suffix is completed."""

    seed: Seed = 1
    length: Length = 128
    calls: Count = 16
    methods: tuple[str, ...] = tuple(Method)
    prefix: str = ""
    suffix: str = ""


@config
class Autoencode:
    """A text from its own first registers."""

    text: str = _FIRST
    registers: Width = 64
    calls: Count = 8


@config
class Interpolate:
    """Texts between two texts."""

    first: str = _FIRST
    second: str = _SECOND
    steps: Count = 5
    calls: Count = 8


@config
class Steer:
    """A text from registers of which some are drawn again and some are noised.

    They are the registers of `text`, or drawn from the prior with `seed` if there is no text.
    """

    text: str = ""
    seed: Seed = 1
    length: Length = 128
    calls: Count = 8
    redrawn: tuple[int, ...] = ()  # registers to take from a second draw
    redraw_seed: Seed = 2
    noised: tuple[int, ...] = ()  # registers with noise on them
    noise: Weight = 0.0  # standard deviation of the noise; that of registers is 1
    noise_seed: Seed = 0


Request: TypeAlias = Generate | Autoencode | Interpolate | Steer
VIEWS: dict[str, type] = {
    "generate": Generate,
    "complete": Generate,
    "autoencode": Autoencode,
    "interpolate": Interpolate,
    "steer": Steer,
}
COMPLETED = {"prefix": "def read(path):\n", "suffix": "", "length": 64}


def defaults() -> dict[str, dict[str, Any]]:
    """Return what each view asks for before anybody changes it."""
    values = {view: asdict(kind()) for view, kind in VIEWS.items()}
    values["complete"] |= COMPLETED | {"methods": (str(Method.CON_WITHIN_DISC),)}
    return values


def parse(values: Any) -> Request:
    """Return the request in a JSON object; raise a `FieldError` if something is wrong with it."""
    if not isinstance(values, dict):
        raise FieldError("", "a request is a JSON object")
    values = dict(values)
    view = values.pop("view", None)
    if not isinstance(view, str) or view not in VIEWS:
        raise FieldError("view", f"no such view: take one of {', '.join(VIEWS)}")
    for name, value in values.items():
        _check_text("", name)
        if isinstance(value, str):
            _check_text(name, value)
    try:
        request: Request = read_as(VIEWS[view], values, "request")
    except ValueError as error:
        raise _error_of(str(error), VIEWS[view]) from None
    _check_limits(request)
    return request


def _check_text(name: str, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise FieldError(name, f"{len(text):,} characters are too many: at most {MAX_CHARACTERS:,} are taken")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FieldError(name, "this is not valid text: it has half of a character") from None


def _error_of(message: str, kind: type) -> FieldError:
    """Return the fault that a line of `read_as` describes: it begins with the field."""
    message = message.removeprefix("request: ")
    name, _, rest = message.partition(" ")
    name = name.split(".")[0]
    known = {entry.name for entry in fields(kind)}
    return FieldError(name, rest) if name in known else FieldError("", message)


def _check_limits(request: Request) -> None:
    if request.calls > MAX_CALLS:
        raise FieldError("calls", f"at most {MAX_CALLS} calls are made, not {request.calls}")
    if isinstance(request, Generate):
        if unknown := [name for name in request.methods if name not in list(Method)]:
            raise FieldError("methods", f"no method {unknown[0][:40]!r}: take some of {', '.join(Method)}")
        if not request.methods:
            raise FieldError("methods", "take at least one method")
        if len(set(request.methods)) < len(request.methods):
            raise FieldError("methods", "take each method once")
    if isinstance(request, Interpolate) and not 2 <= request.steps <= MAX_STEPS:
        raise FieldError("steps", f"an interpolation has 2 to {MAX_STEPS} steps, not {request.steps}")
    if isinstance(request, Steer) and request.noise > MAX_NOISE:
        raise FieldError("noise", f"the noise goes up to {MAX_NOISE:g}, not {request.noise:g}")
