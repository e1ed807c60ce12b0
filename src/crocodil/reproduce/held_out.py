"""Held-out programs of a corpus as texts, cut for the canvas of a model by the tokenizer of the model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np

from crocodil.corpus.order import Order
from crocodil.corpus.shards import TOKENIZER_FILE, TOO_FEW_FILES, Corpus, Shard
from crocodil.text.tokenizer import Tokenizer

ORDER = "reproduce"  # the name of the shuffled order


@dataclass(frozen=True)
class HeldOut:
    """The programs of a corpus that fill canvases of one length.

    If the corpus has the tokens of the model, they are those of `Corpus.programs`. Otherwise every document is
    tokenized again and the same rule is applied to the new lengths.
    """

    corpus: Corpus
    tokenizer: Tokenizer  # of the model
    length: int
    _tokenized_again: dict[str, list[str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def texts(self, split: str, count: int) -> list[str]:
        """Return the first `count` programs of a split, in a shuffled order that is always the same."""
        if not self.has_other_tokens:
            programs = self.corpus.programs(split, length=self.length)
            return [self.tokenizer.decode(programs[number].tolist()) for number in _first(len(programs), count)]
        if split not in self._tokenized_again:
            self._tokenized_again[split] = tokenized_again(self.corpus, split, self.tokenizer, self.length)
        texts = self._tokenized_again[split]
        return [texts[number] for number in _first(len(texts), count)]

    @cached_property
    def has_other_tokens(self) -> bool:
        """Whether an id of the corpus means another token, or none, in the model's tokenizer."""
        corpus_tokenizer = Tokenizer.load(self.corpus.directory / TOKENIZER_FILE)
        return not corpus_tokenizer.ids.items() <= self.tokenizer.ids.items()


def _first(num_programs: int, count: int) -> list[int]:
    return Order(num_programs, ORDER).at(np.arange(min(count, num_programs))).tolist()


def tokenized_again(corpus: Corpus, split: str, tokenizer: Tokenizer, length: int) -> list[str]:
    """Return the programs that `crocodil.corpus.shards.Programs` would hold with this tokenizer."""
    corpus_tokenizer = Tokenizer.load(corpus.directory / TOKENIZER_FILE)
    texts: list[str] = []
    for shard in corpus.shards(split):
        documents = list(_documents(shard, corpus_tokenizer))
        sizes = map(len, tokenizer.encode_all([text for text, _ in documents]))
        for (text, parts), size in zip(documents, sizes, strict=True):
            texts += parts if parts and size > length - 2 else [text]
    if not texts:
        raise ValueError(f"the {split} split of {corpus.directory} has no programs: {TOO_FEW_FILES}")
    return [
        text if len(ids) <= length - 2 else tokenizer.decode(ids[: length - 1])
        for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True)
    ]


def _documents(shard: Shard, tokenizer: Tokenizer) -> Iterator[tuple[str, list[str]]]:
    """Yield the text of each document, and the texts of its definitions."""

    def text(start: int, length: int) -> str:
        return tokenizer.decode(shard.tokens[start : start + length].tolist())

    for start, length, _, first, num_parts in shard.documents.tolist():
        parts = shard.parts[first : first + num_parts].tolist()
        yield text(start, length), [text(start + part_start, part_length) for part_start, part_length in parts]


def corpus_fingerprint(corpus: Corpus) -> str:
    """Return a hash of the checksums of all files of a corpus."""
    return blake2b(repr(sorted(corpus.description["sha256"].items())).encode(), digest_size=6).hexdigest()
