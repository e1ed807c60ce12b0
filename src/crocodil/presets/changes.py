"""Changes of single fields of a run by name: `crocodil train --set guided_loop.num_steps=500`."""

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from crocodil.training.run_config import Run


def with_changes(run: Run, changes: Iterable[str]) -> Run:
    """Return the run with these fields changed; each change is NAME=VALUE, where VALUE is JSON or plain text.

    All changes are made at once, so that fields which must agree can be changed together.
    """
    tree: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"a change must be NAME=VALUE, not {change!r}")
        _add_change(tree, run, name, _parse(name, text))
    return _replace_fields(run, tree)


def _add_change(tree: dict[str, Any], config: Any, name: str, value: Any) -> None:
    """Add a change to a tree of changes, which has the structure of the configs."""
    *path, last = name.split(".")
    for part in path:
        _check_field(config, name, part)
        config, tree = getattr(config, part), tree.setdefault(part, {})
    _check_field(config, name, last)
    if is_dataclass(old := getattr(config, last)):
        raise ValueError(f"{name} is a group of fields: set one of {', '.join(f.name for f in fields(old))}")
    # JSON has no tuples.
    tree[last] = tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value


def _check_field(config: Any, name: str, part: str) -> None:
    known = [field.name for field in fields(config)] if is_dataclass(config) else []
    if part not in known:
        raise ValueError(f"no field {name!r}: instead of {part!r} there are {_listed(part, known)}")


def _listed(part: str, known: list[str]) -> str:
    """List the names of fields; if there are too many, only those most similar to `part`."""
    listed = ", ".join(known) or "no fields"
    if len(listed) <= _LONGEST_LIST:
        return listed
    return ", ".join(get_close_matches(part, known) or known[:8]) + " and others (training/run_config.py)"


_LONGEST_LIST = 240  # characters


def _replace_fields(config: Any, tree: Any) -> Any:
    """Replace all changed fields of a config at once, so that it is validated once, with all changes."""
    if not is_dataclass(config) or isinstance(config, type):
        return tree
    return replace(config, **{name: _replace_fields(getattr(config, name), value) for name, value in tree.items()})


def _parse(name: str, text: str) -> Any:
    """Parse JSON; text that is not JSON stands for itself."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{name}: the value is nested too deeply") from None
    except ValueError:
        return text
