"""Pack a corpus into compressed pieces of a given size, to move it to another machine.

Token ids are compressed to about a quarter with the standard library's lzma.
"""

import io
import lzma
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crocodil.corpus.archives import Joined
from crocodil.corpus.shards import CORPUS_FILE, Corpus
from crocodil.runtime.atomic import whole_directory

# Ids are pairs of bytes; with these settings lzma compresses them better.
_LZMA = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]
_CHUNK = 1 << 20
MIN_PIECE_BYTES = 1000


def pack(corpus: Corpus, directory: Path, *, piece_bytes: int) -> list[Path]:
    """Write a corpus as compressed pieces of at most `piece_bytes` each; return their paths."""
    if piece_bytes < MIN_PIECE_BYTES:
        raise ValueError(f"a piece must have at least {MIN_PIECE_BYTES:,} bytes, not {piece_bytes:,}")
    if directory.exists():
        raise ValueError(f"{directory} exists: choose another directory for the pieces")
    with (
        whole_directory(directory) as unfinished,
        _Pieces(unfinished, piece_bytes) as pieces,
        io.BufferedWriter(pieces) as stream,
        lzma.LZMAFile(stream, "wb", filters=_LZMA) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as tar,
    ):
        for name in [CORPUS_FILE, *corpus.description["sha256"]]:
            tar.add(corpus.directory / name, arcname=name, filter=_without_owner)
    return [directory / file.name for file in pieces.files]


def unpack(directory: Path, out: Path) -> Corpus:
    """Unpack and verify a corpus that `pack` wrote; `out` appears whole or not at all."""
    named = sorted(directory.glob("piece-*.xz"), key=lambda file: (len(file.name), file.name))  # 1000 after 999
    files = [file for file in named if file.is_file()]
    if not files:
        raise ValueError(f"{directory} has no pieces of a corpus: expected files piece-*.xz")
    if out.exists():
        raise ValueError(f"{out} exists: choose another directory")
    try:
        with (
            whole_directory(out) as unfinished,
            io.BufferedReader(Joined(_chunks(files))) as stream,
            lzma.LZMAFile(stream) as plain,
            tarfile.open(fileobj=plain, mode="r|") as tar,
        ):
            tar.extractall(unfinished, filter="data")
            while plain.read(_CHUNK):  # read to the end, where the checksum of all pieces is
                pass
            Corpus(unfinished).verify()
    except (lzma.LZMAError, EOFError, tarfile.TarError) as error:
        raise ValueError(f"the pieces in {directory} are damaged or incomplete: {error}") from error
    return Corpus(out)


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


class _Pieces(io.RawIOBase):
    """A writable file that is split into pieces of a given size."""

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


def _chunks(files: Sequence[Path]) -> Iterator[bytes]:
    for file in files:
        with file.open("rb") as handle:
            while chunk := handle.read(_CHUNK):
                yield chunk
