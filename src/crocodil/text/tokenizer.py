"""Text <-> token ids: byte-level BPE that knows indentation, and existing tokenizers by the same interface.

A tokenizer is a standard tokenizer.json plus four ids: mask, beginning, end, padding. Does not import torch.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from crocodil.runtime.atomic import whole_file

# Line breaks with the indentation that follows; words; single digits; runs of signs; other blanks.
PRE_TOKENS = r"\n[\n \t]*| ?[\p{L}_]+|\d| ?[^\s\p{L}\d_]+|[ \t]+(?![^ \t])|[ \t]+|\s"

# What a special token is called: ours first, then the names that LLaDA, Qwen and their like use.
_NAMES = {
    "mask": ("<|mask|>", "<|mdm_mask|>", "[MASK]", "<mask>"),
    "bos": ("<|startoftext|>", "<s>", "<bos>", "[CLS]"),
    "eos": ("<|endoftext|>", "</s>", "<eos>", "[SEP]"),
    "pad": ("<|pad|>", "<pad>", "[PAD]"),
}
_OURS = [names[0] for names in _NAMES.values()]

_PROBE = "if x:\n\treturn 'é中😀'"  # what a byte-level tokenizer gives back byte for byte


@dataclass(frozen=True)
class SpecialIds:
    """Ids that mean something other than text; `mask` is None where a tokenizer has none (Qwen)."""

    mask: int | None
    bos: int
    eos: int
    pad: int


class Tokenizer:
    """A tokenizer.json with its special ids. Text never becomes a special token, whatever it says."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True  # "<|mask|>" in a program is eight characters
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.special = _special_ids(tokenizer)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> "Tokenizer":
        import tokenizers

        path = Path(file)
        if not path.is_file():
            raise ValueError(f"{path} is missing: a tokenizer is a tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare exceptions
            raise ValueError(f"{path} is no tokenizer.json that can be used: {error}") from error

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int) -> "Tokenizer":
        """Byte-level BPE on these texts; the special tokens come first, then all bytes."""
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as Raw

        if vocab_size < len(_OURS) + 256:
            raise ValueError(f"a byte-level vocabulary has at least {len(_OURS) + 256} tokens, not {vocab_size}")
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
            special_tokens=_OURS,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        raw.train_from_iterator(texts, trainer)
        return cls(raw)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text up to the first end token; other special tokens are left out."""
        ids = list(ids)
        if self.special.eos in ids[1:]:
            ids = ids[: ids.index(self.special.eos, 1)]
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    @cached_property
    def token_bytes(self) -> list[bytes | None]:
        """What each id stands for, which may be part of a character; None for special tokens and unused ids."""
        added = self._tokenizer.get_added_tokens_decoder()
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        byte_of = _byte_alphabet()
        table: list[bytes | None] = [None] * (max(vocab.values()) + 1)
        for token, i in vocab.items():
            if i not in added and byte_of.keys() >= set(token):
                table[i] = bytes([byte_of[letter] for letter in token])
            elif i not in added or not added[i].special:  # text as it stands: Qwen's <tool_call>
                table[i] = token.encode()
        if b"".join(table[i] or b"" for i in self.encode(_PROBE)) != _PROBE.encode():
            raise ValueError(f"no byte-level tokenizer: its tokens do not give {_PROBE!r} back byte for byte")
        return table

    def save(self, file: str | os.PathLike[str]) -> None:
        """As a standard tokenizer.json; the file appears whole or not at all."""
        with whole_file(Path(file)) as unfinished:
            unfinished.write_text(self._tokenizer.to_str(pretty=False), encoding="utf-8")


def _special_ids(tokenizer: Any) -> SpecialIds:
    found = {
        role: next((i for name in names if (i := tokenizer.token_to_id(name)) is not None), None)
        for role, names in _NAMES.items()
    }
    eos = found["eos"]
    if eos is None:
        raise ValueError(f"no end token: one of {', '.join(_NAMES['eos'])} is needed")
    bos = eos if found["bos"] is None else found["bos"]
    pad = eos if found["pad"] is None else found["pad"]
    return SpecialIds(found["mask"], bos, eos, pad)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others have letters from 256 on."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    byte_of = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = sorted(set(range(256)) - set(byte_of.values()))
    return byte_of | dict(zip(letters[len(byte_of) :], others, strict=True))


# ---------------------------------------------------------------- token healing

_BLANKS = " \t\n\r\v\f"


class Healed(NamedTuple):
    """Given text with its border token left open: the other tokens, and the ids that may stand at the border.

    Where text goes on, its last token may be another one: a line break and its indentation are one token, so that
    a line break which is given as a token could not be followed by an indented line. Only tokens that agree with
    the given text may stand there, so that it is never changed.
    """

    kept: list[int]
    fitting: list[int]  # empty where no other token agrees with the given text: then all its tokens are kept


def heal_end(text: str, tokenizer: Tokenizer) -> Healed:
    """A prefix without its last token, and the tokens that begin with what is missing; or all of it.

    All tokens of an unfinished indentation are left open together, if there is one token that begins with them.
    """
    table, ids = tokenizer.token_bytes, tokenizer.encode(text)
    num_blank = sum(1 for _ in takewhile(bytes.isspace, (_bytes_of(table, [i]) for i in reversed(ids))))
    for count in _counts(num_blank, table) if ids else ():
        missing = _bytes_of(table, ids[-count:])
        if count == 1 or missing.startswith(b"\n"):
            fitting = [i for i, own in enumerate(table) if own is not None and own.startswith(missing)]
            if fitting and fitting != ids[-count:]:
                return Healed(ids[:-count], fitting)
    return Healed(ids, [])


def heal_beginning(text: str, tokenizer: Tokenizer) -> Healed:
    """A suffix without its first token, or its first blanks, and the tokens that end with what is missing.

    Or all of it, where no other token agrees with it.
    """
    table, ids = tokenizer.token_bytes, tokenizer.encode(text)
    num_blank = 0
    if ids and _bytes_of(table, ids[:1]).isspace():
        # Blanks belong together: "    return" is "   ", " return", but behind a line break "\n    ", "return".
        rest = text.lstrip(_BLANKS)
        blanks, others = tokenizer.encode_all([text[: len(text) - len(rest)], rest])
        num_blank, ids = len(blanks), blanks + others
    for count in _counts(num_blank, table) if ids else ():
        missing = _bytes_of(table, ids[:count])
        fitting = [i for i, own in enumerate(table) if own is not None and own.endswith(missing)]
        if fitting and fitting != ids[:count]:
            return Healed(ids[count:], fitting)
    return Healed(ids, [])


def _counts(num_blank: int, table: Sequence[bytes | None]) -> range:
    """How many tokens may be left open, the most first: no more than the longest token has bytes."""
    longest = max(len(own) for own in table if own is not None)
    return range(min(max(1, num_blank), longest), 0, -1)


def _bytes_of(table: Sequence[bytes | None], ids: Sequence[int]) -> bytes:
    return b"".join(table[i] or b"" for i in ids)
