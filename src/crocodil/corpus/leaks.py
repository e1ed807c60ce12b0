"""Leak check: the share of token windows of a held-out split that also occur in train."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from crocodil.corpus.shards import Shard

WINDOW = 30  # tokens
TOKENS_AT_ONCE = 1 << 22
_TABLE_BITS = 27  # a table of hashes of held-out windows, to skip most of train quickly
_BASE = 0x9E3779B97F4A7C15


def leaked_shares(
    held_out: Mapping[str, Sequence[Shard]],
    train: Sequence[Shard],
    *,
    on_shard: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the share of windows of each held-out split that also occur in train, in one pass over train.

    `on_shard` is called after every shard of train.
    """
    hashes = {name: _all_hashes(shards) for name, shards in held_out.items()}
    windows = np.unique(np.concatenate([*hashes.values(), np.zeros(0, dtype=np.uint64)]))
    if not len(windows):
        return dict.fromkeys(held_out, 0.0)
    table = np.zeros(1 << _TABLE_BITS, dtype=bool)
    table[_short(windows)] = True
    in_train = np.zeros(len(windows), dtype=bool)
    for shard in train:
        for train_hashes in window_hashes(shard):
            likely = train_hashes[table[_short(train_hashes)]]
            index = np.minimum(np.searchsorted(windows, likely), len(windows) - 1)
            in_train[index[windows[index] == likely]] = True
        on_shard()
    return {
        name: float(in_train[np.searchsorted(windows, split_hashes)].mean()) if len(split_hashes) else 0.0
        for name, split_hashes in hashes.items()
    }


def window_hashes(shard: Shard) -> Iterator[NDArray[np.uint64]]:
    """Yield the hashes of all windows that lie within one document, a few million at a time."""
    inside = _window_starts(shard)
    for first in range(0, len(shard.tokens), TOKENS_AT_ONCE):
        stretch = shard.tokens[first : first + TOKENS_AT_ONCE + WINDOW - 1].astype(np.uint64) + np.uint64(1)
        if len(stretch) >= WINDOW:
            hashes = _hash_windows(stretch)
            yield hashes[inside[first : first + len(hashes)]]


def _hash_windows(tokens: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a polynomial hash of each window, combined from those of 1, 2, 4, 8 ... tokens."""
    power, doubled, size = _BASE, tokens, 1
    count = len(tokens) - WINDOW + 1
    total, covered = np.zeros(count, dtype=np.uint64), 0
    while size <= WINDOW:
        if WINDOW & size:
            total = total * np.uint64(power) + doubled[covered : covered + count]
            covered += size
        doubled = doubled[:-size] * np.uint64(power) + doubled[size:]
        power, size = power * power % (1 << 64), 2 * size
    return total


def _window_starts(shard: Shard) -> NDArray[np.bool_]:
    """Return a mask of the positions at which a window lies within its document."""
    long = shard.documents[shard.documents["length"] >= WINDOW]
    change = np.zeros(len(shard.tokens) + 1, dtype=np.int8)
    np.add.at(change, long["start"], 1)
    np.add.at(change, long["start"] + long["length"] - WINDOW + 1, -1)
    return np.cumsum(change[:-1], dtype=np.int8).astype(bool)


def _all_hashes(shards: Sequence[Shard]) -> NDArray[np.uint64]:
    return np.concatenate(
        [np.zeros(0, dtype=np.uint64), *(hashes for shard in shards for hashes in window_hashes(shard))]
    )


def _short(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return (hashes * np.uint64(_BASE)) >> np.uint64(64 - _TABLE_BITS)
