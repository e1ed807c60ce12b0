"""Canvases from text: BOS, the text, and EOS as filling (decision D18); or masks around given text.

Given text is healed where it meets masks: see `crocodil.text.tokenizer.Healed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from crocodil.processes.categorical import Allowed
from crocodil.sampling.state import Canvas
from crocodil.shapes import TokenIds
from crocodil.text.tokenizer import Healed, Tokenizer, heal_beginning, heal_end


@dataclass(frozen=True, kw_only=True)
class Given:
    """Text that is fixed on the canvas. With both ends given, generation is infilling (decision D24)."""

    prefix: str = ""
    suffix: str = ""
    heal: bool = True  # the tokens next to the masks may be replaced by others that spell the same text

    def __bool__(self) -> bool:
        return bool(self.prefix or self.suffix)


NOTHING = Given()


def text_canvases(texts: Sequence[str], tokenizer: Tokenizer, *, length: int, cut: bool) -> TokenIds:
    """Return one canvas per text. A text that is cut has no EOS, as in training."""
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
    """Return the first of these growing lengths that fits all texts, or the longest."""
    needed = 1 + max((len(ids) for ids in tokenizer.encode_all(texts)), default=0)
    return next((length for length in lengths if length >= needed), lengths[-1])


def cut_to_fit(text: str, tokenizer: Tokenizer, *, length: int) -> tuple[str, str]:
    """Return the part of a text that fits a canvas, and the rest."""
    ids, room = tokenizer.encode(text), length - 1
    return (text, "") if len(ids) <= room else (tokenizer.decode(ids[:room]), tokenizer.decode(ids[room:]))


def split_to_fit(text: str, tokenizer: Tokenizer, *, length: int) -> list[str]:
    """Split a text into pieces that fit a canvas; a piece ends at a line break unless the line is too long."""
    pieces = []
    while text:
        piece, rest = cut_to_fit(text, tokenizer, length=length)
        while not text.startswith(piece):  # cut inside a character
            piece = piece[:-1]
        if rest:
            piece = piece[: piece.rfind("\n") + 1] or piece or text[0]
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces


def masked_canvas(given: Given, tokenizer: Tokenizer, *, length: int) -> Canvas:
    """Return BOS, prefix, masks and, where there is a suffix, the suffix and one EOS. Healed tokens are masked."""
    special = tokenizer.special
    assert special.mask is not None
    prefix, suffix = _at_the_borders(given, tokenizer)
    before = [special.bos, *prefix.kept, *[special.mask] * bool(prefix.fitting)]
    after = [*[special.mask] * bool(suffix.fitting), *suffix.kept, *[special.eos] * bool(given.suffix)]
    num_free = length - len(before) - len(after)
    if num_free < 1:
        raise ValueError(
            f"the given text takes {len(before) + len(after)} of {length} tokens and leaves none to fill: "
            f"shorten it, or take a length above {len(before) + len(after)}"
        )
    tokens = torch.tensor([[*before, *[special.mask] * num_free, *after]])
    healed = {len(before) - 1: prefix.fitting, length - len(after): suffix.fitting}
    allowed = _allowed({place: ids for place, ids in healed.items() if ids}, length, tokenizer)
    return Canvas(tokens, special.mask, special.eos, allowed)


def _at_the_borders(given: Given, tokenizer: Tokenizer) -> tuple[Healed, Healed]:
    if not (given and given.heal):
        prefix, suffix = tokenizer.encode_all([given.prefix, given.suffix])
        return Healed(prefix, []), Healed(suffix, [])
    try:
        return heal_end(given.prefix, tokenizer), heal_beginning(given.suffix, tokenizer)
    except ValueError as error:
        raise ValueError(f"the given text cannot be healed, use Given(heal=False): {error}") from error


def _allowed(healed: Mapping[int, Sequence[int]], length: int, tokenizer: Tokenizer) -> Allowed | None:
    if not healed:
        return None
    row = torch.zeros(1, length, dtype=torch.int64)
    tokens = torch.zeros(1 + len(healed), len(tokenizer.token_bytes), dtype=torch.bool)
    tokens[0] = True
    for number, (place, ids) in enumerate(healed.items(), start=1):
        row[0, place] = number
        tokens[number, list(ids)] = True
    return Allowed(row, tokens)
