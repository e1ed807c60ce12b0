"""Tables that describe a corpus, for the command line and the documentation."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from crocodil.corpus.order import Order
from crocodil.corpus.shards import TOKENIZER_FILE, TOO_FEW_FILES, Corpus
from crocodil.text.tokenizer import Tokenizer

LENGTHS = (256, 512, 1024)
BAR = 30  # characters
NEEDED_BY = {"valid": "`crocodil train` or `reproduce`", "test": "`crocodil reproduce`"}
Row = tuple[str, ...]


def tables(corpus: Corpus) -> Iterator[list[Row]]:
    """Yield tables; the first row is the title, the second the column heads."""
    yield _splits(corpus)
    yield _programs(corpus)
    yield _lengths(corpus)
    yield _drops(corpus)
    if corpus.description["counts"]["skipped"]:
        yield _skips(corpus)
    yield _licences(corpus)


def samples(corpus: Corpus, *, count: int, length: int) -> Iterator[str]:
    """Yield programs of train, drawn with a fixed key; none from a corpus for tests alone."""
    if not corpus.shards("train"):
        return
    tokenizer = Tokenizer.load(corpus.directory / TOKENIZER_FILE)
    programs = corpus.programs("train", length=length)
    for number in Order(len(programs), "samples").at(np.arange(min(count, len(programs)))):
        yield tokenizer.decode(programs[int(number)].tolist())


def random_texts(corpus: Corpus, *, max_chars: int) -> Iterator[str]:
    """Yield whole documents of train in random order with a fixed key, about `max_chars` characters in all."""
    tokenizer = Tokenizer.load(corpus.directory / TOKENIZER_FILE)
    corpus.require("train")
    shards = corpus.shards("train")
    ends = np.cumsum([len(shard.documents) for shard in shards])
    for number in Order(int(ends[-1]), "texts").at(np.arange(ends[-1])):
        shard = shards[which := int(np.searchsorted(ends, number, side="right"))]
        start, length = shard.documents[number - ends[which]][["start", "length"]]
        text = tokenizer.decode(shard.tokens[start : start + length].tolist())
        yield text
        max_chars -= len(text)
        if max_chars <= 0:
            return


def warnings(corpus: Corpus) -> Iterator[str]:
    """Yield warnings about empty splits; a corpus for tests alone has them on purpose."""
    if not corpus.shards("train"):
        return
    for split, need in NEEDED_BY.items():
        if not corpus.shards(split):
            yield f"the {split} split is empty, but {need} needs it: {TOO_FEW_FILES}"


def card(corpus: Corpus) -> Iterator[str]:
    """Yield the sources and licences of a corpus as Markdown, package by package."""
    by_licence: dict[str, list[str]] = {}
    for package in corpus.packages:
        if package["split"]:
            held_out = "" if package["split"] == "train" else f" ({package['split']})"
            by_licence.setdefault(package["licence"], []).append(package["name"] + held_out)
    yield "# Sources and licences\n"
    yield f"{sum(map(len, by_licence.values())):,} packages, with the licences that they declare.\n"
    for licence, names in sorted(by_licence.items(), key=lambda row: (-len(row[1]), row[0])):
        yield f"## {licence} ({len(names)})\n"
        yield ", ".join(sorted(names, key=str.lower)) + "\n"


def _splits(corpus: Corpus) -> list[Row]:
    rows = [("Splits",), ("split", "packages", "documents", "characters", "tokens", "characters/token", "leaked")]
    leaks = corpus.description["leaked_share"]
    for split, about in corpus.description["splits"].items():
        per_token = about["chars"] / max(about["tokens"], 1)
        counts = (f"{about[name]:,}" for name in ("packages", "documents", "chars", "tokens"))
        rows.append((split, *counts, f"{per_token:.2f}", f"{leaks[split]:.2%}" if split in leaks else ""))
    return rows


def _programs(corpus: Corpus) -> list[Row]:
    rows = [("Programs by length",), ("at most", "split", "programs", "tokens of text", "cut", "median")]
    for length in LENGTHS:
        for split in corpus.description["splits"]:
            if not corpus.shards(split):
                continue
            programs = corpus.programs(split, length=length)
            row = programs.index
            median = f"{np.median(row['length']):.0f}"
            counts = (f"{len(programs):,}", f"{programs.num_tokens:,}", f"{row['cut'].mean():.1%}", median)
            rows.append((f"{length}", split, *counts))
    return rows


def _lengths(corpus: Corpus) -> list[Row]:
    """Return a histogram of document lengths in tokens, by powers of two."""
    split = "train" if corpus.shards("train") else "test"
    lengths = np.concatenate([shard.documents["length"] for shard in corpus.shards(split)])
    counts = Counter(int(np.log2(max(length, 1))) for length in lengths)
    rows = [(f"Lengths of documents in {split}",), ("tokens", "documents", "")]
    most = max(counts.values())
    for power in range(min(counts), max(counts) + 1):
        span = f"{1 << power:,} - {(2 << power) - 1:,}"
        rows.append((span, f"{counts[power]:,}", _bar(counts[power] / most)))
    return rows


def _drops(corpus: Corpus) -> list[Row]:
    counts = corpus.description["counts"]
    total = max(counts["read"][1], 1)
    rows = [("Files read, dropped and kept",), ("reason", "files", "megabytes", "")]
    rows.append(("read", f"{counts['read'][0]:,}", f"{total / 1e6:,.1f}", _bar(1.0)))
    for reason, (files, size) in sorted(counts["dropped"].items(), key=lambda row: -row[1][1]):
        rows.append((reason, f"{files:,}", f"{size / 1e6:,.1f}", _bar(size / total)))
    splits = corpus.description["splits"].values()
    documents, size = sum(split["documents"] for split in splits), sum(split["chars"] for split in splits)
    rows.append(("kept, as documents", f"{documents:,}", f"{size / 1e6:,.1f}", _bar(size / total)))
    return rows


def _skips(corpus: Corpus) -> list[Row]:
    rows = [("Skipped",), ("reason", "count", "for example")]
    for reason, names in corpus.description["counts"]["skipped"].items():
        rows.append((reason, f"{len(names):,}", ", ".join(_printable(name) for name in names[:3])))
    return rows


def _licences(corpus: Corpus) -> list[Row]:
    counts = Counter(package["licence"] for package in corpus.packages if package["split"])
    rows = [("Licences of packages",), ("licence", "packages", "")]
    shown = counts.most_common(12)
    for licence, count in shown:
        rows.append((licence, f"{count:,}", _bar(count / shown[0][1])))
    if rest := sum(counts.values()) - sum(count for _, count in shown):
        rows.append(("others", f"{rest:,}", ""))
    return rows


def _printable(name: str) -> str:
    """Escape control characters in a name, which a terminal could interpret."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def _bar(share: float) -> str:
    return "█" * round(BAR * min(share, 1.0)) or "▏"
