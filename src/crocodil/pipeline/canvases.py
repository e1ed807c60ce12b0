"""Texts on canvases: beginning, text, and end tokens as filling (decision D18); or masks, with something given."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from crocodil.shapes import TokenIds
from crocodil.tokenization import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Given:
    """Text that stands fixed on the canvas; with both ends given, generating is infilling (decision D24)."""

    prefix: str = ""
    suffix: str = ""

    def __bool__(self) -> bool:
        return bool(self.prefix or self.suffix)


NOTHING = Given()


def text_canvases(texts: Sequence[str], tokenizer: Tokenizer, *, length: int, cut: bool) -> TokenIds:
    """All of a canvas but its beginning can be text; one that is cut has no end, as in training."""
    special, room = tokenizer.special, length - 1
    canvases = torch.full((len(texts), length), special.eos)
    canvases[:, 0] = special.bos
    for number, ids in enumerate(tokenizer.encode_all(texts)):
        if len(ids) > room and not cut:
            lost = tokenizer.decode(ids[room:])
            raise ValueError(
                f"text {number + 1} of {len(texts)} has {len(ids)} tokens and the model takes {room}: "
                f"the last {len(ids) - room} would be cut, from {lost[:30]!r} on"
            )
        kept = ids[:room]
        canvases[number, 1 : 1 + len(kept)] = torch.tensor(kept, dtype=torch.int64)
    return canvases


def fitting_length(texts: Sequence[str], tokenizer: Tokenizer, lengths: Sequence[int]) -> int:
    """The first of these growing lengths that has room for all texts, or the longest."""
    needed = 1 + max((len(ids) for ids in tokenizer.encode_all(texts)), default=0)
    return next((length for length in lengths if length >= needed), lengths[-1])


def cut_to_fit(text: str, tokenizer: Tokenizer, *, length: int) -> tuple[str, str]:
    """The part of a text for which a canvas has room, and the rest."""
    ids, room = tokenizer.encode(text), length - 1
    return (text, "") if len(ids) <= room else (tokenizer.decode(ids[:room]), tokenizer.decode(ids[room:]))


def split_to_fit(text: str, tokenizer: Tokenizer, *, length: int) -> list[str]:
    """Pieces that join to the text, each within a canvas; a piece ends with a line unless its line is too long."""
    pieces = []
    while text:
        piece, rest = cut_to_fit(text, tokenizer, length=length)
        while not text.startswith(piece):  # cut inside a character
            piece = piece[:-1]
        if rest:
            piece = piece[: piece.rfind("\n") + 1] or piece
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces


def masked_canvas(given: Given, tokenizer: Tokenizer, *, length: int) -> Int[Tensor, "N"]:
    """Beginning, prefix, masks; and where there is a suffix, the suffix and one end."""
    special = tokenizer.special
    prefix, suffix = tokenizer.encode_all([given.prefix, given.suffix])
    before, after = [special.bos, *prefix], [*suffix, special.eos] if suffix else []
    num_masked = length - len(before) - len(after)
    if num_masked < 1:
        raise ValueError(
            f"what is given takes {len(before) + len(after)} of {length} tokens and leaves none to fill: "
            f"shorten it, or take a length above {len(before) + len(after)}"
        )
    assert special.mask is not None
    return torch.tensor([*before, *[special.mask] * num_masked, *after])
