"""What a stage was begun with, beside its checkpoints: it goes on with nothing else.

Settings that only say when and how steps are computed may change. `num_steps` may not, unless nothing decays:
the learning rate of every step follows it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from crocodil.checkpoints import checksums
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import read_json

_SEAL = "checksum"


def write_sealed(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps({**values, _SEAL: _seal(values)}, indent=2) + "\n")


def read_sealed(file: Path) -> dict[str, Any]:
    """What `write_sealed` wrote; anything else is a ValueError."""
    values = read_json(file)
    if values.pop(_SEAL, None) != _seal(values):
        raise ValueError(f"{file} is damaged, altered or of an older version: its checksum does not fit")
    return values


def _seal(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


STAGE_FILE = "stage.json"
_ANEW = "or start anew with another --out"

# Of a loop: what does not change the steps that were done, nor (but for rounding) those to come.
MAY_CHANGE = frozenset({
    "evaluate_every", "save_every", "keep_checkpoints",
    "num_accumulated", "compile_blocks", "recompute_blocks",
})  # fmt: skip
_REMOVED = frozenset({"record_steps"})  # fields of older versions that changed no step: their stages still resume


def keep_to_record(out: Path, settings: Any, sources: Mapping[str, str], *, begun: bool) -> None:
    """Write down what a stage begins with; where it has begun already, refuse to go on with something else.

    `settings` is a config, or fields by their dotted names; `sources` are checksums of what the stage reads.
    """
    file = out / STAGE_FILE
    now = {"settings": json.loads(json.dumps(flattened(settings), default=_written)), "sources": dict(sources)}
    if not begun:
        with whole_file(file) as unfinished:
            write_sealed(unfinished, now)
        return
    if not file.exists():
        raise ValueError(f"{file} is missing, so nobody knows what this was begun with: put it back, {_ANEW}")
    then = read_sealed(file)
    _compare_settings(out, then.get("settings"), now["settings"])
    for name in _differing(then.get("sources"), now["sources"], file):
        raise ValueError(f"{out} was begun with another {name}: give it that one, {_ANEW}")


def flattened(values: Any, prefix: str = "") -> dict[str, Any]:
    """The fields of a config by their dotted names."""
    values = asdict(values) if is_dataclass(values) and not isinstance(values, type) else values
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flattened(value, f"{prefix}{name}.")
    return found


def selected(fields: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, Any]:
    """Those that are, or lie under, one of these names."""
    names = tuple(wanted)
    return {
        name: value
        for name, value in fields.items()
        if any(name == one or name.startswith(f"{one}.") for one in names)
    }


def checksum_of(path: Path) -> str:
    """Of a file, or of a folder: of the checksums that it holds itself, where there are some."""
    own = path / checksums.CHECKSUM_FILE
    files = [path] if path.is_file() else [own] if own.is_file() else sorted(filter(Path.is_file, path.iterdir()))
    total = sha256()
    for file in files:
        total.update(f"{file.name} {checksums.sha256(file)}\n".encode())
    return total.hexdigest()


def _compare_settings(out: Path, then: Any, now: dict[str, Any]) -> None:
    names = _differing(then, now, out / STAGE_FILE)
    no_decay = {name.removesuffix("decay_share") for name in now if name.endswith("decay_share") and not now[name]}
    free = {f"{loop}num_steps" for loop in no_decay}
    names = [name for name in names if name not in free and name.rpartition(".")[2] not in MAY_CHANGE | _REMOVED]
    if names:
        first, others = names[0], len(names) - 1
        old, new = (json.dumps(some.get(first, "unset")) for some in (then, now))
        more = f" (and {others} more fields differ)" if others else ""
        raise ValueError(f"{out} was begun with {first}={old}, not {new}{more}: go on with the old value, {_ANEW}")


def _differing(then: Any, now: dict[str, Any], file: Path) -> list[str]:
    if not isinstance(then, dict):
        raise ValueError(f"{file} is damaged: put it back, {_ANEW}")
    return [name for name in {**now, **then} if then.get(name, _UNSET) != now.get(name, _UNSET)]


_UNSET = object()


def _written(value: object) -> str:
    return str(value.resolve()) if isinstance(value, Path) else str(value)
