"""Frozen configs whose values are checked by type and range, from Python, JSON or the command line.

`@config` makes a frozen dataclass. The aliases below define the allowed values of a field. A wrong value raises a
ValueError of one line. pydantic does the checking (decision D35).
"""

import dataclasses
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

Class = TypeVar("Class")

Count = Annotated[int, Field(ge=1, le=2**40)]
Amount = Annotated[int, Field(ge=0, le=2**40)]
TokenId = Annotated[int, Field(ge=0, le=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
# Limits far above any real network: a damaged config is refused before a network is built from it.
Width = Annotated[int, Field(ge=1, le=2**20)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Length = Annotated[int, Field(ge=1, le=2**20)]
Lengths = Annotated[tuple[Length, ...], Field(min_length=1)]
Steps = Annotated[int, Field(ge=1, le=10_000)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Cosine = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]
Folder = Annotated[Path, Field(strict=False)]  # also given as text


def _drawable(temperature: float) -> float:
    """Refuse tiny temperatures, which overflow the logits; 0 means the most probable token."""
    if 0 < temperature < 1e-3:
        raise ValueError("should be 0 (the most probable token) or at least 0.001")
    return temperature


Temperature = Annotated[float, Field(ge=0, le=1000), AfterValidator(_drawable)]

TopP = Annotated[float, Field(gt=0, le=1)]
Guidance = Annotated[float, Field(ge=-100, le=100)]
PagScale = Annotated[float, Field(ge=0, le=100)]


def checked_by(check: Callable[[Any], Any]) -> Any:
    """A type of field whose values `check` returns, or refuses with a ValueError."""
    return Annotated[Any, AfterValidator(check)]


_STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True, extra="forbid")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[Class]) -> type[Class]:
    """Turn a class into a frozen dataclass with keyword arguments whose values are checked on creation."""
    checked_class: Any = checked_dataclass(frozen=True, kw_only=True, config=_STRICT)(cls)
    check = checked_class.__init__

    @wraps(check)
    def checked_init(self: Any, **values: Any) -> None:
        try:
            check(self, **values)
        except ValidationError as error:
            raise ValueError(first_fault(error, cls.__name__)) from None

    checked_class.__init__ = checked_init
    return checked_class


def read_as(kind: Any, values: Any, source: object) -> Any:
    """Convert JSON values to a config or another type; errors name the file `source`."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise ValueError(f"{source}: {first_fault(error)}") from None


def parse_as(kind: Any, text: str) -> Any:
    """Parse the text of a command-line option."""
    try:
        return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False)).validate_strings(text)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None


def config_from_json(config_class: type, values: Any, source: Path) -> Any:
    """Return a config with exactly these values; a missing or unknown field is an error."""
    if not isinstance(values, dict):
        raise ValueError(f"{source}: expected the fields of {config_class.__name__}, not {values!r}")
    _check_fields(config_class, values, source)
    return read_as(config_class, values, source)


def _check_fields(config_class: type, values: dict[str, Any], source: Path) -> None:
    """Require every field: a default may have changed since the file was written."""
    types = get_type_hints(config_class)
    if differ := set(types) ^ set(values):
        raise ValueError(f"{source}: fields of {config_class.__name__} differ: {', '.join(sorted(differ))}")
    for name, value in values.items():
        if dataclasses.is_dataclass(types[name]) and isinstance(value, dict):
            _check_fields(types[name], value, source)


def json_lines(text: str) -> list[str]:
    """Split a .jsonl file. `str.splitlines` would also split at U+2028, which JSON strings may hold."""
    return text.removesuffix("\n").split("\n") if text else []


def read_json(file: Path) -> dict[str, Any]:
    if file.is_dir():
        raise ValueError(f"{file} is a folder, not a file")
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} does not hold a JSON object")
    return values


def first_fault(error: ValidationError, owner: str = "") -> str:
    """Return the first error in one line: the field, what was expected, and the value."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in fault["loc"])
    kind, message = fault["type"], fault["msg"].removeprefix("Value error, ")
    if kind.startswith("missing"):
        message = "is missing"
    elif kind.startswith("unexpected") or kind == "extra_forbidden":
        message = "is not a known field"
    elif kind != "value_error":
        message = f"{message.replace('Input should', 'should')}, not {_short(fault['input'])}"
    others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{owner}: {where} {message}{others}".removeprefix(": ") if where else message + others


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
