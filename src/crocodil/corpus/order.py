"""In which order programs are seen: shuffled, endless, the same on any number of ranks, resumable at any step."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_NUM_TURNS = 4


@dataclass(frozen=True)
class Order:
    """A new permutation of `num_items` each epoch, computed place by place.

    A Feistel network permutes a square a little larger than needed, and walks on until it lands inside. Nothing
    is stored, so any place can be asked for at once: resuming needs the step and nothing else.
    """

    num_items: int
    key: str

    def __post_init__(self) -> None:
        if self.num_items < 1:
            raise ValueError("nothing to put in order: no program")

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The items at these places, counted from the start of the first epoch."""
        epochs, within = np.divmod(places, self.num_items)
        items = np.empty_like(within)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            items[chosen] = self._shuffled(within[chosen], int(epoch))
        return items

    def batch(self, step: int, *, batch_size: int, rank: int = 0, num_ranks: int = 1) -> NDArray[np.int64]:
        """This rank's share of a step's batch; what the whole batch holds does not depend on the ranks."""
        if batch_size % num_ranks:
            raise ValueError(f"a batch of {batch_size} does not split over {num_ranks} ranks")
        share = batch_size // num_ranks
        first = step * batch_size + rank * share
        return self.at(np.arange(first, first + share))

    def _shuffled(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        keys = [self._turn_key(epoch, turn) for turn in range(_NUM_TURNS)]
        items = self._permuted(items, keys)
        while (outside := items >= self.num_items).any():
            items[outside] = self._permuted(items[outside], keys)
        return items

    def _permuted(self, items: NDArray[np.int64], keys: list[np.uint64]) -> NDArray[np.int64]:
        left, right = np.divmod(items, self._side)
        for key in keys:
            mixed = _mixed(right.astype(np.uint64) + key) % np.uint64(self._side)
            left, right = right, (left + mixed.astype(np.int64)) % self._side
        return left * self._side + right

    def _turn_key(self, epoch: int, turn: int) -> np.uint64:
        digest = blake2b(f"{self.key}/{epoch}/{turn}".encode(), digest_size=8).digest()
        return np.uint64(int.from_bytes(digest, "big"))

    @cached_property
    def _side(self) -> int:
        return max(2, int(np.ceil(np.sqrt(self.num_items))))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
