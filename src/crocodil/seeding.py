"""Random numbers that depend only on the name of the draw, never on earlier draws.

`Streams` gives every sample of a batch its own stream, so results do not depend on the batch size, the number of
ranks or the step from which a run was resumed. It has no state: the same name gives the same numbers. The
generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) in tensor
operations, so a whole batch draws at once on any device.
"""

import hashlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS = 10


def generator_for(*key: str | SupportsIndex, device: str | torch.device = "cpu") -> torch.Generator:
    """Return a generator seeded by `key`, for draws that belong to no sample, such as initial weights."""
    return torch.Generator(device).manual_seed(_digest(*key) >> 1)


@dataclass(frozen=True)
class Streams:
    """One stream of random numbers per sample of a batch; every draw has a name."""

    keys: Int[Tensor, "B"]  # 64 bits each

    @classmethod
    def of(
        cls, *key: str | SupportsIndex, samples: Sequence[int] | range, device: str | torch.device = "cpu"
    ) -> "Streams":
        """Return the streams of these sample indices under `key`, e.g. ("train", seed, step)."""
        if isinstance(samples, range):  # created on the device: a copy from the host would synchronise
            indices = torch.arange(samples.start, samples.stop, samples.step, device=device)
        else:
            indices = torch.tensor(list(samples), dtype=torch.int64, device=device)
        root = torch.full_like(indices, _as_int64(_digest(*key)))
        return cls(root).at(indices)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, samples: Int[Tensor, "R"]) -> "Streams":
        """Return the streams of these rows of the batch; rows may repeat."""
        return Streams(self.keys[samples])

    def at(self, *name: str | int | Int[Tensor, "B"]) -> "Streams":
        """Return the streams of a named draw: `streams.at("mask")`, `streams.at("call", 3)`."""
        keys = self.keys
        for part in name:
            keys = _fold(keys, part)
        return Streams(keys)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "B ..."]:
        """Draw uniform numbers on the open interval (0, 1): 23 random bits in float32, 52 in float64."""
        count = math.prod(shape)
        if dtype == torch.float64:
            words = self._words(2 * count).view(len(self), count, 2)
            bits = (words[..., 0] << 20) + (words[..., 1] >> 12)
            unit = (bits.double() + 0.5) * 2.0**-52
        else:
            unit = ((self._words(count) >> 9).float() + 0.5) * 2.0**-23
        return unit.view(len(self), *shape)

    def normal(self, *shape: int) -> Float[Tensor, "B ..."]:
        """Draw standard normal numbers by the Box-Muller transform."""
        count = math.prod(shape)
        radius, turn = self.uniform(2, (count + 1) // 2).unbind(1)
        radius, angle = (-2 * radius.log()).sqrt(), 2 * math.pi * turn
        pairs = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
        return pairs[:, :count].reshape(len(self), *shape)

    def integers(self, low: int, high: int) -> Int[Tensor, "B"]:
        """Draw one integer per sample, uniform over low..high, both included."""
        span = high - low + 1
        return low + (self.uniform(dtype=torch.float64) * span).long()

    def _words(self, count: int) -> Int[Tensor, "B {count}"]:
        """Draw `count` random 32-bit words per sample."""
        is_separate = self.keys.is_cuda and not torch.compiler.is_compiling()
        draw = _draw_on_gpu if is_separate else four_words_each
        return draw(self.keys, (count + 3) // 4)[:, :count]


def four_words_each(keys: Int[Tensor, "B"], num_counters: int) -> Int[Tensor, "B {4*num_counters}"]:
    """Draw four random 32-bit words per key and counter."""
    index = torch.arange(num_counters, device=keys.device).expand(len(keys), -1)
    zero = torch.zeros_like(index)
    words = philox((index & _WORD, index >> 32, zero, zero), _halves(keys[:, None]))
    return torch.stack(words, dim=-1).flatten(1)


_draw_on_gpu: Callable[[Tensor, int], Tensor] = four_words_each


@contextmanager
def compiled_draws() -> Iterator[None]:
    """Inside the block, a GPU draws the same numbers with one compiled kernel (decision D72)."""
    global _draw_on_gpu
    before, _draw_on_gpu = _draw_on_gpu, compiled_words()
    try:
        yield
    finally:
        _draw_on_gpu = before


@cache
def compiled_words() -> Callable[[Tensor, int], Tensor]:
    return torch.compile(four_words_each, dynamic=True)  # a step draws numbers of many shapes


Words4 = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words4, key: tuple[Tensor, Tensor]) -> Words4:
    """Philox4x32-10: return four random words per counter and key; 32-bit words are held in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        (low0, high0), (low1, high1) = _halves(product0), _halves(product1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def _fold(keys: Int[Tensor, "B"], part: str | int | Int[Tensor, "B"]) -> Int[Tensor, "B"]:
    """Derive new keys with SplitMix64's mixer, which is far cheaper than a draw (Steele et al., 2014)."""
    if isinstance(part, str):
        part = _as_int64(_digest(part))
    mixed = keys * _GOLDEN + part
    for shift, multiplier in _MIXERS:
        mixed = (mixed ^ _shift_right(mixed, shift)) * multiplier
    return mixed ^ _shift_right(mixed, 31)


def _halves(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the low and the high 32 bits."""
    return bits & _WORD, _shift_right(bits, 32)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros; torch shifts in the sign bit."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _digest(*key: str | SupportsIndex) -> int:
    # `index` gives a NumPy integer the stream of the same int, and refuses a float.
    named = tuple(part if isinstance(part, str) else operator.index(part) for part in key)
    return int.from_bytes(hashlib.blake2b(repr(named).encode(), digest_size=8).digest(), "big")


# Tell torch.compile that the result is constant; otherwise it would treat it as a changing number. This is what
# `torch.compiler.assume_constant_result` does, which imports the compiler: seconds for those who compile nothing.
_digest._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _as_int64(bits: int) -> int:
    """Return the same 64 bits as a signed number."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


_GOLDEN = _as_int64(0x9E3779B97F4A7C15)
_MIXERS = ((30, _as_int64(0xBF58476D1CE4E5B9)), (27, _as_int64(0x94D049BB133111EB)))
