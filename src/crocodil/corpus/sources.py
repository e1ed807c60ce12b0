"""Where files come from: wheels of a registry, folders, archives, tables of rows, Hugging Face datasets.

A source is a frozen value. It lists its units, each of which is read on its own, in any process, and gives the
same files every time; the build keeps the result of a unit whole or not at all. Archives are read in memory and
never unpacked, so no name inside one can point anywhere.
"""

import email
import gzip
import json
import posixpath
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from crocodil.corpus.documents import RawFile
from crocodil.corpus.licences import declared_licence
from crocodil.corpus.registry import Pin, RegistryError, fetch

MAX_FILE_BYTES = 4 << 20  # no program that anyone wrote
MAX_ARCHIVE_BYTES = 4 << 30  # unpacked
MAX_ARCHIVE_FILES = 500_000


@dataclass(frozen=True)
class Skip:
    """Something that could not be read, and why; it is counted, not hidden."""

    what: str
    reason: str


Item: TypeAlias = RawFile | Skip


@runtime_checkable
class Unit(Protocol):
    """A part of a source that is read at once."""

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
        """All in one call of pip; one by one where that fails, so that one missing wheel costs only itself."""
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
                skips.append(Skip(f"{pin.name}=={pin.version}", "not to be had from the registry"))
                last = error
        if len(skips) == len(self.pins):
            raise RegistryError(f"none of {len(skips)} wheels could be fetched, is the registry reachable? {last}")
        yield from skips


def read_wheel(file: Path) -> Iterator[Item]:
    """The Python files of one wheel, with the licence that its metadata declares."""
    name, version = file.name.split("-")[:2]
    package = f"{name}=={version}"
    try:
        with zipfile.ZipFile(file) as archive:
            licence = _licence_of_wheel(archive)
            for item in read_zip(archive, package=package, licence=licence, suffixes=(".py",)):
                if not (isinstance(item, RawFile) and ".dist-info/" in item.path):
                    yield item
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, ValueError, RuntimeError) as error:
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
        return handle.read(MAX_FILE_BYTES)


# ---------------------------------------------------------------- folders and archives


@dataclass(frozen=True)
class Files:
    """Any folder or archive (zip, tar, and compressed tar) of text files that you may use.

    The package of a file is the first folder on its path; the licence is what you say it is.
    """

    root: Path
    suffixes: tuple[str, ...] = (".py",)
    licence: str = "unspecified"
    files_per_unit: int = 2000

    def units(self) -> Sequence[Unit]:
        if self.root.is_file():
            return [ArchiveUnit(self.root, self.suffixes, self.licence)]
        if not self.root.is_dir():
            raise ValueError(f"{self.root} is neither a folder nor an archive")
        paths = sorted(
            path.relative_to(self.root).as_posix()
            for suffix in self.suffixes
            for path in self.root.rglob(f"*{suffix}")
            if not path.is_symlink()
        )
        if not paths:
            raise ValueError(f"{self.root} holds no readable file that ends in {' or '.join(self.suffixes)}")
        step = self.files_per_unit
        return [
            FolderUnit(self.root, tuple(paths[start : start + step]), self.licence)
            for start in range(0, len(paths), step)
        ]


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
                with (self.root / path).open("rb") as handle:
                    data = handle.read(MAX_FILE_BYTES + 1)
            except OSError:
                yield Skip(path, "unreadable file")
                continue
            yield _checked(_package_of(path, self.root.name), path, self.licence, data)


@dataclass(frozen=True)
class ArchiveUnit:
    file: Path
    suffixes: tuple[str, ...]
    licence: str

    @property
    def name(self) -> str:
        return self.file.name

    def read(self) -> Iterator[Item]:
        try:
            if zipfile.is_zipfile(self.file):
                with zipfile.ZipFile(self.file) as archive:
                    yield from read_zip(archive, package="", licence=self.licence, suffixes=self.suffixes)
            else:
                with tarfile.open(self.file, "r|*") as archive:
                    yield from self._read_tar(archive)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, RuntimeError) as error:
            raise ValueError(f"{self.file} is not a readable zip or tar archive: {error}") from error

    def _read_tar(self, archive: tarfile.TarFile) -> Iterator[Item]:
        budget = Budget()
        for member in archive:
            if not member.isfile() or not member.name.endswith(self.suffixes):
                continue
            if is_unsafe(member.name):
                yield Skip(member.name, "unsafe path in an archive")
            elif (handle := archive.extractfile(member)) is not None:
                data = budget.read(handle)
                yield _checked(_package_of(member.name, self.file.name), member.name, self.licence, data)


def read_zip(archive: zipfile.ZipFile, *, package: str, licence: str, suffixes: tuple[str, ...]) -> Iterator[Item]:
    """Files of a zip that end in `suffixes`; the package is their first folder unless given."""
    budget = Budget()
    for info in archive.infolist():
        if info.is_dir() or not info.filename.endswith(suffixes):
            continue
        if is_unsafe(info.filename):
            yield Skip(info.filename, "unsafe path in an archive")
            continue
        with archive.open(info) as handle:
            data = budget.read(handle)
        owner = package or _package_of(info.filename, posixpath.basename(archive.filename or "archive"))
        yield _checked(owner, info.filename, licence, data)


class Budget:
    """How much an archive may unpack to: what its headers claim is not believed."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_files = 0

    def read(self, handle: Any) -> bytes:
        data = handle.read(MAX_FILE_BYTES + 1)
        self.num_bytes += len(data)
        self.num_files += 1
        if self.num_bytes > MAX_ARCHIVE_BYTES or self.num_files > MAX_ARCHIVE_FILES:
            raise RuntimeError("unpacks to an absurd size")
        return data


def is_unsafe(name: str) -> bool:
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name[:3]


def _checked(package: str, path: str, licence: str, data: bytes) -> Item:
    if len(data) > MAX_FILE_BYTES:
        return Skip(path, "larger than any program")
    return RawFile(package, path, licence, data)


def _package_of(path: str, default: str) -> str:
    first, separator, _ = path.removeprefix("./").partition("/")
    return first if separator else default


# ---------------------------------------------------------------- tables of rows


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what; only the text is required."""

    text: str = "text"
    package: str | None = None
    path: str | None = None
    licence: str | None = None

    def file(self, row: Mapping[str, Any], number: int, where: str, default_licence: str) -> Item:
        text = row.get(self.text)
        if not isinstance(text, str):
            return Skip(f"{where}:{number}", "row without a text")
        path = self._value(row, self.path) or f"{where}:{number}"
        package = self._value(row, self.package) or path
        licence = self._value(row, self.licence) or default_licence
        return _checked(package, path, licence, text.encode("utf-8", "surrogatepass"))

    def check(self, names: Sequence[str], where: object) -> None:
        if self.text not in names:
            raise ValueError(f"{where} has no column {self.text!r}; its columns are {', '.join(map(str, names))}")

    @staticmethod
    def _value(row: Mapping[str, Any], column: str | None) -> str:
        value = row.get(column) if column else None
        if isinstance(value, list | tuple):  # the licences of a repository
            return " OR ".join(str(one) for one in value)
        return str(value) if value else ""


STARCODER = Columns(text="content", package="max_stars_repo_name", path="max_stars_repo_path")


@dataclass(frozen=True)
class Rows:
    """`.jsonl`, `.jsonl.gz` and `.parquet` files with a text column: one file, or a folder of them."""

    root: Path
    columns: Columns = Columns()
    licence: str = "unspecified"

    def units(self) -> Sequence[Unit]:
        files = [self.root] if self.root.is_file() else sorted(self.root.rglob("*.*"))
        found: list[Unit] = []
        for file in files:
            if file.name.endswith((".jsonl", ".jsonl.gz")):
                found.append(JsonlUnit(file, self.columns, self.licence))
            elif file.suffix == ".parquet":
                found += self._row_groups(file)
        if not found:
            raise ValueError(f"{self.root} holds no .jsonl, .jsonl.gz or .parquet file")
        return found

    def _row_groups(self, file: Path) -> list[Unit]:
        import pyarrow.parquet as parquet

        try:
            table = parquet.ParquetFile(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is not a readable parquet file: {error}") from error
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
        opener = gzip.open if self.file.suffix == ".gz" else open
        with opener(self.file, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                row = None
                with suppress(ValueError):
                    row = json.loads(line)
                if not isinstance(row, dict):
                    yield Skip(f"{self.file.name}:{number}", "not a JSON object")
                    continue
                if number == 1:
                    self.columns.check(list(row), self.file)
                yield self.columns.file(row, number, self.file.name, self.licence)


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
        import pyarrow.parquet as parquet

        wanted = [name for name in vars(self.columns).values() if name]
        table = parquet.ParquetFile(self.file)
        present = [name for name in wanted if name in table.schema_arrow.names]
        number = 0
        for batch in table.iter_batches(batch_size=256, row_groups=[self.group], columns=present):
            for row in batch.to_pylist():
                number += 1
                where = f"{self.file.name}/{self.group}"
                yield self.columns.file(row, number, where, self.licence)


# ---------------------------------------------------------------- Hugging Face datasets


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the hub or a local folder in its format, streamed; a unit is one of its files."""

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
        rows = _stream(self.dataset).shard(num_shards=self.count, index=self.index)
        for number, row in enumerate(rows, start=1):
            if number == 1:
                self.dataset.columns.check(list(row), self.dataset.name)
            yield self.dataset.columns.file(row, number, f"{self.index}", self.dataset.licence)


def _stream(dataset: HubDataset) -> Any:
    import datasets

    try:
        return datasets.load_dataset(dataset.name, data_dir=dataset.data_dir, split=dataset.split, streaming=True)
    except Exception as error:  # the hub's client raises whatever its transport raised
        raise ValueError(f"dataset {dataset.name} cannot be opened: {error}") from error
