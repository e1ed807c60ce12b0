"""Moving a corpus to another machine: its files as compressed pieces of a given size.

Token ids are compressed with the standard library's lzma, to about a quarter; nothing else is needed to unpack.
"""

import io
import lzma
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crocodil.atomic import whole_directory
from crocodil.corpus.shards import CORPUS_FILE, Corpus

# Ids are pairs of bytes: told so, lzma finds more in them.
_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]
_CHUNK = 1 << 20


def pack(corpus: Corpus, directory: Path, *, piece_bytes: int) -> list[Path]:
    """Write a corpus as compressed pieces of at most `piece_bytes` each, to be moved one by one."""
    if directory.exists():
        raise ValueError(f"{directory} exists: choose another directory for the pieces")
    directory.mkdir(parents=True)
    pieces = _Pieces(directory, piece_bytes)
    with (
        io.BufferedWriter(pieces) as stream,
        lzma.LZMAFile(stream, "wb", filters=_LZMA) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as tar,
    ):
        for name in [CORPUS_FILE, *corpus.description["sha256"]]:
            tar.add(corpus.directory / name, arcname=name, filter=_without_owner)
    return pieces.files


def unpack(directory: Path, out: Path) -> Corpus:
    """The corpus that `pack` took apart, whole and verified; `out` appears whole or not at all."""
    files = sorted(directory.glob("piece-*.xz"))
    if not files:
        raise ValueError(f"{directory} holds no pieces of a corpus")
    if out.exists():
        raise ValueError(f"{out} exists: choose another directory")
    try:
        with (
            whole_directory(out) as unfinished,
            io.BufferedReader(_Joined(files)) as stream,
            lzma.LZMAFile(stream) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            tar.extractall(unfinished, filter="data")
            Corpus(unfinished).verify()
    except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
        raise ValueError(f"the pieces in {directory} are damaged or not all there: {error}") from error
    return Corpus(out)


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


class _Pieces(io.RawIOBase):
    """A file that is written as pieces of a given size."""

    def __init__(self, directory: Path, piece_bytes: int) -> None:
        self.directory, self.piece_bytes = directory, piece_bytes
        self.files: list[Path] = []
        self.room = 0
        self.current: Any = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while len(rest):
            if not self.room:
                self._next()
            part = rest[: self.room]
            self.current.write(part)
            self.room -= len(part)
            rest = rest[len(part) :]
        return len(data)

    def _next(self) -> None:
        if self.current is not None:
            self.current.close()
        self.files.append(self.directory / f"piece-{len(self.files):03d}.xz")
        self.current = self.files[-1].open("wb")
        self.room = self.piece_bytes

    def close(self) -> None:
        if self.current is not None:
            self.current.close()
        super().close()


class _Joined(io.RawIOBase):
    """Pieces read as one file."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.chunks = self._read(files)
        self.rest = b""

    @staticmethod
    def _read(files: Sequence[Path]) -> Iterator[bytes]:
        for file in files:
            with file.open("rb") as handle:
                while chunk := handle.read(_CHUNK):
                    yield chunk

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.rest = self.rest or next(self.chunks, b"")
        count = min(len(buffer), len(self.rest))
        buffer[:count] = self.rest[:count]
        self.rest = self.rest[count:]
        return count
