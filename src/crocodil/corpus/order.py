"""The order of training programs: shuffled, endless, and computable at any step without stored state."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_NUM_ROUNDS = 4


@dataclass(frozen=True)
class Order:
    """A new permutation of `num_items` in each epoch, computed index by index.

    A Feistel network permutes a range slightly larger than needed, and is applied again while the result lies
    outside. Nothing is stored, so any index can be computed directly: resuming needs only the step.
    """

    num_items: int
    key: str

    def __post_init__(self) -> None:
        if self.num_items < 1:
            raise ValueError("there are no programs to put in order")

    def at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the items at these indices, counted from the start of the first epoch."""
        epochs, within = np.divmod(indices, self.num_items)
        items = np.empty_like(within)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            items[chosen] = self._shuffled(within[chosen], int(epoch))
        return items

    def _shuffled(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        keys = [self._round_key(epoch, number) for number in range(_NUM_ROUNDS)]
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

    def _round_key(self, epoch: int, number: int) -> np.uint64:
        digest = blake2b(f"{self.key}/{epoch}/{number}".encode(), digest_size=8).digest()
        return np.uint64(int.from_bytes(digest, "big"))

    @cached_property
    def _side(self) -> int:
        return max(2, int(np.ceil(np.sqrt(self.num_items))))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
