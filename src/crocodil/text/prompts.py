"""Prompts and answers as tokens: the canvas of a prompt, that of its answer, and the text of both (decision D57).

    prompt   BOS, the end of the prefix, one mask in place of the answer, the beginning of the suffix, EOS ...
    answer   BOS, the answer, EOS ...
    text     BOS, the end of the prefix, the answer, the beginning of the suffix, EOS ...

h_kappa reads the first, h_phi the second, and the demasker the third. The indentation before an answer belongs to
the prompt, since a line break and the indentation after it are one token. Does not import torch.
"""

from collections.abc import Sequence
from typing import NamedTuple

from crocodil.text.tokenizer import SpecialIds, Tokenizer


class Split(NamedTuple):
    """A text in three parts, as text or as tokens."""

    prefix: str
    answer: str
    suffix: str


def at_column(prompt: str, answer: str, suffix: str) -> Split:
    """Move the indentation of an answer to its prompt, if the answer starts a line."""
    text = answer.lstrip(" \t")
    moved = answer[: len(answer) - len(text)] if prompt.endswith("\n") else ""
    return Split(prompt + moved, answer[len(moved) :], suffix)


class TokenizedPair(NamedTuple):
    """The tokens of a prompt and of its answer. A canvas holds the part of a long prompt next to the answer."""

    prefix: list[int]
    answer: list[int]
    suffix: list[int]

    def prompt_canvas(self, special: SpecialIds, length: int) -> list[int]:
        """Return the canvas that h_kappa reads; the mask in it is hidden."""
        assert special.mask is not None
        prefix, suffix = next_to(self.prefix, self.suffix, length - 3)
        return _filled([special.bos, *prefix, special.mask, *suffix], length, special)

    def answer_canvas(self, special: SpecialIds, length: int) -> list[int]:
        """Return the canvas that h_phi reads."""
        return _filled([special.bos, *self.answer], length, special)

    def text_canvas(self, special: SpecialIds, length: int) -> tuple[list[int], range]:
        """Return the canvas that the demasker reads, and where the answer stands on it."""
        prefix, suffix = next_to(self.prefix, self.suffix, length - len(self.answer) - 2)
        start = 1 + len(prefix)
        ids = _filled([special.bos, *prefix, *self.answer, *suffix], length, special)
        return ids, range(start, start + len(self.answer))


def tokenize_pairs(pairs: Sequence[Split], tokenizer: Tokenizer) -> list[TokenizedPair]:
    """Tokenize the parts of pairs, each by itself."""
    ids = iter(tokenizer.encode_all([part for pair in pairs for part in pair]))
    return [TokenizedPair(next(ids), next(ids), next(ids)) for _ in pairs]


def next_to(prefix: list[int], suffix: list[int], room: int) -> tuple[list[int], list[int]]:
    """Return the end of the prefix and the beginning of the suffix; if both are long, the suffix gets a third."""
    for_suffix = min(len(suffix), max(room // 3, room - len(prefix)))
    for_prefix = min(len(prefix), room - for_suffix)
    return prefix[len(prefix) - for_prefix :], suffix[:for_suffix]


def _filled(ids: list[int], length: int, special: SpecialIds) -> list[int]:
    assert len(ids) <= length, "the text does not fit its canvas"
    return ids + [special.eos] * (length - len(ids))
