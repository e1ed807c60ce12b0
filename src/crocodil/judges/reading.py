"""What is compared of a text: one rule for real and generated ones, wherever they come from.

A language model's state at the last token says most of all how a text ends. Texts that differ in a final line
break alone would otherwise fall into different clusters, and MAUVE would compare endings.
"""

from collections.abc import Sequence

from crocodil.tokenization import Tokenizer


def as_compared(text: str) -> str:
    """Without white space at its end: a final line break says nothing about a program."""
    return text.rstrip()


def cut_alike(texts: Sequence[str], tokenizer: Tokenizer, *, length: int) -> list[str]:
    """The texts as a canvas of this length holds them: the beginning takes one place, what does not fit is cut."""
    room = length - 1
    return [
        text if len(ids) <= room else tokenizer.decode(ids[:room])
        for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True)
    ]
