"""Retokenizer: a partly masked sequence of one tokenizer, as tokens of another (decision D7)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer

from crocodil.text.tokenizer import Tokenizer

# ---------------------------------------------------------------- from one vocabulary to another

_HIDDEN = -1  # the place of a hidden token, until all ids are known
_RUNS = re.compile("[\udc80-\udcff]|[^\udc80-\udcff]+")


class Retokenized(NamedTuple):
    """A right-padded batch as `RegisterEncoder.forward` takes it."""

    tokens: Int[np.ndarray, "B L"]  # the end id wherever nobody looks
    valid: Bool[np.ndarray, "B L"]
    hidden: Bool[np.ndarray, "B L"]


class Retokenizer:
    """Partly hidden tokens of one vocabulary (LLaDA's) in another (Qwen's), decision D7.

    Every visible stretch becomes bytes and is encoded anew, so that a fully visible text has the very tokens that
    `target` gives it. What is no UTF-8, a character that a hidden place cuts, becomes tokens of a single byte. No
    byte is lost or added, unless `target` itself rewrites text (Qwen composes accents: NFC).

    A hidden token stays one hidden place: the length betrays nothing of it, and distances remain roughly as they
    were. End and padding become the target's end, one for one; the beginning becomes the target's own, if it has
    one; other special tokens, and ids that the vocabulary does not use, become nothing.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target
        self._byte_ids = _single_byte_ids(target)
        special, end, beginning = source.special, [target.special.eos], [target.special.bos]
        self._becomes: list[bytes | list[int]] = [[] if text is None else text for text in source.token_bytes]
        self._becomes.append([])  # rows of an embedding beyond the vocabulary: a sampler may draw them
        self._becomes[special.bos] = [] if beginning == end else beginning
        self._becomes[special.eos] = self._becomes[special.pad] = end

    def __call__(self, tokens: Integer[np.ndarray, "B N"], hidden: Bool[np.ndarray, "B N"]) -> Retokenized:
        """Ids under `hidden` are not looked at, so they may be masks or the text itself."""
        assert not np.any((tokens == self.source.special.mask) & ~hidden), "a mask is always hidden"
        known = np.minimum(tokens.astype(np.int64), len(self._becomes) - 1)
        rows = [list(self._pieces(*row)) for row in zip(known.tolist(), hidden.tolist(), strict=True)]
        texts = list({piece for row in rows for piece in row if isinstance(piece, str)})
        ids_of = dict(zip(texts, self.target.encode_all(texts), strict=True))
        return self._padded(
            [[i for piece in row for i in (ids_of[piece] if isinstance(piece, str) else piece)] for row in rows]
        )

    def _pieces(self, tokens: list[int], hidden: list[bool]) -> Iterator[str | list[int]]:
        """One sequence as texts that are still to be encoded, and target ids."""
        stretch = b""
        for i, is_hidden in zip(tokens, hidden, strict=True):
            place = [_HIDDEN] if is_hidden else self._becomes[i]
            if isinstance(place, bytes):
                stretch += place
            else:
                yield from self._readable(stretch)
                stretch = b""
                yield place
        yield from self._readable(stretch)

    def _readable(self, text: bytes) -> Iterator[str | list[int]]:
        """Runs of UTF-8 as text; each byte outside of them, escaped as U+DC80 to U+DCFF, as a token of its own."""
        for run in _RUNS.findall(text.decode("utf-8", "surrogateescape")):
            is_byte = "\udc80" <= run <= "\udcff"
            yield [self._byte_ids[ord(run) - 0xDC00]] if is_byte else run

    def _padded(self, rows: list[list[int]]) -> Retokenized:
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        valid = np.arange(lengths.max(initial=0)) < lengths[:, None]
        tokens = np.full(valid.shape, self.target.special.eos, dtype=np.int64)
        tokens[valid] = [i for row in rows for i in row]
        hidden = tokens == _HIDDEN
        return Retokenized(np.where(hidden, self.target.special.eos, tokens), valid, hidden)


def _single_byte_ids(tokenizer: Tokenizer) -> dict[int, int]:
    found = {text[0]: i for i, text in enumerate(tokenizer.token_bytes) if text is not None and len(text) == 1}
    if len(found) < 256:
        raise ValueError(f"only {len(found)} of the 256 bytes have a token of their own: text could be lost")
    return found
