"""Read zip and tar archives in memory and strictly: a damaged archive is an error, never a shorter archive.

Python's readers stop silently if a tar header is damaged, if a compressed tar ends early, or if a second archive
follows the first. Nothing is unpacked to disk, so a path inside an archive cannot write outside a folder.
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

MAX_FILE_BYTES = 4 << 20  # more than any hand-written program
MAX_ARCHIVE_BYTES = 4 << 30  # unpacked
MAX_ARCHIVE_FILES = 500_000
MAX_HEADER_BYTES = 1 << 20  # of a long name in a tar file
_CHUNK = 1 << 16
_ZIP, _GZIP, _BZIP2, _XZ = (b"PK\3\4", b"PK\5\6"), (b"\x1f\x8b",), (b"BZh",), (b"\xfd7zXZ", b"\x5d\0\0\x80")

DAMAGE = (  # what the standard library's readers raise on damaged data
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError,
    OverflowError, RuntimeError,
)  # fmt: skip


class Member(NamedTuple):
    """A file of an archive; `data` is None if it is not a regular file or its path leads outside."""

    name: str
    data: bytes | None
    problem: str = ""


@contextmanager
def readable(file: object, kind: str, errors: tuple[type[Exception], ...] = DAMAGE) -> Iterator[None]:
    """Turn errors of a reader into a ValueError of one line that names the file."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{file} is not a readable {kind}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class Budget:
    """Limits the unpacked size of an archive by counting what is read; its headers are not trusted."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_files = 0

    def read(self, handle: Any) -> bytes:
        data = handle.read(MAX_FILE_BYTES + 1)
        self.num_bytes += len(data)
        self.num_files += 1
        if self.num_bytes > MAX_ARCHIVE_BYTES or self.num_files > MAX_ARCHIVE_FILES:
            raise RuntimeError("it unpacks to more than the allowed size")
        return data


def is_unsafe(name: str) -> bool:
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/") or ":" in name[:3]


def read_archive(file: Path, suffixes: tuple[str, ...]) -> Iterator[Member]:
    """Yield the files of a zip or (compressed) tar whose names end in `suffixes`."""
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
    """Find damaged names, which may lack the wanted suffix: opening a file compares both copies of its name."""
    for info in archive.infolist():
        with (
            suppress(NotImplementedError, RuntimeError),
            archive.open(info),
        ):  # encrypted, or an unsupported compression
            pass


def _is_zip(raw: IO[bytes], start: bytes) -> bool:
    """Detect a zip by its first bytes. The library looks at the end, where the last file of a tar may be a zip."""
    is_tar = start.startswith((*_GZIP, *_BZIP2, *_XZ)) or start[257:262] == b"ustar"
    is_zip = start.startswith(_ZIP) or (not is_tar and zipfile.is_zipfile(raw))  # a script may precede the zip
    raw.seek(0)
    return is_zip


def _check_bounds(archive: zipfile.ZipFile, raw: IO[bytes], start: bytes) -> None:
    """Refuse data before or after the archive: Python reads only the last archive of a file."""
    if start.startswith(_ZIP) and min((info.header_offset for info in archive.infolist()), default=0) != 0:
        raise zipfile.BadZipFile("there is data before its first file: several archives in one?")
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(size - 22 - len(archive.comment), 0))
    end = raw.read(22)
    if not end.startswith(b"PK\5\6"):
        raise zipfile.BadZipFile("there is data after its end")
    count = int.from_bytes(end[10:12], "little")
    if count not in (len(archive.infolist()), 0xFFFF):  # 0xFFFF means that the count does not fit
        raise zipfile.BadZipFile(f"its directory lists {len(archive.infolist())} files, not {count}")


# ---------------------------------------------------------------- tar


_LONG_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


class _Header(tarfile.TarInfo):
    """A tar header that must be intact: only the end mark ends a tar."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Any:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG_HEADERS and header.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError("a header is too large")
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
                yield Member(member.name, None, "not a regular file")
            else:
                yield Member(member.name, budget.read(handle))
        # Reading to the end also checks the checksum of a compressed file.
        stream_end: Any = archive.fileobj
        while rest := stream_end.read(_CHUNK):
            if rest.strip(b"\0"):
                raise tarfile.ReadError("there is data after its end")


def _plain(raw: IO[bytes], start: bytes) -> Any:
    """Return a stream of the tar's bytes, decompressed if necessary."""
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)  # checks length, checksum and trailing data
    if start.startswith(_BZIP2):
        return io.BufferedReader(Joined(_decompressed(raw, bz2.BZ2Decompressor)))
    if start.startswith(_XZ):
        return io.BufferedReader(Joined(_decompressed(raw, lzma.LZMADecompressor)))
    return raw


def _decompressed(raw: IO[bytes], make_decoder: Callable[[], Any]) -> Iterator[bytes]:
    """Decompress all streams of a file. The library's readers ignore a damaged second stream."""
    packed = raw.read(_CHUNK)
    while packed:
        decoder = make_decoder()
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
    """Reads an iterator of byte strings as one file."""

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
