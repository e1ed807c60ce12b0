"""Results as rows of JSON, a file an experiment: each row is computed once, whatever stops the process."""

import json
import math
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import crocodil
from crocodil.runtime.atomic import whole_file
from crocodil.runtime.config import read_as
from crocodil.runtime.progress import progress

Row: TypeAlias = dict[str, Any]
CONDITIONS_FILE = "conditions.json"
LONGEST_NOTE = 6  # fields of a key that a progress bar shows
MODEL = "model"  # the condition that has parts


class Job(NamedTuple):
    """A row that is wanted: what it is about, how it is found, and how long that takes beside others."""

    key: Row
    compute: Callable[[], Row]
    work: int = 1
    uses: Collection[str] | None = None  # the parts of the model that it depends on; None: all
    chosen: Row | None = None  # how it is computed: where a row was computed otherwise, this one takes its place


def note_of(key: Row) -> str:
    """What a row is about, for a person; the long key of a whole model says nothing at a glance."""
    return ", ".join(map(str, key.values())) if len(key) <= LONGEST_NOTE else ""


@dataclass(frozen=True)
class Store:
    """DIRECTORY/NAME.jsonl. `conditions` (model, setting, seed, judge ...) stand in every row.

    A row that was computed under other conditions stays in its file, and answers no question. Of the model it
    names the parts that were used: the rows of a base, or of an autoencoder, outlive a prior that is trained anew.
    """

    directory: Path
    conditions: Row

    def rows(self, name: str) -> list[Row]:
        wanted = _plain(self.conditions)
        parts = wanted.pop(MODEL, {})
        return [
            row
            for row in read_rows(self._file(name))
            if _holds(row, wanted) and row.get(MODEL, {}).items() <= parts.items()
        ]

    def compute(self, name: str, jobs: Sequence[Job]) -> list[Row]:
        """The rows of all jobs, in their order; those that are in the file already are not computed again."""
        known, found = self.rows(name), []
        with progress(name, sum(job.work for job in jobs), unit="steps", shown=bool(jobs)) as advance:
            for job in jobs:
                conditions = self._conditions_of(job)
                key = _plain({**job.key, **conditions})
                row = next((row for row in known if _holds(row, key)), None)
                if row is not None and not _holds(row, job.chosen or {}):
                    self._remove(name, row)
                    row = None
                if row is None:
                    measured = {**job.key, **job.compute()}
                    assert not set(measured) & set(conditions), "a measure has the name of a condition"
                    row = _plain({**measured, **conditions, "commit": commit()})
                    self._append(name, row)
                found.append(row)
                advance(job.work, note=note_of(job.key))
        return found

    def _conditions_of(self, job: Job) -> Row:
        if job.uses is None:
            return self.conditions
        return {**self.conditions, MODEL: {part: self.conditions[MODEL][part] for part in job.uses}}

    def _file(self, name: str) -> Path:
        return self.directory / f"{name}.jsonl"

    def _remove(self, name: str, row: Row) -> None:
        write_rows(self._file(name), [other for other in read_rows(self._file(name)) if other != row])

    def _append(self, name: str, row: Row) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self._file(name)
        if file.exists() and not file.read_bytes().endswith(b"\n"):  # a process was killed while it wrote
            write_rows(file, read_rows(file))
        with file.open("a", encoding="utf-8") as lines:
            lines.write(_line(row))


def write_conditions(directory: Path, conditions: Sequence[Row]) -> None:
    """Of every model of a run, so that its report can be drawn again from the files alone."""
    directory.mkdir(parents=True, exist_ok=True)
    with whole_file(directory / CONDITIONS_FILE) as unfinished:
        unfinished.write_text(json.dumps(_plain(list(conditions)), indent=2) + "\n")


def read_stores(directory: Path) -> list[Store]:
    file = directory / CONDITIONS_FILE
    if not file.is_file():
        raise ValueError(f"{directory} holds no results: {CONDITIONS_FILE} is missing")
    conditions = read_as(list[dict[str, Any]], _read_json(file), file)
    return [Store(directory, one) for one in conditions]


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error


def read_rows(file: Path) -> list[Row]:
    """Whole rows; what a killed process left of one is passed over."""
    if not file.exists():
        return []
    if not file.is_file():
        raise ValueError(f"{file} is no plain file")
    return list(_parsed(file.read_text(encoding="utf-8").splitlines(), file))


def _parsed(lines: Sequence[str], file: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
            if number == len(lines):
                return
        if not isinstance(row, dict):
            raise ValueError(f"{file} is damaged: line {number} is no row, {line[:60]!r}")
        yield row


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    with whole_file(file) as unfinished:
        unfinished.write_text("".join(map(_line, rows)), encoding="utf-8")


def select(rows: Sequence[Row], **key: Any) -> list[Row]:
    """The rows that say this."""
    return [row for row in rows if _holds(row, _plain(key))]


def distinct(rows: Sequence[Row], name: str) -> list[Any]:
    """The different values of a column, in their order."""
    return list(dict.fromkeys(row[name] for row in rows))


def _holds(row: Row, key: Mapping[str, Any]) -> bool:
    return all(name in row and row[name] == value for name, value in key.items())


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """As JSON gives it back; what is not a number is null."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def commit() -> str:
    """Of the code that computed a row; the version where it was installed without its history."""
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return asked.stdout.strip() or crocodil.__version__
