"""Build a corpus from a recipe: harvest, select, train a tokenizer, write shards, check for leaks.

Every stage writes files that appear whole or not at all, and skips files that already exist: a build that is
killed at any point and started again ends with the same checksums. `corpus.json` is written last.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from crocodil.corpus.documents import Document, utf8_name
from crocodil.corpus.harvest import COUNTS_FILE, harvest, read_documents
from crocodil.corpus.known import check_known, known_documents, known_shards
from crocodil.corpus.leaks import WINDOW, leaked_shares
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.selection import Catalogue, Selection, catalogue, select
from crocodil.corpus.shards import (
    CORPUS_FILE,
    FORMAT,
    FORMAT_VERSION,
    TOKENIZER_FILE,
    Corpus,
    Shard,
    ShardWriter,
    checksums,
    token_dtype,
)
from crocodil.corpus.sources import Unit
from crocodil.corpus.splits import SPLITS
from crocodil.runtime.atomic import locked, remove_unfinished, whole_directory, whole_file
from crocodil.runtime.progress import progress
from crocodil.runtime.workers import as_finished, process_count
from crocodil.text.tokenizer import Tokenizer

DOCUMENTS_AT_ONCE = 256  # per call of the tokenizer
TRAIN = SPLITS.index("train")


def build(recipe: Recipe, out: Path, *, num_processes: int | None = None) -> Corpus:
    """Build a corpus in `out`, or finish an interrupted build there; `out/work` may be deleted afterwards."""
    num_processes = process_count(num_processes)
    if recipe.tokenizer is not None:  # fail now: reading the source may take hours
        Tokenizer.load(recipe.tokenizer)
    elif recipe.only_test:
        raise ValueError("a corpus for tests alone cannot train a tokenizer: give one with --tokenizer")
    check_known(recipe.against)
    with locked(out):
        return _build(recipe, out, num_processes)


def _build(recipe: Recipe, out: Path, num_processes: int) -> Corpus:
    work = out / "work"
    work.mkdir(parents=True, exist_ok=True)
    _check_recipe(recipe, work)
    if (out / CORPUS_FILE).exists():
        return Corpus(out)
    remove_unfinished(out)
    remove_unfinished(work)
    directories = run_harvest(recipe, work, num_processes=num_processes)
    documents = catalogue(directories, work / "signatures.bin")
    selection = select(documents, recipe, known_documents(recipe.against, work))
    tokenizer = ensure_tokenizer(recipe, out, directories, documents, selection)
    write_shards(recipe, out, directories, documents, selection, num_processes=num_processes)
    return finish(recipe, out, directories, documents, selection, tokenizer)


def _check_recipe(recipe: Recipe, work: Path) -> None:
    """Refuse a folder in which a build by another recipe began."""
    out, wanted = work.parent, recipe.corpus_fingerprint()
    claims = [(work / "recipe").read_text()] if (work / "recipe").exists() else []
    if (out / CORPUS_FILE).exists():  # `work` may be deleted then
        claims.append(Corpus(out).description["recipe"])
    if any(claim != wanted for claim in claims):
        raise ValueError(f"{out} was started with another recipe: choose another directory, or delete it")


def _claim(recipe: Recipe, units: Sequence[Unit], work: Path) -> None:
    """Record the recipe and the list of units, or check that they are the same.

    Harvested files are numbered by this list.
    """
    _check_recipe(recipe, work)
    digest = hashlib.sha256("\n".join(repr(unit) for unit in units).encode()).hexdigest()
    for claim, content in ((work / "recipe", recipe.corpus_fingerprint()), (work / "units", digest)):
        if not claim.exists():
            with whole_file(claim) as unfinished:
                unfinished.write_text(content)
    if (work / "units").read_bytes() != digest.encode():
        raise ValueError(
            f"the source has gained or lost files since this build began: delete {work.parent}, then start again"
        )


def run_harvest(recipe: Recipe, work: Path, *, num_processes: int) -> list[Path]:
    """Harvest every unit that is not harvested yet; return the directories of all units in order."""
    root = work / f"harvest-{recipe.harvest_fingerprint()}"
    root.mkdir(parents=True, exist_ok=True)
    remove_unfinished(root)
    units = recipe.source.units()
    _claim(recipe, units, work)  # after the list was made: a source without files claims no folder
    directories = [root / f"{number:06d}" for number in range(len(units))]
    jobs = {
        directory: (harvest, unit, recipe, directory)
        for unit, directory in zip(units, directories, strict=True)
        if not directory.exists()
    }
    names = {directory: utf8_name(unit.name) for unit, directory in zip(units, directories, strict=True)}
    with progress("reading", len(units), unit="units") as advance:
        advance(len(units) - len(jobs), "done before")
        for directory in as_finished(jobs, num_processes):
            advance(1, names[directory])
    return directories


# ---------------------------------------------------------------- the tokenizer


def ensure_tokenizer(
    recipe: Recipe, out: Path, directories: Sequence[Path], documents: Catalogue, selection: Selection
) -> Tokenizer:
    """Return the recipe's tokenizer, or train one on a random part of the train split."""
    file = out / TOKENIZER_FILE
    if not file.exists():
        if recipe.tokenizer is not None:
            Tokenizer.load(recipe.tokenizer).with_mask().save(file)  # a demasker needs one (decision D39)
        else:
            chosen = _sample(documents, selection, recipe.tokenizer_chars)
            texts = _texts(directories, documents, chosen)
            with progress("training the tokenizer", int(chosen.sum()), unit="documents") as advance:
                trained = Tokenizer.train(_counted(texts, advance), vocab_size=recipe.vocab_size)
            trained.save(file)
    return Tokenizer.load(file)


def _sample(documents: Catalogue, selection: Selection, max_chars: int) -> np.ndarray:
    """Select a random part of train of about `max_chars`; the draw depends on the text of each document."""
    in_train = selection.split == TRAIN
    total = max(int(documents.chars[in_train].sum()), 1)
    draw = documents.digest[:, 1] / 2.0**64
    return in_train & (draw < max_chars / total)


def _texts(directories: Sequence[Path], documents: Catalogue, chosen: np.ndarray) -> Iterator[str]:
    for unit, directory in enumerate(directories):
        chosen_here = chosen[documents.unit == unit]
        if chosen_here.any():
            rows = zip(read_documents(directory), chosen_here, strict=True)
            yield from (document.text for document, is_chosen in rows if is_chosen)


def _counted(texts: Iterable[str], advance: Any) -> Iterator[str]:
    for text in texts:
        yield text
        advance(1)


# ---------------------------------------------------------------- shards


def write_shards(
    recipe: Recipe,
    out: Path,
    directories: Sequence[Path],
    documents: Catalogue,
    selection: Selection,
    *,
    num_processes: int,
) -> None:
    """Tokenize the selected documents; consecutive units share a shard until it is large enough."""
    root = out / "shards"
    root.mkdir(exist_ok=True)
    remove_unfinished(root)
    package_of = documents.package
    jobs = {}
    for number, units in enumerate(_groups(documents, selection, recipe.shard_chars)):
        target = root / f"{number:05d}"
        if not target.exists():
            plan = [
                (
                    directories[unit],
                    selection.split[documents.unit == unit],
                    package_of[documents.unit == unit],
                )
                for unit in units
            ]
            jobs[target] = (write_shard, plan, out / TOKENIZER_FILE, target)
    with progress("tokenizing", len(jobs), unit="shards") as advance:
        for target in as_finished(jobs, num_processes):
            advance(1, target.name)


def _groups(documents: Catalogue, selection: Selection, shard_chars: int) -> Iterator[list[int]]:
    kept = selection.split >= 0
    per_unit = np.bincount(documents.unit, weights=np.where(kept, documents.chars, 0))
    group: list[int] = []
    for unit in np.flatnonzero(per_unit):
        group.append(int(unit))
        if per_unit[group].sum() >= shard_chars:
            yield group
            group = []
    if group:
        yield group


def write_shard(plan: Sequence[tuple[Path, np.ndarray, np.ndarray]], tokenizer_file: Path, target: Path) -> None:
    """Write the selected documents of several units as one shard per split, all in one directory."""
    tokenizer = Tokenizer.load(tokenizer_file)
    writers = [ShardWriter(token_dtype(len(tokenizer))) for _ in SPLITS]
    for directory, splits, packages in plan:
        rows = zip(read_documents(directory), splits, packages, strict=True)
        kept = ((document, int(split), int(package)) for document, split, package in rows if split >= 0)
        while batch := list(islice(kept, DOCUMENTS_AT_ONCE)):
            encoded = encode_documents(tokenizer, [document for document, _, _ in batch])
            for (document, split, package), (ids, parts) in zip(batch, encoded, strict=True):
                writers[split].add(ids, parts, package=package, path=document.path)
    with whole_directory(target) as unfinished:
        for name, writer in zip(SPLITS, writers, strict=True):
            if writer.documents:
                writer.save(unfinished / name)


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[Document]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Return the ids of each document, and (start, length) of its definitions in tokens.

    A document is encoded in pieces, cut at its definitions. The cuts are at line breaks, where our tokenizer
    starts a new token anyway, so the ids are those of the whole text.
    """
    edges = [
        sorted({0, len(document.text), *(edge for span in document.starts for edge in span)})
        for document in documents
    ]
    pieces = [
        document.text[start:end]
        for document, cuts in zip(documents, edges, strict=True)
        for start, end in pairwise(cuts)
    ]
    encoded = iter(tokenizer.encode_all(pieces))
    result = []
    for document, cuts in zip(documents, edges, strict=True):
        ids: list[int] = []
        token_at = {0: 0}  # character offset -> token index
        for end in cuts[1:]:
            ids += next(encoded)
            token_at[end] = len(ids)
        result.append((ids, [(token_at[s], token_at[e] - token_at[s]) for s, e in document.starts]))
    return result


# ---------------------------------------------------------------- the description


def finish(
    recipe: Recipe,
    out: Path,
    directories: Sequence[Path],
    documents: Catalogue,
    selection: Selection,
    tokenizer: Tokenizer,
) -> Corpus:
    """Check for leaks and write `corpus.json`, which completes the corpus."""
    dtype = token_dtype(len(tokenizer))
    shards = {
        split: [Shard(path, dtype) for path in sorted((out / "shards").glob(f"*/{split}"))] for split in SPLITS
    }
    seen = shards["train"] + known_shards(recipe.against, out / TOKENIZER_FILE)
    with progress("checking for leaks", len(seen), unit="shards") as advance:
        held_out = {split: shards[split] for split in SPLITS if split != "train"}
        leaks = leaked_shares(held_out, seen, on_shard=advance)
    packages = [
        {"name": name, "licence": licence, "split": split}
        for name, licence, split in zip(
            documents.packages, documents.licences, _splits_of_packages(documents, selection), strict=True
        )
    ]
    description = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "recipe": recipe.corpus_fingerprint(),
        "tokenizer": {"vocab_size": len(tokenizer), "special": asdict(tokenizer.special)},
        "splits": {
            split: _amounts(out, split_shards, documents, selection, split)
            for split, split_shards in shards.items()
        },
        "leaked_share": {"window": WINDOW, **leaks},
        "packages": packages,
        "counts": _counts(directories, selection),
        "sha256": checksums(out),
    }
    with whole_file(out / CORPUS_FILE) as unfinished:
        unfinished.write_text(json.dumps(description, indent=1) + "\n")
    return Corpus(out)


def _splits_of_packages(documents: Catalogue, selection: Selection) -> list[str | None]:
    """Return the split of each package, or None if none of its documents was kept."""
    splits: list[str | None] = [None] * len(documents.packages)
    kept = selection.split >= 0
    package, first = np.unique(documents.package[kept], return_index=True)
    for number, index in zip(package, first, strict=True):
        splits[number] = SPLITS[selection.split[kept][index]]
    return splits


def _amounts(
    out: Path, shards: Sequence[Shard], documents: Catalogue, selection: Selection, split: str
) -> dict[str, Any]:
    inside = selection.split == SPLITS.index(split)
    return {
        "shards": [shard.directory.relative_to(out).as_posix() for shard in shards],
        "documents": int(inside.sum()),
        "packages": len(np.unique(documents.package[inside])),
        "chars": int(documents.chars[inside].sum()),
        "tokens": sum(len(shard.tokens) for shard in shards),
    }


def _counts(directories: Sequence[Path], selection: Selection) -> dict[str, Any]:
    """Sum the counts of all units."""
    total: dict[str, Any] = {"read": [0, 0], "kept": [0, 0], "dropped": {}, "skipped": {}, "seconds": {}}
    for directory in directories:
        counts = json.loads((directory / COUNTS_FILE).read_text())
        for name in ("read", "kept"):
            total[name] = [a + b for a, b in zip(total[name], counts[name], strict=True)]
        for reason, amount in counts["dropped"].items():
            before = total["dropped"].get(reason, [0, 0])
            total["dropped"][reason] = [a + b for a, b in zip(before, amount, strict=True)]
        for reason, names in counts["skipped"].items():
            total["skipped"].setdefault(reason, []).extend(names)
        for stage, seconds in counts["seconds"].items():
            total["seconds"][stage] = round(total["seconds"].get(stage, 0) + seconds, 2)
    total["dropped"] |= {reason: list(amount) for reason, amount in selection.dropped.items()}
    return total
