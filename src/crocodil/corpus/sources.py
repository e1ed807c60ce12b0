"""Sources of files: wheels from a registry, folders, archives, tables of rows, Hugging Face datasets.

A source is a frozen value that lists its units. Each unit can be read in any process and always gives the same
files. Nothing is lost silently: a file that cannot be used becomes a `Skip`, which the report counts and names,
and a damaged archive or table is an error.
"""

import email
import gzip
import json
import os
import posixpath
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from crocodil.corpus import archives
from crocodil.corpus.archives import DAMAGE, Member, one_line, read_archive, read_zip, readable
from crocodil.corpus.documents import RawFile
from crocodil.corpus.licences import declared_licence
from crocodil.corpus.registry import Pin, RegistryError, fetch

MAX_ROW_BYTES = 64 << 20  # of a line in a .jsonl file, with all its columns
TABLES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class Skip:
    """The name of a file that could not be read, and the reason."""

    name: str
    reason: str


Item: TypeAlias = RawFile | Skip


@runtime_checkable
class Unit(Protocol):
    """A part of a source that is read in one go."""

    @property
    def name(self) -> str: ...

    def read(self) -> Iterator[Item]: ...


@runtime_checkable
class Source(Protocol):
    def units(self) -> Sequence[Unit]: ...


# ---------------------------------------------------------------- wheels


@dataclass(frozen=True)
class Wheels:
    """Published wheels, pinned by a manifest; `.py` files only."""

    pins: tuple[Pin, ...]
    wheels_per_unit: int = 8

    def units(self) -> Sequence[Unit]:
        step = self.wheels_per_unit
        return [WheelUnit(self.pins[start : start + step]) for start in range(0, len(self.pins), step)]


@dataclass(frozen=True)
class WheelUnit:
    pins: tuple[Pin, ...]

    @property
    def name(self) -> str:
        return f"{self.pins[0].name} ... {self.pins[-1].name}"

    def read(self) -> Iterator[Item]:
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            yield from self._fetch(directory)
            for wheel in sorted(directory.iterdir()):
                yield from read_wheel(wheel)

    def _fetch(self, directory: Path) -> Iterator[Skip]:
        """Fetch all wheels in one call of pip; if that fails, fetch them one by one and skip missing ones."""
        try:
            fetch(self.pins, directory)
            return
        except RegistryError:
            pass
        skips = []
        for pin in self.pins:
            try:
                fetch([pin], directory)
            except RegistryError as error:
                skips.append(Skip(f"{pin.name}=={pin.version}", "not available in the registry"))
                last = error
        if len(skips) == len(self.pins):
            raise RegistryError(f"none of {len(skips)} wheels could be fetched: is the registry reachable? {last}")
        yield from skips


def read_wheel(file: Path) -> Iterator[Item]:
    """Yield the Python files of one wheel, with the licence that its metadata declares.

    A damaged wheel is skipped and not an error: its checksum is pinned, so it was published like this.
    """
    name, version = file.name.split("-")[:2]
    package = f"{name}=={version}"
    try:
        with zipfile.ZipFile(file) as archive:
            licence = _licence_of_wheel(archive)
            for member in read_zip(archive, (".py",)):
                if ".dist-info/" not in member.name or member.data is None:
                    yield _item(member, package, licence)
    except DAMAGE as error:
        yield Skip(package, f"broken archive: {type(error).__name__}")


def _licence_of_wheel(archive: zipfile.ZipFile) -> str:
    names = archive.namelist()
    metadata = [name for name in names if name.count("/") == 1 and name.endswith(".dist-info/METADATA")]
    if not metadata:
        raise zipfile.BadZipFile("a wheel without METADATA")
    texts = [
        name
        for name in names
        if ".dist-info/" in name and posixpath.basename(name).lower().startswith(("licen", "copying"))
    ]
    parsed = email.message_from_string(_limited(archive, metadata[0]).decode("utf-8", "replace"))
    return declared_licence(parsed, [_limited(archive, name).decode("utf-8", "replace") for name in texts[:20]])


def _limited(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as handle:
        return handle.read(archives.MAX_FILE_BYTES)


# ---------------------------------------------------------------- folders and archives


@dataclass(frozen=True)
class Files:
    """Any folder or archive (zip, tar, and compressed tar) of text files that you may use.

    The package of a file is the first folder of its path; the licence is the one given here. In a folder, only
    regular files are read: symbolic links are not followed, as they may lead outside or to the same file twice.
    """

    root: Path
    suffixes: tuple[str, ...] = (".py",)
    licence: str = "unspecified"
    files_per_unit: int = 2000

    def units(self) -> Sequence[Unit]:
        if self.root.name.endswith(self.suffixes) and self.root.is_file():
            raise ValueError(f"{self.root} is a single file: name its folder")
        if self.root.is_file():
            return [ArchiveUnit(self.root, self.suffixes, self.licence)]
        if not self.root.is_dir():
            raise ValueError(f"{self.root} is neither a folder nor an archive")
        paths = sorted(path.relative_to(self.root).as_posix() for path in _walk(self.root, self.suffixes))
        if not paths:
            raise ValueError(f"{self.root} has no readable file that ends in {' or '.join(self.suffixes)}")
        step = self.files_per_unit
        return [
            FolderUnit(self.root, tuple(paths[start : start + step]), self.licence)
            for start in range(0, len(paths), step)
        ]


def _walk(root: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield files that end in `suffixes`, and folders that cannot be entered: links and unreadable ones."""
    unreadable: list[Path] = []

    def add_unreadable(error: OSError) -> None:
        if Path(error.filename) == root:
            raise error
        unreadable.append(Path(error.filename))

    for name, folders, files in os.walk(root, onerror=add_unreadable):
        folder = Path(name)
        yield from (folder / file for file in files if file.endswith(suffixes))
        yield from (folder / inner for inner in folders if (folder / inner).is_symlink())
    yield from unreadable


@dataclass(frozen=True)
class FolderUnit:
    root: Path
    paths: tuple[str, ...]
    licence: str

    @property
    def name(self) -> str:
        return f"{self.paths[0]} ..."

    def read(self) -> Iterator[Item]:
        for path in self.paths:
            try:
                data = _read_regular(self.root / path)
            except OSError:
                yield Skip(path, "unreadable file or folder")
            else:
                member = Member(path, data, "" if data is not None else "not a regular file: link, pipe or device")
                yield _item(member, _package_of(path, self.root.name), self.licence)


def _read_regular(file: Path) -> bytes | None:
    """Return the bytes of a regular file, or None; other files are not opened, as a pipe would block."""
    mode = file.lstat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return None
    with file.open("rb") as handle:
        return handle.read(archives.MAX_FILE_BYTES + 1)


@dataclass(frozen=True)
class ArchiveUnit:
    file: Path
    suffixes: tuple[str, ...]
    licence: str

    @property
    def name(self) -> str:
        return self.file.name

    def read(self) -> Iterator[Item]:
        is_empty = True
        with readable(self.file, "zip or tar archive"):
            for member in read_archive(self.file, self.suffixes):
                is_empty = False
                yield _item(member, _package_of(member.name, self.file.name), self.licence)
        if is_empty:
            raise ValueError(f"{self.file} has no file that ends in {' or '.join(self.suffixes)}")


def _item(member: Member, package: str, licence: str) -> Item:
    if member.data is None:
        return Skip(member.name, member.problem)
    if len(member.data) > archives.MAX_FILE_BYTES:
        return Skip(member.name, "too large for a program")
    return RawFile(package, member.name, licence, member.data)


def _package_of(path: str, default: str) -> str:
    first, separator, _ = path.removeprefix("./").partition("/")
    return first if separator else default


# ---------------------------------------------------------------- tables of rows


@dataclass(frozen=True)
class Columns:
    """The names of the columns of a table; only the text is required."""

    text: str = "text"
    package: str | None = None
    path: str | None = None
    licence: str | None = None

    def file(self, row: Mapping[str, Any], number: int, where: str, default_licence: str) -> Item:
        text = row.get(self.text)
        if not isinstance(text, str):
            return Skip(f"{where}:{number}", "row without text")
        path = self._value(row, self.path) or f"{where}:{number}"
        package = self._value(row, self.package) or path
        licence = self._value(row, self.licence) or default_licence
        return _item(Member(path, text.encode("utf-8", "surrogatepass")), package, licence)

    def check(self, names: Sequence[str], where: object) -> None:
        if self.text not in names:
            raise ValueError(f"{where} has no column {self.text!r}; its columns are {', '.join(map(str, names))}")

    @staticmethod
    def _value(row: Mapping[str, Any], column: str | None) -> str:
        value = row.get(column) if column else None
        if isinstance(value, list | tuple):  # the licences of a repository
            return " OR ".join(map(str, value))
        return str(value) if value else ""


STARCODER = Columns(text="content", package="max_stars_repo_name", path="max_stars_repo_path")


@dataclass(frozen=True)
class Rows:
    """`.jsonl`, `.jsonl.gz` and `.parquet` files with a text column: one file, or a folder of them.

    Links to files are followed, because the hub's cache consists of links.
    """

    root: Path
    columns: Columns = Columns()
    licence: str = "unspecified"

    def units(self) -> Sequence[Unit]:
        files = [self.root] if self.root.is_file() else []
        if self.root.is_dir():
            files = sorted(_walk(self.root, TABLES))
        units: list[Unit] = []
        for file in files:
            if not file.is_file():
                raise ValueError(f"{file} is not a readable regular file: remove it from {self.root}")
            if file.suffix == ".parquet":
                units += self._row_groups(file)
            else:
                units.append(JsonlUnit(file, self.columns, self.licence))
        if not units:
            raise ValueError(f"{self.root} has no .jsonl, .jsonl.gz or .parquet file with rows")
        return units

    def _row_groups(self, file: Path) -> list[Unit]:
        table = _parquet(file)
        self.columns.check(table.schema_arrow.names, file)
        return [ParquetUnit(file, group, self.columns, self.licence) for group in range(table.num_row_groups)]


@dataclass(frozen=True)
class JsonlUnit:
    file: Path
    columns: Columns
    licence: str

    @property
    def name(self) -> str:
        return self.file.name

    def read(self) -> Iterator[Item]:
        for number, line in enumerate(self._lines(), start=1):
            where = f"{self.file.name}:{number}"
            if len(line) > MAX_ROW_BYTES:
                yield Skip(where, "too large for a program")
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # RecursionError: nested too deeply
                row = None
            if not isinstance(row, dict):
                yield Skip(where, "not a JSON object")
                continue
            if number == 1:
                self.columns.check(list(row), self.file)
            yield self.columns.file(row, number, self.file.name, self.licence)

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines; a line that is too long is cut just beyond the limit."""
        opener = gzip.open if self.file.suffix == ".gz" else open
        with readable(self.file, "file of rows"), opener(self.file, "rb") as handle:
            while line := handle.readline(MAX_ROW_BYTES + 1):
                yield line
                while len(line) > MAX_ROW_BYTES and not line.endswith(b"\n"):
                    line = handle.readline(MAX_ROW_BYTES + 1)


@dataclass(frozen=True)
class ParquetUnit:
    file: Path
    group: int
    columns: Columns
    licence: str

    @property
    def name(self) -> str:
        return f"{self.file.name}, row group {self.group}"

    def read(self) -> Iterator[Item]:
        where = f"{self.file.name}/{self.group}"
        for number, row in enumerate(self._rows(), start=1):
            yield self.columns.file(row, number, where, self.licence)

    def _rows(self) -> Iterator[dict[str, Any]]:
        table = _parquet(self.file)
        wanted = [name for name in vars(self.columns).values() if name]
        present = [name for name in wanted if name in table.schema_arrow.names]
        with readable(self.file, "parquet file", (Exception,)):
            for batch in table.iter_batches(batch_size=256, row_groups=[self.group], columns=present):
                yield from batch.to_pylist()


def _parquet(file: Path) -> Any:
    import pyarrow.parquet as parquet

    with readable(file, "parquet file", (Exception,)):  # Arrow raises many kinds of errors
        return parquet.ParquetFile(file, page_checksum_verification=True)


# ---------------------------------------------------------------- Hugging Face datasets


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the hub, or a local folder in its format, streamed; a unit is one of its files."""

    name: str = "bigcode/starcoderdata"
    data_dir: str | None = "python"
    split: str = "train"
    columns: Columns = STARCODER
    licence: str = "permissive, as StarCoder's authors selected"

    def units(self) -> Sequence[Unit]:
        count = _stream(self).num_shards
        return [HubUnit(self, index, count) for index in range(count)]


@dataclass(frozen=True)
class HubUnit:
    dataset: HubDataset
    index: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.dataset.name}, file {self.index + 1} of {self.count}"

    def read(self) -> Iterator[Item]:
        for number, row in enumerate(self._rows(), start=1):
            if number == 1:
                self.dataset.columns.check(list(row), self.dataset.name)
            yield self.dataset.columns.file(row, number, f"{self.index}", self.dataset.licence)

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        rows = _stream(self.dataset).shard(num_shards=self.count, index=self.index)
        try:
            yield from rows
        except Exception as error:  # the hub's client raises the errors of its transport
            raise ValueError(f"{self.name} cannot be read: {one_line(error)}") from error


def _stream(dataset: HubDataset) -> Any:
    import datasets

    try:
        return datasets.load_dataset(dataset.name, data_dir=dataset.data_dir, split=dataset.split, streaming=True)
    except Exception as error:  # the hub's client raises the errors of its transport
        raise ValueError(f"dataset {dataset.name} cannot be opened: {one_line(error)}") from error
