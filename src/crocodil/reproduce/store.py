"""Results as rows of JSON, one file per experiment. A row is computed once, even if the process is stopped."""

import json
import math
import os
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import crocodil
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import json_lines, read_as
from crocodil.runtime.progress import progress

Row: TypeAlias = dict[str, Any]
CONDITIONS_FILE = "conditions.json"
MAX_NOTE_FIELDS = 6  # a progress bar shows shorter keys only
MODEL = "model"  # the condition that is a dictionary of parts
VARIANT_MODEL = "variant_model"  # the key with the parts of a model that is measured beside the context's
LENGTH = "length"  # the condition that is the length of the canvas


class Job(NamedTuple):
    """A row to compute."""

    key: Row  # what the row is about
    compute: Callable[[], Row]
    work: int = 1  # relative to other jobs, for the progress bar
    uses: Collection[str] | None = None  # the parts of the model that it depends on; None: all
    chosen: Row | None = None  # the settings it uses: a row computed with others is replaced
    defaults: Row | None = None  # of settings that older rows do not name


def note_of(key: Row) -> str:
    """Return a key as a note for the progress bar; the long key of a whole model would not be readable."""
    return ", ".join(map(str, key.values())) if len(key) <= MAX_NOTE_FIELDS else ""


@dataclass(frozen=True)
class Store:
    """The files DIRECTORY/NAME.jsonl. Every row holds the `conditions`: model, setting, seed, judge and so on.

    A row computed under other conditions stays in its file and is not used. A row names only the parts of the
    model that it depends on: the rows of the base or the autoencoder stay valid when a new prior is trained.
    """

    directory: Path
    conditions: Row

    def rows(self, name: str) -> list[Row]:
        """Return the rows of an experiment that were computed under these conditions."""
        conditions = as_json(self.conditions)
        parts = conditions.pop(MODEL, {})
        return [
            row
            for row in read_rows(self.file(name))
            if _matches(row, conditions) and row.get(MODEL, {}).items() <= parts.items()
        ]

    def compute(self, name: str, jobs: Sequence[Job]) -> list[Row]:
        """Return the rows of all jobs, in order; compute those that are not in the file yet."""
        known, rows = self.rows(name), []
        with progress(name, sum(job.work for job in jobs), unit="steps", shown=bool(jobs)) as advance:
            for job in jobs:
                conditions = self._conditions_of(job)
                key = as_json({**job.key, **conditions})
                self._remove_replaced(name, known, key)
                row = next((row for row in known if _matches(row, key)), None)
                if row is not None and not _matches(
                    {**as_json(job.defaults or {}), **row}, as_json(job.chosen or {})
                ):
                    self._remove(name, row)
                    row = None
                if row is None:
                    measured = {**job.key, **job.compute()}
                    assert not set(measured) & set(conditions), "a measured value has the name of a condition"
                    row = as_json({**measured, **conditions, "commit": commit()})
                    self._append(name, row)
                rows.append(row)
                advance(job.work, note=note_of(job.key))
        return rows

    def _conditions_of(self, job: Job) -> Row:
        if job.uses is None:
            return self.conditions
        return {**self.conditions, MODEL: {part: self.conditions[MODEL][part] for part in job.uses}}

    def file(self, name: str) -> Path:
        return self.directory / f"{name}.jsonl"

    def _remove_replaced(self, name: str, known: Sequence[Row], key: Row) -> None:
        """Remove rows of another model that was measured under the name of this one."""
        if VARIANT_MODEL not in key:
            return
        same = {field: value for field, value in key.items() if field != VARIANT_MODEL}
        for row in known:
            if _matches(row, same) and not _matches(row, key):
                self._remove(name, row)

    def _remove(self, name: str, row: Row) -> None:
        write_rows(self.file(name), [other for other in read_rows(self.file(name)) if other != row])

    def _append(self, name: str, row: Row) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.file(name)
        if file.exists() and not file.read_bytes().endswith(b"\n"):  # a process was killed while it wrote
            write_rows(file, read_rows(file))
        with file.open("a", encoding="utf-8") as lines:
            lines.write(_line(row))


def write_conditions(directory: Path, conditions: Sequence[Row]) -> None:
    """Write the conditions of every model of a run: the report can then be made from the files alone.

    Conditions of other lengths stay if they differ in nothing but the model: lengths may be measured one by one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    new = as_json(list(conditions))
    lengths = [of_model.get(LENGTH) for of_model in new]
    known = (
        [store.conditions for store in read_stores(directory)] if (directory / CONDITIONS_FILE).exists() else []
    )
    kept = [old for old in known if old.get(LENGTH) not in lengths and _common(old) == _common(new[0])]
    by_length = sorted([*kept, *new], key=lambda of_model: of_model[LENGTH])
    with whole_file(directory / CONDITIONS_FILE) as unfinished:
        unfinished.write_text(json.dumps(by_length, indent=2) + "\n")


def _common(conditions: Row) -> Row:
    """Return the conditions that do not depend on the model or the length."""
    return {name: value for name, value in conditions.items() if name not in (MODEL, LENGTH, "weak_prior")}


def read_stores(directory: Path) -> list[Store]:
    """Return one store per model of the run that wrote this directory."""
    file = directory / CONDITIONS_FILE
    if not file.is_file():
        raise ValueError(f"{directory} holds no results: {CONDITIONS_FILE} is missing")
    conditions = read_as(list[dict[str, Any]], _read_json(file), file)
    return [Store(directory, of_model) for of_model in conditions]


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error


def read_rows(file: Path) -> list[Row]:
    """Return all complete rows; an incomplete last line, left by a killed process, is skipped."""
    if not file.exists():
        return []
    if not file.is_file():
        raise ValueError(f"{file} is not a regular file")
    return list(_parsed(json_lines(file.read_text(encoding="utf-8")), file))


def _parsed(lines: Sequence[str], file: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
            if number == len(lines):
                return
        if not isinstance(row, dict):
            raise ValueError(f"{file} is damaged: line {number} is not a row: {line[:60]!r}")
        yield row


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    with whole_file(file) as unfinished:
        unfinished.write_text("".join(map(_line, rows)), encoding="utf-8")


def select(rows: Sequence[Row], **key: Any) -> list[Row]:
    """Return the rows with these values."""
    return [row for row in rows if _matches(row, as_json(key))]


def distinct(rows: Sequence[Row], name: str) -> list[Any]:
    """Return the distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows))


def _matches(row: Row, key: Mapping[str, Any]) -> bool:
    return all(name in row and row[name] == value for name, value in key.items())


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def as_json(value: Any) -> Any:
    """Return the value as JSON reads it back; NaN and infinity become None."""
    if isinstance(value, dict):
        return {str(name): as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@cache
def commit() -> str:
    """Return the commit of this code; without its git history, CROCODIL_COMMIT or the version."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return described.stdout.strip() or os.environ.get("CROCODIL_COMMIT") or crocodil.__version__
