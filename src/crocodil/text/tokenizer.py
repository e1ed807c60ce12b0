"""Tokenizers: byte-level BPE with tokens for indentation, and existing tokenizers with the same interface.

A tokenizer is a standard tokenizer.json plus the ids of four special tokens: mask, BOS, EOS, padding. This module
does not import torch.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from crocodil.runtime.atomic import whole_file

# Line breaks with the indentation that follows; words; single digits; runs of punctuation; other whitespace.
PRE_TOKENS = r"\n[\n \t]*| ?[\p{L}_]+|\d| ?[^\s\p{L}\d_]+|[ \t]+(?![^ \t])|[ \t]+|\s"

# Names of special tokens: ours first, then those of LLaDA, Qwen and others.
_NAMES = {
    "mask": ("<|mask|>", "<|mdm_mask|>", "[MASK]", "<mask>"),
    "bos": ("<|startoftext|>", "<s>", "<bos>", "[CLS]"),
    "eos": ("<|endoftext|>", "</s>", "<eos>", "[SEP]"),
    "pad": ("<|pad|>", "<pad>", "[PAD]"),
}
SPECIAL_TOKENS = tuple(names[0] for names in _NAMES.values())  # of our own tokenizers: ids 0 to 3

_PROBE = "if x:\n\treturn 'é中😀'"  # a byte-level tokenizer reproduces this text byte for byte


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens; `mask` is None if the tokenizer has no mask token (Qwen)."""

    mask: int | None
    bos: int
    eos: int
    pad: int


class Tokenizer:
    """A tokenizer.json with its special ids. Text is never encoded as a special token."""

    def __init__(self, tokenizer: Any, **known_ids: int) -> None:
        """Wrap a tokenizer of the library; `known_ids` (mask, bos, eos, pad) replace ids found by name."""
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # "<|mask|>" in a program is eight characters
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.special = _special_ids(tokenizer, known_ids)

    @classmethod
    def load(cls, file: str | os.PathLike[str], **known_ids: int) -> "Tokenizer":
        import tokenizers

        path = Path(file)
        if not path.is_file():
            raise ValueError(f"{path} is missing: expected a tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)), **known_ids)
        except Exception as error:  # the library raises bare exceptions
            raise ValueError(f"{path} is not a usable tokenizer.json: {error}") from error

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int) -> "Tokenizer":
        """Train byte-level BPE on these texts; ids start with the special tokens, then all bytes."""
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as Raw

        smallest = len(SPECIAL_TOKENS) + 256
        if vocab_size < smallest:
            raise ValueError(
                f"vocab_size must be at least {smallest} for a byte-level tokenizer, not {vocab_size}"
            )
        raw = Raw(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(PRE_TOKENS), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        raw.train_from_iterator(texts, trainer)
        return cls(raw)

    def with_mask(self) -> "Tokenizer":
        """Return a tokenizer with a mask token: itself, or a copy in which the first free id is the mask."""
        if self.special.mask is not None:
            return self
        import tokenizers

        raw = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        raw.add_special_tokens([tokenizers.AddedToken(_NAMES["mask"][0], special=True, normalized=False)])
        return Tokenizer(raw)

    @property
    def ids(self) -> dict[str, int]:
        """The id of each token, special ones included."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text up to the first EOS token, without other special tokens."""
        ids = list(ids)
        if self.special.eos in ids[1:]:
            ids = ids[: ids.index(self.special.eos, 1)]
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    @property
    def raw(self) -> Any:
        """The tokenizer as the library `tokenizers` has it. Copy it before you change it."""
        return self._tokenizer

    def id_of(self, name: str | None) -> int | None:
        """Return the id of a token by its name, such as `<|eot_id|>`; None if there is no such token."""
        return None if name is None else self._tokenizer.token_to_id(name)

    @property
    def adds_bos(self) -> bool:
        """Whether tokenizer.json itself puts BOS before a text; `encode` never does."""
        return self._tokenizer.encode("", add_special_tokens=True).ids[:1] == [self.special.bos]

    @cached_property
    def token_bytes(self) -> list[bytes | None]:
        """The bytes of each token, maybe part of a character; None for special tokens and unused ids."""
        added = self._tokenizer.get_added_tokens_decoder()
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        byte_of = _byte_alphabet()
        table: list[bytes | None] = [None] * (max(vocab.values()) + 1)
        for token, i in vocab.items():
            if i not in added and byte_of.keys() >= set(token):
                table[i] = bytes([byte_of[letter] for letter in token])
            elif i not in added or not added[i].special:  # literal text, such as Qwen's <tool_call>
                table[i] = token.encode()
        if b"".join(table[i] or b"" for i in self.encode(_PROBE)) != _PROBE.encode():
            raise ValueError(f"not a byte-level tokenizer: its tokens do not reproduce {_PROBE!r}")
        return table

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write a standard tokenizer.json; the file appears whole or not at all."""
        with whole_file(Path(file)) as unfinished:
            unfinished.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        """Return the contents of a standard tokenizer.json."""
        return self._tokenizer.to_str(pretty=False)


def _special_ids(tokenizer: Any, known_ids: Mapping[str, int]) -> SpecialIds:
    ids = {
        role: next((i for name in names if (i := tokenizer.token_to_id(name)) is not None), None)
        for role, names in _NAMES.items()
    } | dict(known_ids)
    eos = ids["eos"]
    if eos is None:
        raise ValueError(f"the tokenizer has no EOS token: expected one of {', '.join(_NAMES['eos'])}")
    bos = eos if ids["bos"] is None else ids["bos"]
    pad = eos if ids["pad"] is None else ids["pad"]
    return SpecialIds(ids["mask"], bos, eos, pad)


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's byte alphabet: printable bytes are themselves, others are characters from 256 on."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    byte_of = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = sorted(set(range(256)) - set(byte_of.values()))
    return byte_of | dict(zip(letters[len(byte_of) :], others, strict=True))


# ---------------------------------------------------------------- token healing

_WHITESPACE = " \t\n\r\v\f"


class Healed(NamedTuple):
    """A given text whose border token is left open: the other tokens, and the ids allowed at the border.

    If text continues, its last token may change: a line break and the indentation after it are one token, so a
    line break fixed as a token could not be followed by an indented line. Only tokens that agree with the given
    text are allowed at the border, so the text itself never changes.
    """

    kept: list[int]
    fitting: list[int]  # ids allowed at the border; empty if no other token agrees, and all tokens are kept


def heal_end(text: str, tokenizer: Tokenizer) -> Healed:
    """Remove the last token of a prefix and return the tokens that start with the removed bytes.

    All tokens of an unfinished indentation are removed together if one token starts with all of them. If no other
    token fits, the whole prefix is kept.
    """
    table, ids = tokenizer.token_bytes, tokenizer.encode(text)
    num_blank = sum(1 for _ in takewhile(bytes.isspace, (_bytes_of(table, [i]) for i in reversed(ids))))
    for count in _counts(num_blank, table) if ids else ():
        missing = _bytes_of(table, ids[-count:])
        if count == 1 or missing.startswith(b"\n"):
            fitting = [i for i, token in enumerate(table) if token is not None and token.startswith(missing)]
            if fitting and fitting != ids[-count:]:
                return Healed(ids[:-count], fitting)
    return Healed(ids, [])


def heal_beginning(text: str, tokenizer: Tokenizer) -> Healed:
    """Remove the first token or the leading whitespace of a suffix; return the tokens that end with it.

    If no other token fits, the whole suffix is kept.
    """
    table = tokenizer.token_bytes
    for most, ids in _readings(text, tokenizer):
        for count in _counts(most, table):
            missing = _bytes_of(table, ids[:count])
            fitting = [i for i, token in enumerate(table) if token is not None and token.endswith(missing)]
            if fitting and fitting != ids[:count]:
                return Healed(ids[count:], fitting)
    return Healed(tokenizer.encode(text), [])


def _readings(text: str, tokenizer: Tokenizer) -> list[tuple[int, list[int]]]:
    r"""Return ways to tokenize a suffix, the best first, each with the number of tokens that may be removed.

    Alone, "    return" is "   ", " return". After a line break, our tokenizers read "\n    ", "return" and keep
    whitespace together; others read "\n   ", " return".
    """
    ids, rest = tokenizer.encode(text), text.lstrip(_WHITESPACE)
    if not ids:
        return []
    if not _bytes_of(tokenizer.token_bytes, ids[:1]).isspace():
        return [(1, ids)]
    blanks, others, after_break = tokenizer.encode_all([text[: len(text) - len(rest)], rest, f"\n{text}"])
    keeps_together = after_break[len(after_break) - len(others) :] == others
    return [(len(blanks), blanks + others), (1, ids)] if keeps_together else [(1, ids)]


def _counts(num_blank: int, table: Sequence[bytes | None]) -> range:
    """Return how many tokens may be removed, largest first; at most the number of bytes of the longest token."""
    longest = max(len(token) for token in table if token is not None)
    return range(min(max(1, num_blank), longest), 0, -1)


def _bytes_of(table: Sequence[bytes | None], ids: Sequence[int]) -> bytes:
    return b"".join(table[i] or b"" for i in ids)
