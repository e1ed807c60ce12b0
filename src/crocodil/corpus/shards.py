"""Token shards on disk, and programs as a view on them.

A shard is a flat file of ids with an index of its documents and of the definitions inside them. A program is
[beginning, text, end], the rest end (decision D18); which stretches of text are programs depends on the length
asked for, not on the files. Everything is memory-mapped.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT, FORMAT_VERSION = "crocodil corpus", 1
CORPUS_FILE, TOKENIZER_FILE = "corpus.json", "tokenizer.json"

DOCUMENT = np.dtype(
    [("start", "<i8"), ("length", "<i4"), ("package", "<i4"), ("first_part", "<i4"), ("num_parts", "<i4")]
)
PART = np.dtype([("start", "<i4"), ("length", "<i4")])  # a definition, counted from its document's start
PROGRAM = np.dtype([("shard", "<i4"), ("start", "<i8"), ("length", "<i4"), ("package", "<i4"), ("cut", "?")])


# ---------------------------------------------------------------- writing


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class ShardWriter:
    """Collects documents, and writes them as one directory."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.tokens: list[NDArray] = []
        self.documents: list[tuple[int, int, int, int, int]] = []
        self.parts: list[tuple[int, int]] = []
        self.paths: list[str] = []
        self.num_tokens = 0

    def add(self, ids: Sequence[int], parts: Sequence[tuple[int, int]], *, package: int, path: str) -> None:
        """One document; `parts` are (start, length) of its definitions, in tokens."""
        self.documents.append((self.num_tokens, len(ids), package, len(self.parts), len(parts)))
        self.tokens.append(np.array(ids, dtype=self.dtype))
        self.parts += parts
        self.paths.append(path.replace("\n", " "))
        self.num_tokens += len(ids)

    def save(self, directory: Path) -> None:
        directory.mkdir()
        with (directory / "tokens.bin").open("wb") as file:
            for ids in self.tokens:
                file.write(ids.tobytes())
        np.save(directory / "documents.npy", np.array(self.documents, dtype=DOCUMENT))
        np.save(directory / "parts.npy", np.array(self.parts, dtype=PART))
        (directory / "paths.txt").write_text("\n".join(self.paths) + "\n", encoding="utf-8")


def checksums(directory: Path) -> dict[str, str]:
    """sha256 of every file of a corpus but its description."""
    names = sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and path.name != CORPUS_FILE and "work" not in path.relative_to(directory).parts
    )
    found = {}
    for name in names:
        with (directory / name).open("rb") as file:
            found[name] = file_digest(file, "sha256").hexdigest()
    return found


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Shard:
    directory: Path
    dtype: np.dtype

    @cached_property
    def tokens(self) -> NDArray:
        return np.memmap(self.directory / "tokens.bin", dtype=self.dtype, mode="r")

    @cached_property
    def documents(self) -> NDArray:
        return np.load(self.directory / "documents.npy", mmap_mode="r")

    @cached_property
    def parts(self) -> NDArray:
        return np.load(self.directory / "parts.npy", mmap_mode="r")

    @cached_property
    def paths(self) -> list[str]:
        return (self.directory / "paths.txt").read_text(encoding="utf-8").splitlines()


class Corpus:
    """A finished corpus: `Corpus(directory).programs("train", length=256)`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        file = self.directory / CORPUS_FILE
        if not file.is_file():
            raise ValueError(f"{self.directory} holds no finished corpus: {CORPUS_FILE} is missing")
        self.description: dict[str, Any] = json.loads(file.read_text())
        if self.description.get("format") != FORMAT or self.description.get("version") != FORMAT_VERSION:
            raise ValueError(f"{file} is not version {FORMAT_VERSION} of this project's corpus format")
        self.packages: list[dict[str, str]] = self.description["packages"]

    def verify(self) -> None:
        """Compare every file with its checksum."""
        found = checksums(self.directory)
        for name, expected in self.description["sha256"].items():
            if name not in found:
                raise ValueError(f"{self.directory / name} is missing")
            if found[name] != expected:
                raise ValueError(f"{self.directory / name} is damaged: its checksum differs from {CORPUS_FILE}")

    def shards(self, split: str) -> list[Shard]:
        dtype = token_dtype(self.description["tokenizer"]["vocab_size"])
        if split not in self.description["splits"]:
            raise ValueError(f"no split {split!r}, this corpus has {', '.join(self.description['splits'])}")
        return [Shard(self.directory / name, dtype) for name in self.description["splits"][split]["shards"]]

    def programs(self, split: str, *, length: int) -> "Programs":
        """The programs of at most `length` tokens, beginning and end included."""
        special = self.description["tokenizer"]["special"]
        return Programs(self.shards(split), length, bos=special["bos"], eos=special["eos"])


class Programs:
    """A view of a split as programs of at most `length` tokens.

    A document that fits is one program. One that does not gives its definitions; a definition that does not fit,
    and a long document without any, is cut: it fills the canvas and has no end.
    """

    def __init__(self, shards: Sequence[Shard], length: int, *, bos: int, eos: int) -> None:
        if length < 3:
            raise ValueError(f"a program has a beginning, a text and an end: length {length} is too short")
        self.shards, self.length, self.bos, self.eos = list(shards), length, bos, eos
        found = [programs_of(shard, number, length) for number, shard in enumerate(self.shards)]
        self.index = np.concatenate(found) if found else np.zeros(0, dtype=PROGRAM)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        """One program, filled up with end tokens."""
        row = self.index[number]
        canvas = np.full(self.length, self.eos, dtype=np.int64)
        canvas[0] = self.bos
        text = self.shards[row["shard"]].tokens[row["start"] : row["start"] + row["length"]]
        canvas[1 : 1 + len(text)] = text
        return canvas

    def batch(self, numbers: Sequence[int] | NDArray) -> NDArray[np.int64]:
        """Several programs at once, as fast as memory allows."""
        rows = self.index[np.asarray(numbers)]
        canvases = np.full((len(rows), self.length), self.eos, dtype=np.int64)
        canvases[:, 0] = self.bos
        places = np.arange(self.length - 1)
        is_text = places < rows["length"][:, None]
        for shard in np.unique(rows["shard"]):
            own = rows["shard"] == shard
            where = (rows["start"][own, None] + places)[is_text[own]]
            canvases[:, 1:][own[:, None] & is_text] = self.shards[shard].tokens[where]
        return canvases

    @property
    def num_tokens(self) -> int:
        """Tokens of text, without beginnings, ends and filling."""
        return int(self.index["length"].sum())


def programs_of(shard: Shard, number: int, length: int) -> NDArray:
    documents, parts = shard.documents, shard.parts
    fits = documents["length"] <= length - 2
    whole = documents[fits | (documents["num_parts"] == 0)]
    split = documents[~fits & (documents["num_parts"] > 0)]
    # The parts of all split documents, each with its document.
    num_parts = split["num_parts"]
    owner = np.repeat(split, num_parts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    part = parts[owner["first_part"] + within]
    found = np.zeros(len(whole) + len(part), dtype=PROGRAM)
    found["shard"] = number
    found["start"] = np.concatenate([whole["start"], owner["start"] + part["start"]])
    full = np.concatenate([whole["length"], part["length"]])
    found["cut"] = full > length - 2
    found["length"] = np.where(found["cut"], length - 1, full)
    found["package"] = np.concatenate([whole["package"], owner["package"]])
    return found[np.argsort(found["start"], kind="stable")]
