"""Text <-> token ids: byte-level BPE that knows indentation, and existing tokenizers through the same door.

A tokenizer is a standard tokenizer.json plus four ids: mask, beginning, end, padding.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crocodil.atomic import whole_file

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
