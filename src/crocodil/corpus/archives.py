"""Reading zip and tar archives in memory, strictly: a damaged archive is an error, never a shorter one.

Python's own readers stop without a word where a tar header is damaged, where a compressed tar ends early, or where
a second archive stands behind the first. Nothing is ever unpacked to disk, so no name inside can point anywhere.
"""

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

MAX_FILE_BYTES = 4 << 20  # no program that anyone wrote
MAX_ARCHIVE_BYTES = 4 << 30  # unpacked
MAX_ARCHIVE_FILES = 500_000
MAX_HEADER_BYTES = 1 << 20  # of a long name in a tar
_CHUNK = 1 << 16
_ZIP, _GZIP, _BZIP2, _XZ = (b"PK\3\4", b"PK\5\6"), (b"\x1f\x8b",), (b"BZh",), (b"\xfd7zXZ", b"\x5d\0\0\x80")

DAMAGE = (  # what the standard library's readers raise on damaged data
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError,
    OverflowError, RuntimeError,
)  # fmt: skip


class Member(NamedTuple):
    """A file of an archive; `data` is None where it is no regular file, or where its name points outside."""

    name: str
    data: bytes | None
    problem: str = ""


@contextmanager
def readable(file: object, kind: str, errors: tuple[type[Exception], ...] = DAMAGE) -> Iterator[None]:
    """Turn what readers raise on damaged data into one line that names the file."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{file} is not a readable {kind}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


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


def read_archive(file: Path, suffixes: tuple[str, ...]) -> Iterator[Member]:
    """The files of a zip or of a tar, plain or compressed, that end in `suffixes`."""
    with file.open("rb") as raw:
        start = raw.read(512)
        raw.seek(0)
        if _is_zip(raw, start):
            with zipfile.ZipFile(raw) as archive:
                _check_bounds(archive, raw, start)
                _check_names(archive)
                yield from read_zip(archive, suffixes)
        else:
            yield from _read_tar(_plain(raw, start), suffixes)


# ---------------------------------------------------------------- zip


def read_zip(archive: zipfile.ZipFile, suffixes: tuple[str, ...]) -> Iterator[Member]:
    budget = Budget()
    for info in archive.infolist():
        if info.is_dir() or not info.filename.endswith(suffixes):
            continue
        if is_unsafe(info.filename):
            yield Member(info.filename, None, "unsafe path in an archive")
        else:
            with archive.open(info) as handle:
                yield Member(info.filename, budget.read(handle))


def _check_names(archive: zipfile.ZipFile) -> None:
    """A damaged name may no longer end in what is looked for: opening a file compares both places of its name."""
    for info in archive.infolist():
        with suppress(NotImplementedError, RuntimeError), archive.open(info):  # encrypted, or packed in a rare way
            pass


def _is_zip(raw: IO[bytes], start: bytes) -> bool:
    """By its first bytes. The library looks at the end, where a tar whose last file is a zip looks like one."""
    is_tar = start.startswith((*_GZIP, *_BZIP2, *_XZ)) or start[257:262] == b"ustar"
    found = start.startswith(_ZIP) or (not is_tar and zipfile.is_zipfile(raw))  # a script may stand before it
    raw.seek(0)
    return found


def _check_bounds(archive: zipfile.ZipFile, raw: IO[bytes], start: bytes) -> None:
    """Python reads the last archive of a file; what stands before or behind it would be lost."""
    if start.startswith(_ZIP) and min((info.header_offset for info in archive.infolist()), default=0) != 0:
        raise zipfile.BadZipFile("there is more before its first file: several archives in one?")
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(size - 22 - len(archive.comment), 0))
    end = raw.read(22)
    if not end.startswith(b"PK\5\6"):
        raise zipfile.BadZipFile("there is more behind its end")
    count = int.from_bytes(end[10:12], "little")
    if count not in (len(archive.infolist()), 0xFFFF):  # the latter where there are more than fit
        raise zipfile.BadZipFile(f"its directory lists {len(archive.infolist())} files, not {count}")


# ---------------------------------------------------------------- tar


_LONG_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


class _Header(tarfile.TarInfo):
    """A header that must be there and whole: only the end mark ends a tar."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG_HEADERS and header.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError("a header of an absurd size")
        return header

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Any:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"damaged, or it ends before its end mark: {error}") from error


def _read_tar(stream: Any, suffixes: tuple[str, ...]) -> Iterator[Member]:
    budget = Budget()
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as archive:
        for member in archive:
            if member.isdir() or not member.name.endswith(suffixes):
                continue
            if is_unsafe(member.name):
                yield Member(member.name, None, "unsafe path in an archive")
            elif not member.isfile() or (handle := archive.extractfile(member)) is None:
                yield Member(member.name, None, "no regular file")
            else:
                yield Member(member.name, budget.read(handle))
        # Reading to the end also compares the checksum of a compressed file.
        stream_end: Any = archive.fileobj
        while rest := stream_end.read(_CHUNK):
            if rest.strip(b"\0"):
                raise tarfile.ReadError("there is more behind its end")


def _plain(raw: IO[bytes], start: bytes) -> Any:
    """The bytes of a tar, decompressed where its first bytes say so."""
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # checks length and checksum, and what stands behind
    if start.startswith(_BZIP2):
        return io.BufferedReader(Joined(_decompressed(raw, bz2.BZ2Decompressor)))
    if start.startswith(_XZ):
        return io.BufferedReader(Joined(_decompressed(raw, lzma.LZMADecompressor)))
    return raw


def _decompressed(raw: IO[bytes], decoder_of: Callable[[], Any]) -> Iterator[bytes]:
    """One compressed stream after the other. The library's own readers take a damaged second one for padding."""
    packed = raw.read(_CHUNK)
    while packed:
        decoder = decoder_of()
        while not decoder.eof:
            if decoder.needs_input and not packed and not (packed := raw.read(_CHUNK)):
                raise EOFError("it ends before the end of its compressed data")
            if plain := decoder.decompress(packed, _CHUNK):
                yield plain
            packed = b""
        packed = decoder.unused_data.lstrip(b"\0")
        while not packed and (more := raw.read(_CHUNK)):
            packed = more.lstrip(b"\0")


class Joined(io.RawIOBase):
    """Pieces of bytes, read as one file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces
        self.rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.rest = self.rest or next(self.pieces, b"")
        count = min(len(buffer), len(self.rest))
        buffer[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count
