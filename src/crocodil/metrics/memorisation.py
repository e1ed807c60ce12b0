"""How much of a sample is copied: its longest run of tokens that also occurs in the training tokens.

One pass over the training tokens, a few million at a time, collects the stretches in which every window of
`shortest` tokens occurs in a sample. A stretch that occurs many times, such as boilerplate, is kept once. Windows
over these few stretches then grow by one token per round until none is shared. Windows are compared by 64-bit
fingerprints, and the resulting runs are checked token by token.

For T training tokens the pass takes O(T) time. There are as many rounds as the longest run has tokens, each
smaller than the one before. It needs a few hundred MiB of memory besides the samples and the stretches. The arrays
may be memory-mapped; no file is opened here.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

TOKENS_PER_CHUNK = 1 << 21
LARGEST_VOCABULARY = 1 << 18
_BASE = 0x9E3779B97F4A7C15  # odd: it has an inverse modulo 2^64
_FILTER_BITS = 26  # 64 MiB

Offsets: TypeAlias = NDArray[np.int64]
Fingerprints: TypeAlias = NDArray[np.uint64]


class Run(NamedTuple):
    """A run of tokens that a sample shares with the training tokens."""

    length: int = 0  # 0 if no run is long enough to count
    start: int = 0  # in the sample
    source: int = 0  # index of the training array
    offset: int = 0  # in the training array


def longest_training_runs(
    samples: Sequence[Sequence[int]], training: Iterable[NDArray], *, shortest: int = 16
) -> list[Run]:
    """Return for each sample its longest run of at least `shortest` tokens.

    Each training array counts as one text. A run across two of its documents counts too, which can only overstate
    the copying.
    """
    if shortest < 2:
        raise ValueError(f"a run has at least two tokens, not {shortest}")
    sampled = _Text([np.array(sample, dtype=np.int64) for sample in samples])
    sample_starts = sampled.windows(shortest)
    windows = np.unique(sampled.fingerprints(sample_starts, shortest))
    stretches = list(_shared_stretches(windows, training, shortest))
    trained = _Text([stretch.tokens for stretch in stretches])
    trained_starts = trained.windows(shortest)

    runs, length = [Run() for _ in samples], shortest
    while len(sample_starts):
        names, sample_names = np.unique(sampled.fingerprints(sample_starts, length), return_inverse=True)
        trained_names = _index_of(trained.fingerprints(trained_starts, length), names)
        trained_starts, trained_names = trained_starts[trained_names >= 0], trained_names[trained_names >= 0]
        start_of_name = np.full(len(names), -1)
        start_of_name[trained_names] = trained_starts  # any occurrence will do
        matches = start_of_name[sample_names]
        sample_starts, matches = sample_starts[matches >= 0], matches[matches >= 0]
        _, first = np.unique(sampled.part_of(sample_starts), return_index=True)  # one window per sample with any
        for start, match in zip(sample_starts[first].tolist(), matches[first].tolist(), strict=True):
            assert np.array_equal(sampled.tokens[start : start + length], trained.tokens[match : match + length])
            (sample, sample_offset), (index, stretch_offset) = sampled.locate(start), trained.locate(match)
            stretch = stretches[index]
            runs[sample] = Run(length, sample_offset, stretch.source, stretch.offset + stretch_offset)
        sample_starts, trained_starts, length = _longer(sample_starts), _longer(trained_starts), length + 1
    return runs


def _longer(starts: Offsets) -> Offsets:
    """Return where windows one token longer may be shared: both of their inner windows are shared."""
    return starts[:-1][np.diff(starts) == 1]


def _index_of(fingerprints: Fingerprints, names: Fingerprints) -> Offsets:
    """Return the index of each fingerprint in the sorted `names`, or -1."""
    index = np.minimum(np.searchsorted(names, fingerprints), len(names) - 1)
    return np.where(names[index] == fingerprints, index, -1)


# ---------------------------------------------------------------- the pass over the training tokens


class _Stretch(NamedTuple):
    tokens: NDArray
    source: int
    offset: int


def _shared_stretches(windows: Fingerprints, training: Iterable[NDArray], size: int) -> Iterator[_Stretch]:
    """Yield the distinct stretches of training tokens in which every window has one of these fingerprints."""
    may_occur = np.zeros(1 << _FILTER_BITS, dtype=bool)  # a fast filter that rules out most training tokens
    may_occur[_short(windows)] = True
    seen: set[bytes] = set()
    for source, tokens in enumerate(training):
        starts = _shared_starts(windows, may_occur, tokens, size)
        firsts, lasts = starts[np.diff(starts, prepend=-2) != 1], starts[np.diff(starts, append=-2) != 1]
        array = np.asarray(tokens)  # a memory map is slow to slice
        for start, stop in zip(firsts.tolist(), (lasts + size).tolist(), strict=True):
            content = array[start:stop].tobytes()
            if content not in seen:
                seen.add(content)
                yield _Stretch(array[start:stop].astype(np.int64), source, start)


def _shared_starts(windows: Fingerprints, may_occur: NDArray[np.bool_], tokens: NDArray, size: int) -> Offsets:
    """Return the starts of the windows that have one of these fingerprints."""
    starts = [np.zeros(0, dtype=np.int64)]
    for first in range(0, len(tokens) - size + 1 if len(windows) else 0, TOKENS_PER_CHUNK):
        text = _Text([tokens[first : first + TOKENS_PER_CHUNK + size - 1]])
        fingerprints = text.fingerprints(text.windows(size), size)
        likely = np.flatnonzero(may_occur[_short(fingerprints)])
        starts.append(first + likely[_index_of(fingerprints[likely], windows) >= 0])
    return np.concatenate(starts)


def _short(fingerprints: Fingerprints) -> Fingerprints:
    return fingerprints >> np.uint64(64 - _FILTER_BITS)


# ---------------------------------------------------------------- fingerprints


class _Text:
    """Concatenated sequences of tokens, with fast fingerprints of windows.

    The fingerprint of tokens a, b, c ... is r(a) + r(b) B + r(c) B^2 + ... modulo 2^64, with random numbers r and
    an odd B: the difference of two running sums, divided by a power of B.
    """

    def __init__(self, parts: Sequence[NDArray]) -> None:
        self.tokens = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        self.ends = np.cumsum([0, *map(len, parts)])[1:]
        self.sums = np.zeros(len(self.tokens) + 1, dtype=np.uint64)
        np.cumsum(_random_numbers()[self.tokens] * _powers(_BASE, len(self.tokens)), out=self.sums[1:])
        self.inverse = _powers(pow(_BASE, -1, 1 << 64), len(self.tokens))

    def windows(self, size: int) -> Offsets:
        """Return the starts of the windows of this size that lie within one sequence."""
        starts = np.arange(len(self.tokens) - size + 1)
        return starts[starts + size <= self.ends[self.part_of(starts)]] if len(self.ends) > 1 else starts

    def part_of(self, offsets: Offsets) -> Offsets:
        """Return the index of the sequence at each offset."""
        return np.searchsorted(self.ends, offsets, side="right")

    def locate(self, offset: int) -> tuple[int, int]:
        """Return the index of the sequence at this offset, and the offset within it."""
        part = int(np.searchsorted(self.ends, offset, side="right"))
        return part, offset - int(self.ends[part - 1] if part else 0)

    def fingerprints(self, starts: Offsets, size: int) -> Fingerprints:
        return (self.sums[starts + size] - self.sums[starts]) * self.inverse[starts]


def _powers(base: int, count: int) -> Fingerprints:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


@cache
def _random_numbers() -> Fingerprints:
    """Return one random number per token id, always the same."""
    return np.random.default_rng(0).integers(0, 1 << 64, size=LARGEST_VOCABULARY, dtype=np.uint64)
