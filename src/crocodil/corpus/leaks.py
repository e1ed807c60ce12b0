"""How much of a held-out split also stands in train: the share of its token windows that occur there."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from crocodil.corpus.shards import Shard

WINDOW = 30  # tokens
TOKENS_AT_ONCE = 1 << 22


def leaked_share(held_out: Sequence[Shard], train: Sequence[Shard]) -> float:
    """The share of windows of `held_out` that are also in `train`; 0 where there is none."""
    parts = [hashes for shard in held_out for hashes in window_hashes(shard)]
    if not parts:
        return 0.0
    windows, counts = np.unique(np.concatenate(parts), return_counts=True)
    found = np.zeros(len(windows), dtype=bool)
    for shard in train:
        for hashes in window_hashes(shard):
            place = np.minimum(np.searchsorted(windows, hashes), len(windows) - 1)
            found[place[windows[place] == hashes]] = True
    return float(counts[found].sum() / counts.sum())


def window_hashes(shard: Shard) -> Iterator[NDArray[np.uint64]]:
    """A number for each window that lies within one document, a few million at a time."""
    documents = shard.documents
    starts_window = np.zeros(len(shard.tokens) + 1, dtype=np.int8)
    long = documents[documents["length"] >= WINDOW]
    np.add.at(starts_window, long["start"], 1)
    np.add.at(starts_window, long["start"] + long["length"] - WINDOW + 1, -1)
    inside = np.cumsum(starts_window[:-1], dtype=np.int8).astype(bool)
    for first in range(0, len(shard.tokens), TOKENS_AT_ONCE):
        stretch = shard.tokens[first : first + TOKENS_AT_ONCE + WINDOW - 1].astype(np.uint64)
        count = len(stretch) - WINDOW + 1
        if count < 1:
            return
        hashes = np.zeros(count, dtype=np.uint64)
        for place in range(WINDOW):
            hashes *= np.uint64(0x9E3779B97F4A7C15)
            hashes += stretch[place : place + count] + np.uint64(1)
        yield hashes[inside[first : first + count]]
