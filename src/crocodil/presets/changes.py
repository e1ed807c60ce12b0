"""Single fields of a run by their dotted names: `guided_objective.register_cosine=1.0`."""

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from crocodil.training.run import Run


def changed(run: Run, changes: Iterable[str]) -> Run:
    """The run with these fields set, all at once; each change is NAME=VALUE with a JSON value."""
    wanted: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"a change is NAME=VALUE, not {change!r}")
        _plan(wanted, run, name, _read(name, text))
    return _with(run, wanted)


def _plan(wanted: dict[str, Any], config: Any, name: str, value: Any) -> None:
    """Put a change into a tree of changes, which has the shape of the configs."""
    *path, last = name.split(".")
    for first in path:
        _check_known(config, name, first)
        config, wanted = getattr(config, first), wanted.setdefault(first, {})
    _check_known(config, name, last)
    if is_dataclass(old := getattr(config, last)):
        raise ValueError(f"{name} has fields of its own: set one of {', '.join(f.name for f in fields(old))}")
    # JSON has lists only.
    wanted[last] = tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value


def _check_known(config: Any, name: str, field: str) -> None:
    known = [one.name for one in fields(config)] if is_dataclass(config) else []
    if field not in known:
        raise ValueError(f"no field {name!r}: at {field!r} there are {', '.join(known) or 'no fields'}")


def _with(config: Any, wanted: Any) -> Any:
    """Each config is made once, so that changes that only fit together are not looked at one by one."""
    if not is_dataclass(config) or isinstance(config, type):
        return wanted
    return replace(config, **{name: _with(getattr(config, name), value) for name, value in wanted.items()})


def _read(name: str, text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{name}: the value is nested too deeply") from None
    except ValueError:
        return text
