"""JSON files with a checksum over their own content: what was damaged or altered is found out when it is read."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from crocodil.config import read_json

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
