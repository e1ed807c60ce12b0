"""What a page draws of a canvas: the cells that a call changed.

A cell is (position, text, state, confidence). The states are those of `STATES`. The text is None where the token
is hidden, and where a visible token is the end of the text (EOS). The confidence is the probability of a new token
in percent, as the model gave it; None for others. Pure lists, no tensors.
"""

import codecs
import math
from collections.abc import Sequence
from typing import TypeAlias

from crocodil.text.tokenizer import Tokenizer

STATES = {"h": "hidden", "n": "new in this call", "k": "kept", "a": "hidden again"}

Cell: TypeAlias = tuple[int, str | None, str, float | None]


class Trace:
    """Follows the canvas of one text from call to call. The BOS token at position 0 is left out."""

    def __init__(self, tokens: Sequence[int], tokenizer: Tokenizer) -> None:
        """Begin with the canvas before the first call."""
        self.tokenizer, self.mask_id = tokenizer, tokenizer.special.mask
        self.tokens, self.pieces = list(tokens), self._pieces(tokens)

    def first_cells(self) -> list[Cell]:
        """Return all cells before the first call: given tokens are kept."""
        return [
            (position, self.pieces[position], "h" if token == self.mask_id else "k", None)
            for position, token in enumerate(self.tokens)
            if position
        ]

    def changed_cells(self, tokens: Sequence[int], log_prob: Sequence[float]) -> list[Cell]:
        """Return the cells that differ from the canvas before, and remember this one."""
        pieces, cells = self._pieces(tokens), []
        for position, (before, now) in enumerate(zip(self.tokens, tokens, strict=True)):
            piece, state = pieces[position], _state(before, now, self.mask_id)
            if before != now or piece != self.pieces[position]:
                is_new = state == "n" and piece is not None  # an end that follows another end was not proposed
                cells.append((position, piece, state, _percent(log_prob[position]) if is_new else None))
        self.tokens, self.pieces = list(tokens), pieces
        return cells

    def _pieces(self, tokens: Sequence[int]) -> list[str | None]:
        """Return the text of each token. A character of several tokens stands at the last of them."""
        table, decoder = self.tokenizer.token_bytes, codecs.getincrementaldecoder("utf-8")("replace")
        pieces: list[str | None] = []
        for token in [*tokens, None]:
            content = None if token is None or token >= len(table) else table[token]
            if content is None and pieces and pieces[-1] is not None:
                pieces[-1] += decoder.decode(b"", final=True)  # a character that was cut off
            pieces.append(None if content is None else decoder.decode(content))
        return pieces[:-1]


def _percent(log_prob: float) -> float:
    return round(100 * math.exp(log_prob), 1)


def _state(before: int, now: int, mask_id: int | None) -> str:
    if now == mask_id:
        return "h" if before == mask_id else "a"
    return "k" if before == now else "n"
