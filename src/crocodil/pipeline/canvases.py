"""Make canvases (token sequences of fixed length) from texts: BOS, text, EOS tokens to the end (decision D18).

For generation, the canvas has masks after a given prefix and before a given suffix. Given text is healed where it
meets masks, because its tokens there may change: see `crocodil.text.tokenizer.Healed`.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

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
    tokens: int | None = None  # masks after the prefix; None: as many as fit, so that the canvas is full
    ends: bool = True  # the text ends with the suffix, or after `tokens`; False: more masks follow
    at_column: bool = False  # the text after the prefix starts with no whitespace; nothing is healed

    def __bool__(self) -> bool:
        return bool(self.prefix or self.suffix)


NOTHING = Given()
_CHARS_PER_TOKEN = 32  # more than any text has; text beyond it surely does not fit, and is not tokenized


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
    if len(ids) <= room:
        return text, ""
    kept = tokenizer.decode(ids[:room])
    if not text.startswith(kept):
        kept = kept.rstrip("\ufffd")  # cut inside a character
    return kept, text[len(kept) :] if text.startswith(kept) else tokenizer.decode(ids[room:])


def _first_that_fits(text: str, tokenizer: Tokenizer, *, length: int) -> tuple[str, str]:
    """Return the same as `cut_to_fit`, but tokenize no more of a long text than needed."""
    window = length * _CHARS_PER_TOKEN
    while window < len(text):
        piece, _ = cut_to_fit(text[:window], tokenizer, length=length)
        if 2 * len(piece) < window:  # the end of the window does not change tokens so far before it
            return piece, text[len(piece) :]
        window *= 2
    return cut_to_fit(text, tokenizer, length=length)


def split_to_fit(text: str, tokenizer: Tokenizer, *, length: int) -> list[str]:
    """Split a text into pieces that fit a canvas; a piece ends at a line break unless the line is too long."""
    pieces = []
    while text:
        piece, rest = _first_that_fits(text, tokenizer, length=length)
        while not text.startswith(piece):  # cut inside a character
            piece = piece[:-1]
        if rest:
            piece = piece[: piece.rfind("\n") + 1] or piece or text[0]
        pieces.append(piece)
        text = text[len(piece) :]
    return pieces


class Layout(NamedTuple):
    """A canvas in parts; tokens that are healed are masked."""

    before: list[int]  # BOS and the prefix
    num_free: int  # masks
    after: list[int]  # the suffix
    rest: list[int]  # EOS, or masks if the text goes on
    healed: dict[int, Sequence[int]]  # by position: the tokens that are allowed there

    @property
    def end(self) -> int:
        """Where the suffix ends."""
        return len(self.before) + self.num_free + len(self.after)


def layout(given: Given, tokenizer: Tokenizer, *, length: int) -> Layout:
    """Place given text on a canvas: BOS, prefix, masks, suffix, then EOS tokens or masks to the end."""
    special = tokenizer.special
    assert special.mask is not None
    prefix, suffix = _at_the_borders(given, tokenizer)
    before = [special.bos, *prefix.kept, *[special.mask] * bool(prefix.fitting)]
    after = [*[special.mask] * bool(suffix.fitting), *suffix.kept]
    room = length - len(before) - len(after) - bool(given.suffix and given.ends)
    num_free = room if given.tokens is None else given.tokens
    if room < 1 or room < num_free:
        taken = length - room
        left = f"none to fill: shorten it, or take a length above {taken}" if room < 1 else f"{room} to fill"
        asked = "" if room < 1 or given.tokens is None else f", fewer than the {given.tokens} asked for"
        raise ValueError(f"the given text takes {taken} of {length} tokens and leaves {left}{asked}")
    if num_free < 1:
        raise ValueError(f"tokens is {num_free}: at least one token is filled")
    rest = [special.eos if given.ends else special.mask] * (length - len(before) - num_free - len(after))
    first, last = len(before), len(before) + num_free
    healed: dict[int, Sequence[int]] = {first - 1: prefix.fitting, last: suffix.fitting}
    if given.at_column:
        healed[first] = starts_text(tokenizer)
    return Layout(before, num_free, after, rest, {position: ids for position, ids in healed.items() if ids})


def masked_canvas(given: Given, tokenizer: Tokenizer, *, length: int) -> Canvas:
    """Return BOS, prefix, masks and, where there is a suffix, the suffix and EOS. Healed tokens are masked."""
    special, parts = tokenizer.special, layout(given, tokenizer, length=length)
    assert special.mask is not None
    tokens = torch.tensor([[*parts.before, *[special.mask] * parts.num_free, *parts.after, *parts.rest]])
    return Canvas(tokens, special.mask, special.eos, allowed_at(parts.healed, length, tokenizer))


def masked_canvases(givens: Sequence[Given], tokenizer: Tokenizer, *, length: int) -> Canvas:
    """Return one canvas for each of the given texts, as one batch."""
    return stacked([masked_canvas(given, tokenizer, length=length) for given in givens])


def stacked(canvases: Sequence[Canvas]) -> Canvas:
    """Return canvases of one length as one batch; equal rows of their tables of allowed tokens are kept once."""
    tokens = torch.cat([canvas.tokens for canvas in canvases])
    restricted = [canvas.allowed for canvas in canvases if canvas.allowed is not None]
    if not restricted:
        return replace(canvases[0], tokens=tokens)
    table = {_key(restricted[0].tokens[0]): restricted[0].tokens[0]}  # row 0 allows every token, for all canvases
    rows = []
    for canvas in canvases:
        if canvas.allowed is None:
            rows.append(torch.zeros_like(canvas.tokens))
            continue
        keys = [_key(row) for row in canvas.allowed.tokens]
        table |= {key: row for key, row in zip(keys, canvas.allowed.tokens, strict=True) if key not in table}
        numbers = {key: number for number, key in enumerate(table)}
        rows.append(torch.tensor([numbers[key] for key in keys])[canvas.allowed.row])
    return replace(canvases[0], tokens=tokens, allowed=Allowed(torch.cat(rows), torch.stack(list(table.values()))))


def _key(row: Bool[Tensor, "V"]) -> bytes:
    return row.numpy().tobytes()


def _at_the_borders(given: Given, tokenizer: Tokenizer) -> tuple[Healed, Healed]:
    if given.at_column or not (given and given.heal):
        prefix, suffix = tokenizer.encode_all([given.prefix, given.suffix])
        return Healed(prefix, []), Healed(suffix, [])
    try:
        return heal_end(given.prefix, tokenizer), heal_beginning(given.suffix, tokenizer)
    except ValueError as error:
        raise ValueError(f"the given text cannot be healed, use Given(heal=False): {error}") from error


def tail_that_fits(text: str, tokenizer: Tokenizer, *, room: int) -> str:
    """Return the last lines of a text that fit `room` tokens; if the last line does not fit, only its end."""
    lines = re.findall(r".*\n|.+", text[-room * _CHARS_PER_TOKEN :])

    def is_too_long(first: int) -> bool:
        return len(tokenizer.encode("".join(lines[first:]))) > room

    first = bisect_left(range(len(lines)), True, key=lambda line: not is_too_long(line))
    tail = "".join(lines[first:] or lines[-1:])
    while tail and len(tokenizer.encode(tail)) > room:
        tail = tail[max(1, len(tail) // 8) :]
    return tail


def head_that_fits(text: str, tokenizer: Tokenizer, *, room: int) -> str:
    """Return the first lines of a text that fit `room` tokens; if the first line does not fit, only its start."""
    pieces = split_to_fit(text[: room * _CHARS_PER_TOKEN], tokenizer, length=room + 1) if room > 0 else []
    return pieces[0] if pieces else ""


@lru_cache(maxsize=2)
def starts_text(tokenizer: Tokenizer) -> Sequence[int]:
    """Return the tokens that do not start with whitespace."""
    return [i for i, token in enumerate(tokenizer.token_bytes) if token and not token[:1].isspace()]


def allowed_at(healed: Mapping[int, Sequence[int]], length: int, tokenizer: Tokenizer) -> Allowed | None:
    """Return the tokens that are allowed at these positions; at all others every token is."""
    if not healed:
        return None
    row = torch.zeros(1, length, dtype=torch.int64)
    tokens = torch.zeros(1 + len(healed), len(tokenizer.token_bytes), dtype=torch.bool)
    tokens[0] = True
    for number, (position, ids) in enumerate(healed.items(), start=1):
        row[0, position] = number
        tokens[number, list(ids)] = True
    return Allowed(row, tokens)
