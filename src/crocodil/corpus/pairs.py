"""Pairs of a prompt and its answer, cut out of a corpus or read from a file, with their provenance and split.

A pair belongs to the split of its document. A pair that occurs again, in the same split or in a later one (train,
valid, test), is left out, so that no held-out pair was trained on. Does not import torch.
"""

import gzip
import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import file_digest
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from crocodil.corpus.cuts import KINDS, Cuts, cuts_of, draw
from crocodil.corpus.shards import CORPUS_FILE, TOKENIZER_FILE, Corpus
from crocodil.corpus.splits import SPLITS, family
from crocodil.runtime.atomic import whole_directory
from crocodil.runtime.config import Amount, config, read_as, read_json
from crocodil.runtime.progress import progress
from crocodil.runtime.workers import in_order, process_count
from crocodil.text.tokenizer import Tokenizer

FORMAT, FORMAT_VERSION = "crocodil pairs", 1
PAIRS_FILE = "pairs.json"
DOCUMENTS_AT_ONCE = 512  # cut by one process


@config
class Pair:
    """A prompt and its answer. With a suffix, the text after the answer is given too."""

    prompt: str
    answer: str
    suffix: str = ""
    kind: str = "own"  # body, middle or block; own: read from a file of pairs
    split: Literal["train", "valid", "test"]
    package: str = ""
    path: str = ""  # the document, or the file and the line of a row
    licence: str = ""
    start: Amount = 0  # of the answer in its document, in characters

    def __post_init__(self) -> None:
        if not self.answer.strip():
            raise ValueError("answer should not be empty")
        if not (self.prompt or self.suffix):
            raise ValueError("prompt should not be empty")


class _Row(NamedTuple):
    """A pair as it is written."""

    split: str
    kind: str
    number: int  # drawn from the texts alone: equal pairs have the same
    line: str


def _row(pair: Pair) -> _Row:
    number = draw(json.dumps([pair.prompt, pair.answer, pair.suffix]))
    return _Row(pair.split, pair.kind, number, json.dumps(asdict(pair), ensure_ascii=False))


# ---------------------------------------------------------------- from a corpus


class _Documents(NamedTuple):
    """Consecutive documents of one shard."""

    split: Any
    shard: int
    rows: slice


def _pairs_of(corpus: Corpus, documents: _Documents, cuts: Cuts) -> Iterator[Pair]:
    tokenizer = Tokenizer.load(corpus.directory / TOKENIZER_FILE)
    shard = corpus.shards(documents.split)[documents.shard]
    for row, path in zip(shard.documents[documents.rows], shard.paths[documents.rows], strict=True):
        text = tokenizer.decode(shard.tokens[row["start"] : row["start"] + row["length"]].tolist())
        package = corpus.packages[int(row["package"])]
        for kind, whole, answer in cuts_of(text, cuts):
            yield Pair(
                prompt=text[whole.start : answer.start],
                answer=text[answer.start : answer.end],
                suffix=text[answer.end : whole.end],
                kind=kind,
                split=documents.split,
                package=package["name"],
                path=path,
                licence=package["licence"],
                start=answer.start,
            )


def _rows_of_corpus(corpus: Corpus, cuts: Cuts, num_processes: int) -> Iterator[_Row]:
    """Cut the documents of a corpus in several processes; the pairs come in the order of the documents."""
    pieces = list(_pieces(corpus))
    total = sum(split["documents"] for split in corpus.description["splits"].values())
    num_processes = min(num_processes, -(-total // DOCUMENTS_AT_ONCE))  # a process is slow to start
    calls = [(corpus.directory, piece, cuts) for piece in pieces]
    with progress("cutting", total, unit="documents") as advance:
        for piece, rows in zip(pieces, in_order(_cut, calls, num_processes), strict=True):
            yield from rows
            advance(piece.rows.stop - piece.rows.start)


def _pieces(corpus: Corpus) -> Iterator[_Documents]:
    for split in SPLITS:
        for number, shard in enumerate(corpus.shards(split)):
            edges = [*range(0, len(shard.documents), DOCUMENTS_AT_ONCE), len(shard.documents)]
            yield from (_Documents(split, number, slice(*rows)) for rows in pairwise(edges))


def _cut(directory: Path, documents: _Documents, cuts: Cuts) -> list[_Row]:
    return [_row(pair) for pair in _pairs_of(Corpus(directory), documents, cuts)]


# ---------------------------------------------------------------- from a file


def read_rows(file: Path, *, held_out: float = 0.01) -> list[Pair]:
    """Read pairs from .jsonl or .jsonl.gz: objects with `prompt` and `answer`, and any other field of `Pair`.

    A row without a split gets one by a draw: `held_out` of the package families for valid and as many for test. A
    row without a package is drawn by its prompt, so that all answers to a prompt lie in one split.
    """
    return [_pair(row, f"{file}, line {number}", held_out) for number, row in _json_rows(file)]


def _json_rows(file: Path) -> Iterator[tuple[int, Any]]:
    if not file.is_file():
        raise ValueError(f"{file} does not exist or is not a file")
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, json.loads(line)
        except (ValueError, RecursionError, EOFError, OSError) as error:
            raise ValueError(f"{file} is not a file of JSON lines: {error}") from None


def _pair(row: Any, where: str, held_out: float) -> Pair:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with prompt and answer, not {type(row).__name__}")
    drawn = {} if "split" in row else {"split": _drawn_split(row, held_out)}
    return read_as(Pair, {"path": where, **drawn, **row}, where)


def _drawn_split(row: dict[str, Any], held_out: float) -> str:
    package = row.get("package")
    key = f"package {family(str(package))}" if package else f"prompt {row.get('prompt')}"
    share = draw("split", key) / 2.0**64
    return "valid" if share < held_out else "test" if share < 2 * held_out else "train"


# ---------------------------------------------------------------- a folder of pairs


class PairsDescription(TypedDict):
    """The contents of `pairs.json`."""

    format: str
    version: int
    source: dict[str, Any]
    splits: dict[str, dict[str, Amount]]  # by split: pairs of each kind
    left_out: dict[str, Amount]  # by reason
    sha256: dict[str, str]


@dataclass
class _Collected:
    """Pairs of one split: all of them, or a random part of each kind that does not depend on their order."""

    count: int | None
    rows: dict[str, list[tuple[int, str]]] = field(default_factory=dict)  # by kind: (minus the draw, JSON)

    def add(self, kind: str, number: int, line: str) -> None:
        rows = self.rows.setdefault(kind, [])
        row = (-number, line)
        if self.count is None:
            rows.append(row)
        elif len(rows) < self.count:
            heapq.heappush(rows, row)
        else:
            heapq.heappushpop(rows, row)

    def lines(self) -> list[str]:
        """Return the rows in an order that mixes kinds and documents."""
        rows = sorted((row for rows in self.rows.values() for row in rows), reverse=True)
        return [text for _, text in rows]


def write_pairs(
    source: Path,
    out: Path,
    *,
    cuts: Cuts | None = None,
    count: int | None = None,
    held_out: float = 0.01,
    num_processes: int | None = None,
) -> "Pairs":
    """Write a folder of pairs from a corpus, or from a file of pairs; at most `count` of each kind and split.

    The same source and options give the same files, with any number of processes. `count` keeps the pairs with the
    smallest drawn numbers, and repeated pairs are counted, so all documents are cut in any case.
    """
    num_processes = process_count(num_processes)
    if out.exists():
        raise ValueError(f"{out} exists: choose a new folder")
    cuts = cuts or Cuts()
    if (source / CORPUS_FILE).exists():
        corpus = Corpus(source)
        rows: Iterable[_Row] = _rows_of_corpus(corpus, cuts, num_processes)
        origin: dict[str, Any] = {"corpus": corpus.description["sha256"], "cuts": asdict(cuts)}
    elif source.is_dir():
        raise ValueError(f"{source} is neither a corpus nor a file of pairs: {CORPUS_FILE} is missing")
    else:
        pairs = sorted(read_rows(source, held_out=held_out), key=lambda pair: SPLITS.index(pair.split))
        rows = map(_row, pairs)
        origin = {"file": source.name, "sha256": _sha256(source), "held_out": held_out}
    collected, left_out = _collect(rows, count)
    counts = {
        split: {kind: len(rows) for kind, rows in sorted(of_split.rows.items())}
        for split, of_split in collected.items()
    }
    if not any(counts.values()):
        raise ValueError(f"{source} gave no pair: it needs functions with docstrings, comments, or rows")
    with whole_directory(out) as unfinished:
        for split, of_split in collected.items():
            text = "".join(f"{line}\n" for line in of_split.lines())
            (unfinished / f"{split}.jsonl").write_text(text, encoding="utf-8")
        description = {
            "format": FORMAT, "version": FORMAT_VERSION, "source": origin, "splits": counts, "left_out": left_out,
            "sha256": {f"{split}.jsonl": _sha256(unfinished / f"{split}.jsonl") for split in collected},
        }  # fmt: skip
        (unfinished / PAIRS_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return Pairs(out)


def _collect(rows: Iterable[_Row], count: int | None) -> tuple[dict[str, _Collected], dict[str, int]]:
    collected = {split: _Collected(count) for split in SPLITS}
    first_split: dict[int, str] = {}  # by digest
    left_out: Counter[str] = Counter()
    for split, kind, number, line in rows:
        if number in first_split:
            left_out[f"in {split}, also in {first_split[number]}"] += 1
        else:
            first_split[number] = split
            collected[split].add(kind, number, line)
    return collected, dict(sorted(left_out.items()))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


class Pairs:
    """A folder of pairs: `Pairs("PAIRS").split("test")`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        file = self.directory / PAIRS_FILE
        values = read_json(file)
        if [values.get("format"), values.get("version")] != [FORMAT, FORMAT_VERSION]:
            raise ValueError(f"{file} is not version {FORMAT_VERSION} of this project's format of pairs")
        self.description: PairsDescription = read_as(PairsDescription, values, file)

    def split(self, name: str) -> "PairFile":
        if name not in SPLITS:
            raise ValueError(f"no split {name!r}: take one of {', '.join(SPLITS)}")
        file = self.directory / f"{name}.jsonl"
        if not file.is_file() or self.description["sha256"].get(file.name) != _sha256(file):
            raise ValueError(f"{file} is missing or damaged: its checksum differs from {PAIRS_FILE}")
        return PairFile(file)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the counts as the rows of a table."""
        splits = self.description["splits"]
        kinds = [*KINDS, *sorted({kind for counts in splits.values() for kind in counts} - set(KINDS))]
        counts = [(split, *(f"{splits[split].get(kind, 0):,}" for kind in kinds)) for split in splits]
        return [("Pairs",), ("split", *kinds), *counts]


@dataclass(frozen=True)
class PairFile:
    """The pairs of one split, or a part of them; only their positions in the file are in memory."""

    file: Path
    start: int = 0  # in bytes
    end: int | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, number: int) -> Pair:
        start, end = self._starts[range(len(self))[number]], self._starts[range(len(self))[number] + 1]
        with self.file.open("rb") as opened:
            opened.seek(int(start))
            return self._pair(opened.read(int(end - start)))

    def __iter__(self) -> Iterator[Pair]:
        return map(self._pair, self._lines())

    def parts(self, size: int) -> list["PairFile"]:
        """Return parts of `size` pairs; the last one may be smaller."""
        edges = [*self._starts[:-1:size].tolist(), int(self._starts[-1])]
        return [PairFile(self.file, *edge) for edge in pairwise(edges)]

    def _pair(self, line: bytes) -> Pair:
        return read_as(Pair, json.loads(line), self.file)

    def _lines(self) -> Iterator[bytes]:
        with self.file.open("rb") as lines:
            lines.seek(position := self.start)
            for line in lines:
                if position == self.end:
                    return
                position += len(line)
                yield line

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        lengths = np.fromiter(map(len, self._lines()), dtype=np.int64)
        return np.concatenate([[self.start], self.start + lengths.cumsum()])
