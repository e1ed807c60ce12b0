"""Harvest one unit of a source: decode, filter and cut raw files, and fingerprint the documents.

The result is a directory that appears whole or not at all, so a killed build continues where it stopped.
"""

import gzip
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rensa import RMinHash

from crocodil.corpus.archives import readable
from crocodil.corpus.documents import Document, RawFile, SourceFile, Span, plain, utf8_name, without_notice
from crocodil.corpus.filters import MIN_CHARS
from crocodil.corpus.licences import is_permissive
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.sources import Skip, Unit
from crocodil.runtime.atomic import whole_directory

NUM_HASHES = 128
SHINGLE_WORDS = 5
DOCUMENTS_FILE, INDEX_FILE, COUNTS_FILE = "documents.jsonl.gz", "index.npz", "counts.json"


class Amount(NamedTuple):
    files: int = 0
    bytes: int = 0

    def plus(self, num_bytes: int) -> "Amount":
        return Amount(self.files + 1, self.bytes + num_bytes)


@dataclass
class Counts:
    """Counts of the files of a unit: read, kept, dropped and skipped."""

    read: Amount = field(default_factory=Amount)
    kept: Amount = field(default_factory=Amount)
    dropped: dict[str, Amount] = field(default_factory=lambda: defaultdict(Amount))
    skipped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # reason -> names
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def drop(self, reason: str, num_bytes: int) -> None:
        self.dropped[reason] = self.dropped[reason].plus(num_bytes)


def harvest(unit: Unit, recipe: Recipe, directory: Path) -> None:
    """Write the kept documents of a unit, their index and the counts to `directory`."""
    with whole_directory(directory) as unfinished:
        counts, index = Counts(), Index()
        with gzip.open(unfinished / DOCUMENTS_FILE, "wt", compresslevel=1, encoding="utf-8") as lines:
            for document in kept_documents(unit, recipe, counts):
                lines.write(json.dumps(vars(document), ensure_ascii=False) + "\n")
                with timed(counts, "fingerprint"):
                    index.add(document)
        index.save(unfinished / INDEX_FILE)
        (unfinished / COUNTS_FILE).write_text(json.dumps(vars(counts)))


def kept_documents(unit: Unit, recipe: Recipe, counts: Counts) -> Iterator[Document]:
    items = unit.read()
    while True:
        with timed(counts, "fetch and unpack"):
            item = next(items, None)
        if item is None:
            return
        if isinstance(item, Skip):
            counts.skipped[item.reason].append(utf8_name(item.name))
            continue
        counts.read = counts.read.plus(len(item.data))
        package, path, licence = map(utf8_name, (item.package, item.path, item.licence))
        yield from _documents_of(RawFile(package, path, licence, item.data), recipe, counts)


def _documents_of(raw: RawFile, recipe: Recipe, counts: Counts) -> Iterator[Document]:
    size = len(raw.data)
    if recipe.permissive_only and not is_permissive(raw.licence):
        return counts.drop("licence", size)
    try:
        text = plain(raw.data.decode("utf-8"))
    except UnicodeDecodeError:
        return counts.drop("not UTF-8", size)
    file = SourceFile(raw.path, without_notice(text) if recipe.strip_notice else text)
    for drop_filter in recipe.filters:
        with timed(counts, drop_filter.__name__):
            is_dropped = drop_filter(file)
        if is_dropped:
            return counts.drop(drop_filter.__name__.replace("_", " "), size)
    with timed(counts, "cut"):
        spans = recipe.cut(file)
    if len(file.text) <= recipe.max_chars:
        counts.kept = counts.kept.plus(len(file.text))
        yield Document(raw.package, raw.path, raw.licence, file.text, spans)
        return
    yield from _pieces(raw, file, spans, recipe, counts)


def _pieces(
    raw: RawFile, file: SourceFile, spans: list[Span], recipe: Recipe, counts: Counts
) -> Iterator[Document]:
    """Yield the parts of a file that is too long; the text between them is dropped and counted."""
    kept = 0
    for span in spans:
        text = file.text[span.start : span.end]
        if MIN_CHARS <= len(text) <= recipe.max_chars:
            kept += len(text)
            counts.kept = counts.kept.plus(len(text))
            yield Document(raw.package, f"{raw.path}@{span.start}", raw.licence, text, [])
    counts.drop("between and outside the definitions of long files", len(raw.data) - kept)


def read_documents(directory: Path) -> Iterator[Document]:
    """Yield the documents of a harvested unit in order."""
    file = directory / DOCUMENTS_FILE
    with (
        readable(file, "part of a build (delete its folder and build again)"),
        gzip.open(file, "rt", encoding="utf-8") as lines,
    ):
        for line in lines:
            values = json.loads(line)
            yield Document(**{**values, "starts": [Span(*span) for span in values["starts"]]})


class Index:
    """The data of each document that the selection needs: package, length, digest and signature."""

    def __init__(self) -> None:
        self.packages: dict[str, int] = {}
        self.licences: list[str] = []
        self.rows: list[tuple[int, int, bytes, list[int]]] = []

    def add(self, document: Document) -> None:
        if document.package not in self.packages:
            self.packages[document.package] = len(self.packages)
            self.licences.append(document.licence)
        data = document.text.encode("utf-8", "surrogatepass")
        digest = blake2b(data, digest_size=16).digest()
        self.rows.append((self.packages[document.package], len(document.text), digest, signature(document.text)))

    def save(self, file: Path) -> None:
        package, chars, digests, signatures = zip(*self.rows, strict=True) if self.rows else ((), (), (), ())
        np.savez(
            file,
            package=np.array(package, dtype=np.int32),
            chars=np.array(chars, dtype=np.int64),
            digest=np.frombuffer(b"".join(digests), dtype=np.uint64).reshape(-1, 2),
            signature=np.array(signatures, dtype=np.uint32).reshape(-1, NUM_HASHES),
            names=np.array(list(self.packages), dtype=np.str_),
            licences=np.array(self.licences, dtype=np.str_),
        )


def signature(text: str) -> list[int]:
    """Return the MinHash of the text's shingles; the share of equal entries estimates the Jaccard similarity."""
    words = re.findall(r"\w+", text)
    shingles = [" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1))]
    minhash = RMinHash(num_perm=NUM_HASHES, seed=1)
    minhash.update(shingles)
    return minhash.digest()


class timed:  # noqa: N801 - reads as a verb: `with timed(counts, "cut")`
    """Adds the duration of a block to the seconds of a stage."""

    def __init__(self, counts: Counts, stage: str) -> None:
        self.counts, self.stage = counts, stage

    def __enter__(self) -> None:
        self.started_at = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.counts.seconds[self.stage] += time.perf_counter() - self.started_at
