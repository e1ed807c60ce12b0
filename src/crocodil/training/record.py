"""The settings that a stage started with, in stage.json beside its checkpoints: it resumes with the same ones.

Settings that only say when and how steps are computed may change. `num_steps` and `decay_share` may change until
the learning rate begins to decay, since the steps so far are the same with both. So a run can be prolonged, or
brought to its end, while its learning rate is constant.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from crocodil.checkpoints import checksums
from crocodil.checkpoints.hub import recorded_name
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import read_json

STAGE_FILE = "stage.json"
_START_AGAIN = "or start again with another --out"

# Fields of a loop that change no past step. In future ones they change rounding, and `num_accumulated` also which
# samples a share of a batch has, such as drafts.
MAY_CHANGE = frozenset({
    "evaluate_every", "save_every", "keep_checkpoints",
    "num_accumulated", "compile_blocks", "recompute_blocks",
})  # fmt: skip
SCHEDULE = frozenset({"num_steps", "decay_share"})  # may change before the decay begins
_REMOVED = frozenset({"record_steps"})  # fields of older versions that changed no step: their stages still resume


def write_or_check_record(
    out: Path, settings: Any, sources: Mapping[str, str], *, started: bool, num_done: int = 0
) -> None:
    """Write stage.json when a stage starts; when it resumes, refuse other settings or sources.

    `settings` is a config, or its fields by dotted names. `sources` are checksums of what the stage reads.
    `num_done` is the number of steps before the stage resumes.
    """
    file = out / STAGE_FILE
    values = json.loads(json.dumps(flatten_config(settings), default=_to_text))
    current = {"settings": values, "sources": dict(sources)}
    if not started:
        _write(file, current)
        return
    if not file.exists():
        raise ValueError(f"{file} is missing, so the stage's settings are unknown: restore it, {_START_AGAIN}")
    recorded = read_checksummed(file)
    schedules = _check_settings(out, recorded.get("settings"), values, num_done)
    for name in _differing(recorded.get("sources"), current["sources"], file):
        raise ValueError(f"{out} was started with another {name}: use that one, {_START_AGAIN}")
    if schedules:
        _write(file, {**recorded, "settings": {**recorded["settings"], **schedules}})


def add_to_record(out: Path, name: str, value: Any) -> None:
    """Add a value to the stage.json of a stage that has started, or replace it."""
    file = out / STAGE_FILE
    _write(file, {**read_checksummed(file), name: value})


def _write(file: Path, values: Mapping[str, Any]) -> None:
    with whole_file(file) as unfinished:
        write_checksummed(unfinished, values)


def _check_settings(out: Path, recorded: Any, current: dict[str, Any], num_done: int) -> dict[str, Any]:
    """Refuse other settings, apart from those that may change; return the changed fields of schedules."""
    differing = _differing(recorded, current, out / STAGE_FILE)
    schedules = {
        name: current[name]
        for name in differing
        if name.rpartition(".")[2] in SCHEDULE
        and all(num_done <= _decay_begins(values, name.rpartition(".")[0]) for values in (recorded, current))
    }
    names = [
        name
        for name in differing
        if name not in schedules and name.rpartition(".")[2] not in MAY_CHANGE | _REMOVED
    ]
    if names:
        first, others = names[0], len(names) - 1
        old, new = (json.dumps(values.get(first, "unset")) for values in (recorded, current))
        more = f" (and {others} more fields differ)" if others else ""
        raise ValueError(
            f"{out} was started with {first}={old}, not {new}{more}: resume with the old value, {_START_AGAIN}"
        )
    return schedules


def _decay_begins(settings: Mapping[str, Any], loop: str) -> float:
    """Return the number of steps before the learning rate of a loop decays (`LoopConfig.learning_rate_at`)."""
    num_steps, share = settings.get(f"{loop}.num_steps", 0), settings.get(f"{loop}.decay_share", 1.0)
    return round(num_steps * (1 - share)) if share else math.inf


def _differing(recorded: Any, current: dict[str, Any], file: Path) -> list[str]:
    if not isinstance(recorded, dict):
        raise ValueError(f"{file} is damaged: restore it, {_START_AGAIN}")
    names = [name for name in {**current, **recorded} if recorded.get(name, _UNSET) != current.get(name, _UNSET)]
    both = recorded.keys() & current.keys()
    return [name for name in names if name in both or {**current, **recorded}[name] not in _OFF]


_UNSET = object()
# With one of these values, a field that only newer or only older versions have changes nothing (0 equals False).
_OFF: tuple[Any, ...] = (None, False, [])


def _to_text(value: object) -> str:
    return recorded_name(value.resolve()) if isinstance(value, Path) else str(value)


# ---------------------------------------------------------------- fields of a config


def flatten_config(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a config by their dotted names."""
    values = asdict(values) if is_dataclass(values) and not isinstance(values, type) else values
    if not isinstance(values, dict):
        return {prefix.removesuffix("."): values}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        fields |= flatten_config(value, f"{prefix}{name}.")
    return fields


def select_fields(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields with one of these dotted names, or below one of them."""
    prefixes = tuple(f"{name}." for name in names)
    return {name: value for name, value in fields.items() if f"{name}.".startswith(prefixes)}


# ---------------------------------------------------------------- checksums

_CHECKSUM = "checksum"


def write_checksummed(file: Path, values: Mapping[str, Any]) -> None:
    """Write values as JSON, with a checksum of them."""
    file.write_text(json.dumps({**values, _CHECKSUM: _checksum(values)}, indent=2) + "\n")


def read_checksummed(file: Path) -> dict[str, Any]:
    """Read what `write_checksummed` wrote; anything else is a ValueError."""
    values = read_json(file)
    if values.pop(_CHECKSUM, None) != _checksum(values):
        raise ValueError(f"{file} is damaged, edited or from an older version: its checksum does not match")
    return values


def _checksum(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def checksum_of(path: Path) -> str:
    """Return the checksum of a file or a folder: of its checksum file or, without one, of its JSON and weights.

    Other files do not count: other tools may add some to a folder in the hub's cache.
    """
    listed = path / checksums.CHECKSUM_FILE
    if path.is_file():
        files = [path]
    elif listed.is_file():
        files = [listed]
    else:
        files = sorted([*path.glob("*.json"), *path.glob("*.safetensors")])
    total = sha256()
    for file in files:
        total.update(f"{file.name} {checksums.sha256(file)}\n".encode())
    return total.hexdigest()
