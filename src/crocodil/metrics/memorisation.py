"""How much of a sample is copied: the longest run of its tokens that also stands in the training tokens.

One pass over the training tokens, a few million at a time, finds the stretches in which every window of `shortest`
tokens stands in some sample; boilerplate that comes a million times is kept once. What is left is small. There,
windows grow by a token a round until none is shared. Windows are compared by 64-bit fingerprints, and the runs so
found once more token by token.

With T training tokens: O(T) time for the pass; then as many rounds as the longest run has tokens, each smaller
than the one before; a few hundred MiB beside the samples and the stretches. It takes arrays, memory-mapped or not,
and opens no file.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

TOKENS_AT_ONCE = 1 << 21
LARGEST_VOCABULARY = 1 << 18
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
_FILTER_BITS = 26  # 64 MiB

Places: TypeAlias = NDArray[np.int64]
Fingerprints: TypeAlias = NDArray[np.uint64]


class Run(NamedTuple):
    """A stretch of a sample that stands in the training tokens."""

    length: int = 0  # 0 where no run is long enough to count
    start: int = 0  # in the sample
    source: int = 0  # which of the training arrays
    place: int = 0  # where in it


def longest_training_runs(
    samples: Sequence[Sequence[int]], training: Iterable[NDArray], *, shortest: int = 16
) -> list[Run]:
    """For every sample its longest run of at least `shortest` tokens.

    Each training array counts as one text: a run across the border of two of its documents counts too, which can
    only overstate the copying.
    """
    if shortest < 2:
        raise ValueError(f"a run has at least two tokens, not {shortest}")
    own = _Text([np.array(sample, dtype=np.int64) for sample in samples])
    own_starts = own.windows(shortest)
    stretches = list(_shared_stretches(np.unique(own.fingerprints(own_starts, shortest)), training, shortest))
    known = _Text([stretch.tokens for stretch in stretches])
    known_starts = known.windows(shortest)

    runs, length = [Run() for _ in samples], shortest
    while len(own_starts):
        names, mine = np.unique(own.fingerprints(own_starts, length), return_inverse=True)
        theirs = _number_of(known.fingerprints(known_starts, length), names)
        known_starts, theirs = known_starts[theirs >= 0], theirs[theirs >= 0]
        known_at = np.full(len(names), -1)
        known_at[theirs] = known_starts  # one of the places, no matter which
        others = known_at[mine]
        own_starts, others = own_starts[others >= 0], others[others >= 0]
        _, first = np.unique(own.part_of(own_starts), return_index=True)  # one window of every sample that has any
        for start, other in zip(own_starts[first].tolist(), others[first].tolist(), strict=True):
            assert np.array_equal(own.tokens[start : start + length], known.tokens[other : other + length])
            (sample, offset), (stretch, beyond) = own.locate(start), known.locate(other)
            runs[sample] = Run(length, offset, stretches[stretch].source, stretches[stretch].place + beyond)
        own_starts, known_starts, length = _longer(own_starts), _longer(known_starts), length + 1
    return runs


def share_copied(samples: Sequence[Sequence[int]], runs: Sequence[Run]) -> float:
    """The share of samples that stand in the training tokens as a whole; too short ones were not looked for."""
    copied = [run.length == len(sample) > 0 for sample, run in zip(samples, runs, strict=True)]
    return sum(copied) / len(copied) if copied else math.nan


def _longer(starts: Places) -> Places:
    """Where windows one token longer may be shared: both windows inside them are."""
    return starts[:-1][np.diff(starts) == 1]


def _number_of(fingerprints: Fingerprints, names: Fingerprints) -> Places:
    """Which of the sorted `names` each fingerprint is; -1 where it is none."""
    place = np.minimum(np.searchsorted(names, fingerprints), len(names) - 1)
    return np.where(names[place] == fingerprints, place, -1)


# ---------------------------------------------------------------- the pass over the training tokens


class _Stretch(NamedTuple):
    tokens: NDArray
    source: int
    place: int


def _shared_stretches(windows: Fingerprints, training: Iterable[NDArray], size: int) -> Iterator[_Stretch]:
    """The different stretches of training tokens in which every window has one of these fingerprints."""
    may_occur = np.zeros(1 << _FILTER_BITS, dtype=bool)  # answers most of the training tokens, and fast
    may_occur[_short(windows)] = True
    seen: set[bytes] = set()
    for source, tokens in enumerate(training):
        starts = _shared_starts(windows, may_occur, tokens, size)
        firsts, lasts = starts[np.diff(starts, prepend=-2) != 1], starts[np.diff(starts, append=-2) != 1]
        plain = np.asarray(tokens)  # a memory map is slow to slice
        for place, stop in zip(firsts.tolist(), (lasts + size).tolist(), strict=True):
            content = plain[place:stop].tobytes()
            if content not in seen:
                seen.add(content)
                yield _Stretch(plain[place:stop].astype(np.int64), source, place)


def _shared_starts(windows: Fingerprints, may_occur: NDArray[np.bool_], tokens: NDArray, size: int) -> Places:
    """Where windows that have one of these fingerprints start."""
    found = [np.zeros(0, dtype=np.int64)]
    for first in range(0, len(tokens) - size + 1 if len(windows) else 0, TOKENS_AT_ONCE):
        text = _Text([tokens[first : first + TOKENS_AT_ONCE + size - 1]])
        here = text.fingerprints(text.windows(size), size)
        likely = np.flatnonzero(may_occur[_short(here)])
        found.append(first + likely[_number_of(here[likely], windows) >= 0])
    return np.concatenate(found)


def _short(fingerprints: Fingerprints) -> Fingerprints:
    return fingerprints >> np.uint64(64 - _FILTER_BITS)


# ---------------------------------------------------------------- fingerprints


class _Text:
    """Sequences of tokens, one after the other, with the fingerprint of any window at hand.

    The fingerprint of tokens a, b, c ... is r(a) + r(b) B + r(c) B^2 + ... modulo 2^64, with random numbers r and
    an odd B: a difference of two running sums, divided by a power of B.
    """

    def __init__(self, parts: Sequence[NDArray]) -> None:
        self.tokens = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        self.ends = np.cumsum([0, *map(len, parts)])[1:]
        self.sums = np.zeros(len(self.tokens) + 1, dtype=np.uint64)
        np.cumsum(_random_numbers()[self.tokens] * _powers(_BASE, len(self.tokens)), out=self.sums[1:])
        self.inverse = _powers(pow(_BASE, -1, 1 << 64), len(self.tokens))

    def windows(self, size: int) -> Places:
        """Where the windows of this size start that lie within one sequence."""
        starts = np.arange(len(self.tokens) - size + 1)
        return starts[starts + size <= self.ends[self.part_of(starts)]] if len(self.ends) > 1 else starts

    def part_of(self, places: Places) -> Places:
        return np.searchsorted(self.ends, places, side="right")

    def locate(self, place: int) -> tuple[int, int]:
        """Which sequence this is in, and where."""
        part = int(np.searchsorted(self.ends, place, side="right"))
        return part, place - int(self.ends[part - 1] if part else 0)

    def fingerprints(self, starts: Places, size: int) -> Fingerprints:
        return (self.sums[starts + size] - self.sums[starts]) * self.inverse[starts]


def _powers(base: int, count: int) -> Fingerprints:
    powers = np.full(count, base, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)


@cache
def _random_numbers() -> Fingerprints:
    """One for each token id, always the same."""
    return np.random.default_rng(0).integers(0, 1 << 64, size=LARGEST_VOCABULARY, dtype=np.uint64)
