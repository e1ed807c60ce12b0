"""What a run recorded about its stages: how long each was trained, and with which settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crocodil.training.journal import METRICS_FILE, read_rows
from crocodil.training.record import STAGE_FILE, read_checksummed
from crocodil.training.run_config import read_run_file

_FIELDS = ("num_steps", "batch_size", "optimiser", "learning_rate")


@dataclass(frozen=True)
class StageHistory:
    """One stage. What was not recorded is None."""

    stage: str
    num_steps: int | None
    batch_size: int | None
    optimiser: str | None
    learning_rate: float | None
    minutes: float | None  # of training steps, without validation and checkpoints


def history(directory: Path, stages: Iterable[str]) -> list[StageHistory]:
    """Return what is known of these stages of a run.

    A stage's own record counts: run.json has the settings of the stage that started last, which may differ.
    """
    return [
        StageHistory(stage=stage, minutes=_minutes(directory / stage), **_loop(directory, stage))
        for stage in stages
    ]


def _loop(directory: Path, stage: str) -> dict[str, Any]:
    file, loop = directory / stage / STAGE_FILE, f"{stage}_loop"
    if file.exists():
        settings = read_checksummed(file).get("settings", {})
        return {field: settings.get(f"{loop}.{field}") for field in _FIELDS}
    values = dict(read_run_file(directory).get(loop) or {})
    return {field: values.get(field) for field in _FIELDS}


def _minutes(stage: Path) -> float | None:
    if not (stage / METRICS_FILE).is_file():
        return None
    return sum(row.get("step_s", 0.0) for row in read_rows(stage)) / 60
