"""Token shards on disk, and programs as a view on them.

A shard is a flat file of ids with an index of its documents and of the definitions inside them. A program is
[BOS, text, EOS], filled up with EOS (decision D18). Which parts of the text are programs depends on the requested
length, not on the files. Everything is memory-mapped.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from crocodil.runtime.atomic import LOCK_FILE
from crocodil.runtime.config import Amount, TokenId, Weight, Width, read_as

FORMAT, FORMAT_VERSION = "crocodil corpus", 1
CORPUS_FILE, TOKENIZER_FILE = "corpus.json", "tokenizer.json"
TOO_FEW_FILES = "build a corpus from more files (at least three different ones)"

DOCUMENT = np.dtype(
    [("start", "<i8"), ("length", "<i4"), ("package", "<i4"), ("first_part", "<i4"), ("num_parts", "<i4")]
)
PART = np.dtype([("start", "<i4"), ("length", "<i4")])  # a definition, relative to the start of its document
PROGRAM = np.dtype([("shard", "<i4"), ("start", "<i8"), ("length", "<i4"), ("package", "<i4"), ("cut", "?")])


# ---------------------------------------------------------------- description


class SpecialDescription(TypedDict):
    mask: TokenId | None
    bos: TokenId
    eos: TokenId
    pad: TokenId


class TokenizerDescription(TypedDict):
    vocab_size: Width
    special: SpecialDescription


class SplitDescription(TypedDict):
    shards: list[str]
    documents: Amount
    packages: Amount
    chars: Amount
    tokens: Amount


class PackageDescription(TypedDict):
    name: str
    licence: str
    split: str | None  # None if nothing of it was kept


class CountsDescription(TypedDict):
    read: tuple[Amount, Amount]  # files, bytes
    kept: tuple[Amount, Amount]
    dropped: dict[str, tuple[Amount, Amount]]  # by reason
    skipped: dict[str, list[str]]  # by reason: the names
    seconds: dict[str, Weight]  # by stage


class Description(TypedDict):
    """The contents of `corpus.json`."""

    format: str
    version: int
    recipe: str
    tokenizer: TokenizerDescription
    splits: dict[str, SplitDescription]
    leaked_share: dict[str, Weight]
    packages: list[PackageDescription]
    counts: CountsDescription
    sha256: dict[str, str]


def read_description(file: Path) -> Description:
    """Read and check `corpus.json`."""
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict) or [values.get("format"), values.get("version")] != [FORMAT, FORMAT_VERSION]:
        raise ValueError(f"{file} is not version {FORMAT_VERSION} of this project's corpus format")
    try:
        description = read_as(Description, values, file)
        names = [
            *description["sha256"],
            *(name for split in description["splits"].values() for name in split["shards"]),
        ]
        for name in names:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{file}: {name!r} is not a file of this corpus")
    except ValueError as error:
        raise ValueError(f"{error}; rebuild the corpus or run `crocodil corpus verify {file.parent}`") from None
    return description


# ---------------------------------------------------------------- writing


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class ShardWriter:
    """Collects documents and writes them to one directory."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.tokens: list[NDArray] = []
        self.documents: list[tuple[int, int, int, int, int]] = []
        self.parts: list[tuple[int, int]] = []
        self.paths: list[str] = []
        self.num_tokens = 0

    def add(self, ids: Sequence[int], parts: Sequence[tuple[int, int]], *, package: int, path: str) -> None:
        """Add one document; `parts` are (start, length) of its definitions in tokens."""
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
    """Return the sha256 of every file of a corpus except `corpus.json`."""
    names = sorted(
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file()
        and path.name not in (CORPUS_FILE, LOCK_FILE)
        and "work" not in path.relative_to(directory).parts
    )
    digests = {}
    for name in names:
        with (directory / name).open("rb") as file:
            digests[name] = file_digest(file, "sha256").hexdigest()
    return digests


# ---------------------------------------------------------------- reading


@dataclass(frozen=True)
class Shard:
    directory: Path
    dtype: np.dtype

    @cached_property
    def tokens(self) -> NDArray:
        file = self.directory / "tokens.bin"
        with _undamaged(file):
            return np.memmap(file, dtype=self.dtype, mode="r")

    @cached_property
    def documents(self) -> NDArray:
        return _table(self.directory / "documents.npy", DOCUMENT)

    @cached_property
    def parts(self) -> NDArray:
        return _table(self.directory / "parts.npy", PART)

    @cached_property
    def paths(self) -> list[str]:
        file = self.directory / "paths.txt"
        with _undamaged(file):
            return (
                file.read_bytes().decode("utf-8").split("\n")[:-1]
            )  # a path may contain other kinds of line breaks


def _table(file: Path, dtype: np.dtype) -> NDArray:
    with _undamaged(file):
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
        if rows.dtype != dtype or rows.ndim != 1:
            raise ValueError("its columns are not as expected")
        return rows


@contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    """Turn errors of numpy's readers into a ValueError of one line that names the file."""
    try:
        if file.exists() and not file.is_file():
            raise ValueError("it is not a regular file")  # reading a pipe would never end
        yield
    except (ValueError, EOFError, SyntaxError, TokenError, TypeError, OverflowError) as error:
        corpus = next((folder for folder in file.parents if (folder / CORPUS_FILE).exists()), "DIR")
        raise ValueError(f"{file} is damaged: {error}; run `crocodil corpus verify {corpus}`") from error


class Corpus:
    """A finished corpus: `Corpus(directory).programs("train", length=256)`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        file = self.directory / CORPUS_FILE
        if not file.is_file():
            raise ValueError(f"{self.directory} is not a finished corpus: {CORPUS_FILE} is missing")
        self.description = read_description(file)
        self.packages = self.description["packages"]

    def verify(self) -> None:
        """Compare every file with its checksum."""
        digests = checksums(self.directory)
        for name, expected in self.description["sha256"].items():
            if name not in digests:
                raise ValueError(f"{self.directory / name} is missing")
            if digests[name] != expected:
                raise ValueError(f"{self.directory / name} is damaged: its checksum differs from {CORPUS_FILE}")

    def require(self, *splits: str) -> None:
        """Raise an error now, not after hours of work, if a split that will be needed is empty."""
        for split in splits:
            if not self.shards(split):
                raise ValueError(f"the {split} split of {self.directory} is empty: {TOO_FEW_FILES}")

    def shards(self, split: str) -> list[Shard]:
        dtype = token_dtype(self.description["tokenizer"]["vocab_size"])
        splits = self.description["splits"]
        if split not in splits:
            raise ValueError(f"no split {split!r}: this corpus has {', '.join(splits)}")
        return [Shard(self.directory / name, dtype) for name in splits[split]["shards"]]

    def programs(self, split: str, *, length: int) -> "Programs":
        """Return the programs of at most `length` tokens, BOS and EOS included; at least one must exist."""
        special = self.description["tokenizer"]["special"]
        vocab_size = self.description["tokenizer"]["vocab_size"]
        shards = self.shards(split)
        programs = Programs(shards, length, bos=special["bos"], eos=special["eos"], vocab_size=vocab_size)
        if not len(programs):
            raise ValueError(f"the {split} split has no program of at most {length} tokens: {TOO_FEW_FILES}")
        return programs


class Programs:
    """A view of a split as programs of at most `length` tokens.

    A document that fits is one program. A longer document gives its definitions. A definition that does not fit,
    or a long document without definitions, is cut: it fills the canvas and has no EOS.
    """

    def __init__(
        self, shards: Sequence[Shard], length: int, *, bos: int, eos: int, vocab_size: int | None = None
    ) -> None:
        if length < 3:
            raise ValueError(f"length must be at least 3 (BOS, text, EOS), not {length}")
        self.shards, self.length, self.bos, self.eos = list(shards), length, bos, eos
        self.vocab_size = vocab_size
        tables = [programs_of(shard, number, length) for number, shard in enumerate(self.shards)]
        self.index = np.concatenate(tables) if tables else np.zeros(0, dtype=PROGRAM)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        """Return one program, filled up with EOS."""
        row = self.index[number]
        canvas = np.full(self.length, self.eos, dtype=np.int64)
        canvas[0] = self.bos
        text = self.shards[row["shard"]].tokens[row["start"] : row["start"] + row["length"]]
        canvas[1 : 1 + len(text)] = text
        return self._checked(canvas)

    def batch(self, numbers: Sequence[int] | NDArray) -> NDArray[np.int64]:
        """Return several programs at once, without a Python loop over them."""
        rows = self.index[np.asarray(numbers)]
        canvases = np.full((len(rows), self.length), self.eos, dtype=np.int64)
        canvases[:, 0] = self.bos
        offsets = np.arange(self.length - 1)
        is_text = offsets < rows["length"][:, None]
        for shard in np.unique(rows["shard"]):
            in_shard = rows["shard"] == shard
            token_index = (rows["start"][in_shard, None] + offsets)[is_text[in_shard]]
            canvases[:, 1:][in_shard[:, None] & is_text] = self.shards[shard].tokens[token_index]
        return self._checked(canvases)

    def _checked(self, canvases: NDArray[np.int64]) -> NDArray[np.int64]:
        """Refuse ids outside the vocabulary, which come from a damaged file."""
        if self.vocab_size is not None and canvases.size and canvases.max() >= self.vocab_size:
            folder = self.shards[0].directory.parent
            raise ValueError(
                f"{folder} is damaged: token {canvases.max()} is outside a vocabulary of {self.vocab_size}; "
                "run `crocodil corpus verify`"
            )
        return canvases

    @property
    def num_tokens(self) -> int:
        """The number of tokens of text, without BOS and EOS."""
        return int(self.index["length"].sum())


def programs_of(shard: Shard, number: int, length: int) -> NDArray:
    """Return the table of programs of a shard; `number` is the index of the shard."""
    documents, parts = shard.documents, shard.parts
    _check(shard)
    fits = documents["length"] <= length - 2
    whole = documents[fits | (documents["num_parts"] == 0)]
    split = documents[~fits & (documents["num_parts"] > 0)]
    # All parts of the split documents, each with its document.
    num_parts = split["num_parts"]
    owner = np.repeat(split, num_parts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    part = parts[owner["first_part"] + within]
    programs = np.zeros(len(whole) + len(part), dtype=PROGRAM)
    programs["shard"] = number
    programs["start"] = np.concatenate([whole["start"], owner["start"] + part["start"]])
    full_length = np.concatenate([whole["length"], part["length"]])
    programs["cut"] = full_length > length - 2
    programs["length"] = np.where(programs["cut"], length - 1, full_length)
    programs["package"] = np.concatenate([whole["package"], owner["package"]])
    return programs[np.argsort(programs["start"], kind="stable")]


def _check(shard: Shard) -> None:
    """Check that documents fill the tokens without gaps and that definitions lie within their documents."""
    documents, parts = shard.documents, shard.parts
    fits = _fill(documents["start"], documents["length"], len(shard.tokens)) and _fill(
        documents["first_part"], documents["num_parts"], len(parts)
    )
    if fits:
        room = np.repeat(documents["length"], documents["num_parts"])
        fits = not ((parts["start"] < 0) | (parts["length"] < 0) | (parts["start"] + parts["length"] > room)).any()
    if not fits:
        raise ValueError(
            f"{shard.directory} is damaged: its documents do not fit its tokens; build the corpus again"
        )


def _fill(starts: NDArray, lengths: NDArray, total: int) -> bool:
    """Return whether consecutive ranges fill 0..total without gaps."""
    edges = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return bool((lengths >= 0).all() and np.array_equal(starts, edges[:-1]) and edges[-1] == total)
