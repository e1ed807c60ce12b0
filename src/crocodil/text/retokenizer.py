"""Convert partly masked sequences from one tokenizer to another (decision D7)."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer

from crocodil.text.tokenizer import Tokenizer

_HIDDEN = -1  # stands for a hidden token until all ids are known
_RUNS = re.compile("[\udc80-\udcff]|[^\udc80-\udcff]+")


class Retokenized(NamedTuple):
    """A right-padded batch, in the form that `RegisterEncoder.forward` takes."""

    tokens: Int[np.ndarray, "B L"]  # the EOS id at padded and hidden positions
    valid: Bool[np.ndarray, "B L"]
    hidden: Bool[np.ndarray, "B L"]


class Retokenizer:
    """Converts partly hidden tokens of one vocabulary (LLaDA's) to another (Qwen's), decision D7.

    Every visible stretch is decoded to bytes and encoded again, so a fully visible text gets exactly the tokens
    that `target` gives it. Bytes that are not UTF-8, where a hidden position cuts a character, become single-byte
    tokens. No byte is lost or added, unless `target` itself rewrites text (Qwen composes accents: NFC).

    A hidden token stays one hidden position: its length is not revealed, and distances stay roughly the same. EOS
    and padding tokens each become one EOS token of the target. BOS becomes the target's BOS, if it has one. Other
    special tokens and unused ids are dropped.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target
        self._byte_ids = _single_byte_ids(target)
        special, eos, bos = source.special, [target.special.eos], [target.special.bos]
        # For each source id: bytes to encode again, or target ids.
        self._converted: list[bytes | list[int]] = [[] if text is None else text for text in source.token_bytes]
        self._converted.append([])  # for ids beyond the vocabulary: an embedding may have more rows
        self._converted[special.bos] = [] if bos == eos else bos
        self._converted[special.eos] = self._converted[special.pad] = eos

    def __call__(self, tokens: Integer[np.ndarray, "B N"], hidden: Bool[np.ndarray, "B N"]) -> Retokenized:
        """Convert a batch. Ids at `hidden` positions are ignored: they may be masks or text."""
        assert not np.any((tokens == self.source.special.mask) & ~hidden), "a mask token must be hidden"
        known = np.minimum(tokens.astype(np.int64), len(self._converted) - 1)
        rows = [list(self._pieces(*row)) for row in zip(known.tolist(), hidden.tolist(), strict=True)]
        texts = list({piece for row in rows for piece in row if isinstance(piece, str)})
        ids_of = dict(zip(texts, self.target.encode_all(texts), strict=True))
        return self._padded(
            [[i for piece in row for i in (ids_of[piece] if isinstance(piece, str) else piece)] for row in rows]
        )

    def _pieces(self, tokens: list[int], hidden: list[bool]) -> Iterator[str | list[int]]:
        """Yield one sequence in pieces: texts that are still to be encoded, and target ids."""
        stretch = b""
        for token, is_hidden in zip(tokens, hidden, strict=True):
            piece = [_HIDDEN] if is_hidden else self._converted[token]
            if isinstance(piece, bytes):
                stretch += piece
            else:
                yield from self._readable(stretch)
                stretch = b""
                yield piece
        yield from self._readable(stretch)

    def _readable(self, text: bytes) -> Iterator[str | list[int]]:
        """Yield runs of valid UTF-8 as text and every other byte (escaped as U+DC80 to U+DCFF) as one token."""
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
    ids = {text[0]: i for i, text in enumerate(tokenizer.token_bytes) if text is not None and len(text) == 1}
    if len(ids) < 256:
        raise ValueError(f"only {len(ids)} of the 256 bytes have their own token: text could be lost")
    return ids
