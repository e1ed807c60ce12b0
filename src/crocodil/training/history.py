"""What a run recorded about its stages: how long each was trained, and with which settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crocodil.training.journal import METRICS_FILE, read_rows
from crocodil.training.record import STAGE_FILE, read_checksummed
from crocodil.training.run_config import RunSummary, read_run_file, summary_of

# Later stages override fields of earlier ones. No stage starts from head or prompted, so the others override them.
_STAGES = ("base", "head", "prompted", "guided", "prior", "conditional", "distilled")
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


def recorded_run(directory: Path) -> dict[str, Any]:
    """Return run.json of a run, with the settings that each stage recorded for itself.

    run.json holds the settings with which the newest stage started; earlier stages may have had others.
    """
    values = read_run_file(directory)
    for stage in _STAGES:
        file = directory / stage / STAGE_FILE
        settings = read_checksummed(file).get("settings", {}) if file.exists() else {}
        for name, value in settings.items():
            *path, field = name.split(".")
            part = values
            for key in path:
                if not isinstance(part.get(key), dict):
                    part[key] = {}
                part = part[key]
            part[field] = value
    return values


def read_run_summary(directory: Path) -> RunSummary:
    """Return the settings of a run that its model needs, as the stages used them that trained its networks."""
    return summary_of(recorded_run(directory), directory)


def history(directory: Path, stages: Iterable[str]) -> list[StageHistory]:
    """Return what is known of these stages of a run."""
    values, stage_histories = recorded_run(directory), []
    for stage in stages:
        loop = dict(values.get(f"{stage}_loop") or {})
        fields = {field: loop.get(field) for field in _FIELDS}
        stage_histories.append(StageHistory(stage=stage, minutes=_minutes(directory / stage), **fields))
    return stage_histories


def _minutes(stage: Path) -> float | None:
    if not (stage / METRICS_FILE).is_file():
        return None
    return sum(row.get("step_s", 0.0) for row in read_rows(stage)) / 60
