"""Single fields of a run by their dotted names: `guided_objective.register_cosine=1.0`."""

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from crocodil.training.run import Run


def changed(run: Run, changes: Iterable[str]) -> Run:
    """The run with these fields set, each change being NAME=VALUE with a JSON value."""
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"a change is NAME=VALUE, not {change!r}")
        run = _with(run, name, name.split("."), _read(value))
    return run


def _with(config: Any, name: str, path: list[str], value: Any) -> Any:
    known = [field.name for field in fields(config)] if is_dataclass(config) else []
    first, *rest = path
    if first not in known:
        raise ValueError(f"no field {name!r}: at {first!r} there are {', '.join(known) or 'no fields'}")
    old = getattr(config, first)
    if rest:
        return replace(config, **{first: _with(old, name, rest, value)})
    if is_dataclass(old):
        raise ValueError(f"{name} has fields of its own: set one of {', '.join(f.name for f in fields(old))}")
    if isinstance(old, tuple) and isinstance(value, list):
        value = tuple(value)  # JSON has no other
    return replace(config, **{first: value})  # which checks it


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
