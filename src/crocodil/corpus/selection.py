"""Select documents and assign splits: deduplication, package caps, held-out families.

Uses fingerprints only, never text. Signatures stay on disk; each document takes about 60 bytes of memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crocodil.corpus.archives import readable
from crocodil.corpus.harvest import INDEX_FILE, NUM_HASHES
from crocodil.corpus.recipe import Recipe
from crocodil.corpus.splits import SPLITS, family

DROPPED = -1
BANDS, ROWS_PER_BAND = 25, 5  # P(all rows of a band agree, for any band) = 1 - (1 - J^5)^25
PAIRS_AT_ONCE = 100_000

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Catalogue:
    """All harvested documents, ordered by unit."""

    unit: NDArray[np.int32]
    package: NDArray[np.int32]
    chars: NDArray[np.int64]
    digest: NDArray[np.uint64]  # two words each
    signature: NDArray[np.uint32]  # memory-mapped
    packages: list[str]
    licences: list[str]


@dataclass(frozen=True)
class Selection:
    split: NDArray[np.int8]  # per document: an index into SPLITS, or DROPPED
    dropped: dict[str, tuple[int, int]]  # reason -> documents, characters


def catalogue(directories: Sequence[Path], signatures: Path) -> Catalogue:
    """Join the indices of all units; the signatures are written to the file `signatures`."""
    numbers: dict[str, int] = {}
    licences: list[str] = []
    columns: dict[str, list[NDArray]] = {"unit": [], "package": [], "chars": [], "digest": []}
    with signatures.open("wb") as signature_file:
        for number, directory in enumerate(directories):
            file = directory / INDEX_FILE
            with readable(file, "part of a build (delete its folder and build again)"), np.load(file) as index:
                names = index["names"].tolist()
                for name, licence in zip(names, index["licences"].tolist(), strict=True):
                    if name not in numbers:
                        numbers[name] = len(numbers)
                        licences.append(licence)
                package_numbers = np.array([numbers[name] for name in names], dtype=np.int32)
                columns["unit"].append(np.full(len(index["package"]), number, dtype=np.int32))
                columns["package"].append(package_numbers[index["package"]])
                columns["chars"].append(index["chars"])
                columns["digest"].append(index["digest"])
                signature_file.write(index["signature"].tobytes())
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    if not len(joined["unit"]):
        raise ValueError("no document passed the filters: there is nothing to build a corpus from")
    signature = np.memmap(signatures, dtype=np.uint32, mode="r").reshape(-1, NUM_HASHES)
    return Catalogue(**joined, signature=signature, packages=list(numbers), licences=licences)


def select(documents: Catalogue, recipe: Recipe, known: Catalogue | None = None) -> Selection:
    """Return the split of each document, and how much was dropped for which reason.

    Documents that also occur in `known`, the documents of other corpora, are dropped first.
    """
    kept = np.ones(len(documents.unit), dtype=bool)
    dropped = {}
    copies = {
        "exact duplicate": exact_duplicates(documents.digest),
        "near duplicate": near_duplicates(documents.signature, recipe.near_duplicate),
    }
    if known is not None:
        copies = {
            "exact duplicate of another corpus": exactly_known(documents.digest, known.digest),
            "near duplicate of another corpus": nearly_known(
                documents.signature, known.signature, recipe.near_duplicate
            ),
        } | copies
    for reason, mask in copies.items():
        dropped[reason] = _amount(documents, kept & mask)
        kept &= ~mask
    if not kept.any():
        raise ValueError("all documents also occur in the other corpora: there is nothing to build a corpus from")
    over_cap = beyond_cap(documents, kept, recipe.package_cap_chars)
    dropped["beyond the cap of its package"] = _amount(documents, over_cap)
    kept &= ~over_cap
    return Selection(np.where(kept, splits(documents, kept, recipe), DROPPED).astype(np.int8), dropped)


def exact_duplicates(digest: NDArray[np.uint64]) -> Mask:
    """Mark all but the first of equal texts."""
    _, first = np.unique(digest, axis=0, return_index=True)
    mask = np.ones(len(digest), dtype=bool)
    mask[first] = False
    return mask


def near_duplicates(signature: NDArray[np.uint32], similarity: float) -> Mask:
    """Mark documents that are at least this similar to an earlier one.

    Locality-sensitive hashing by sorting: documents that agree on all rows of a band are adjacent, and each is
    compared with the first of its group. Memory is bounded by one band.
    """
    mask = np.zeros(len(signature), dtype=bool)
    for band in range(BANDS):
        keys = _band_keys(signature, band)
        order = np.argsort(keys, kind="stable")  # equal keys stay in document order
        starts_group = np.concatenate([[True], keys[order][1:] != keys[order][:-1]])
        leader = order[np.maximum.accumulate(np.where(starts_group, np.arange(len(order)), 0))]
        followers = ~starts_group & ~mask[order]
        for later, earlier in zip(_parts(order[followers]), _parts(leader[followers]), strict=True):
            mask[later] |= (signature[later] == signature[earlier]).mean(axis=1) >= similarity
    return mask


def exactly_known(digest: NDArray[np.uint64], known: NDArray[np.uint64]) -> Mask:
    """Mark texts that are equal to a known one."""
    both_words = np.dtype([("first", np.uint64), ("second", np.uint64)])
    ours, theirs = (np.ascontiguousarray(digests).view(both_words)[:, 0] for digests in (digest, known))
    return np.isin(ours, theirs)


def nearly_known(signature: NDArray[np.uint32], known: NDArray[np.uint32], similarity: float) -> Mask:
    """Mark documents that are at least this similar to a known one.

    Each is compared with all known documents that agree with it on all rows of a band: a test must not miss one.
    """
    mask = np.zeros(len(signature), dtype=bool)
    for band in range(BANDS):
        keys, known_keys = _band_keys(signature, band), _band_keys(known, band)
        order = np.argsort(known_keys, kind="stable")
        first = np.searchsorted(known_keys[order], keys, side="left")
        count = np.searchsorted(known_keys[order], keys, side="right") - first
        count[mask] = 0
        ours = np.repeat(np.arange(len(keys)), count)
        within = np.arange(len(ours)) - np.repeat(np.cumsum(count) - count, count)
        theirs = order[first[ours] + within]
        for document, other in zip(_parts(ours), _parts(theirs), strict=True):
            alike = (signature[document] == known[other]).mean(axis=1) >= similarity
            mask[document[alike]] = True
    return mask


def beyond_cap(documents: Catalogue, kept: Mask, cap: int) -> Mask:
    """Mark a random part of each package, so that at most `cap` characters remain; the same in every build."""
    chars = np.where(kept, documents.chars, 0)
    over = np.bincount(documents.package, weights=chars) > cap
    mask = np.zeros(len(kept), dtype=bool)
    for package in np.flatnonzero(over):
        members = np.flatnonzero(kept & (documents.package == package))
        shuffled = members[np.argsort(documents.digest[members, 0], kind="stable")]
        mask[shuffled[np.cumsum(documents.chars[shuffled]) > cap]] = True
    return mask


def splits(documents: Catalogue, kept: Mask, recipe: Recipe) -> NDArray[np.int8]:
    """Return the split of each document, drawn by the name of its package family or by its text."""
    if recipe.hold_out_families:
        draws = np.array([_draw(f"{recipe.split_key}/{family(name)}") for name in documents.packages])
        draw = draws[documents.package]
    else:
        draw = documents.digest[:, 0] / 2.0**64
    edges = np.cumsum([recipe.valid_share, recipe.test_share])
    interval = np.searchsorted(edges, draw, side="right")
    split = np.array([SPLITS.index(name) for name in ("valid", "test", "train")], dtype=np.int8)[interval]
    shares = {"train": float(not recipe.only_test), "valid": recipe.valid_share, "test": recipe.test_share}
    return _fill_empty_splits(split, np.where(kept, draw, np.inf), [shares[name] > 0 for name in SPLITS])


def _fill_empty_splits(split: NDArray[np.int8], draw: NDArray, wanted: Sequence[bool]) -> NDArray[np.int8]:
    """Move the family or document with the smallest draw from the largest split to an empty one.

    A family has one draw and moves as a whole. Three families or documents fill all splits; train comes first.
    """
    for number, is_wanted in enumerate(wanted):
        draws = [np.unique(draw[(split == other) & (draw < np.inf)]) for other in range(len(SPLITS))]
        largest = max(draws, key=len)
        if is_wanted and not len(draws[number]) and len(largest) > (0 if SPLITS[number] == "train" else 1):
            split = np.where(draw == largest[0], np.int8(number), split)
    return split


def _draw(name: str) -> float:
    """Return a number in [0, 1) that depends only on the name."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") / 2.0**64


def _band_keys(signature: NDArray[np.uint32], band: int) -> NDArray[np.uint64]:
    """Hash the rows of a band of each signature to one number."""
    return _mixed(signature[:, band * ROWS_PER_BAND : (band + 1) * ROWS_PER_BAND].astype(np.uint64))


def _mixed(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each row to one number."""
    keys = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        keys = (keys ^ column) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _parts(indices: NDArray) -> list[NDArray]:
    return np.split(indices, range(PAIRS_AT_ONCE, len(indices), PAIRS_AT_ONCE))


def _amount(documents: Catalogue, mask: Mask) -> tuple[int, int]:
    return int(mask.sum()), int(documents.chars[mask].sum())
