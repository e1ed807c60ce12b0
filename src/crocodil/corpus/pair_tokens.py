"""The tokens of pairs in memory: each pair is tokenized once, in several processes. Does not import torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crocodil.corpus.pairs import Pair, PairFile
from crocodil.corpus.shards import token_dtype
from crocodil.runtime.progress import progress
from crocodil.runtime.workers import in_order
from crocodil.text.prompts import TokenizedPair, at_column, tokenize_pairs
from crocodil.text.tokenizer import Tokenizer

PAIRS_AT_ONCE = 256  # per call of the tokenizer
PAIRS_OF_A_PART = 8192  # tokenized by one process


@dataclass(frozen=True)
class Room:
    """The largest numbers of tokens that canvases have room for."""

    answer: int  # pairs with longer answers are left out
    prompt: int  # of the prefix and of the suffix each; tokens further from the answer are left out


@dataclass(frozen=True)
class PairTokens:
    """The tokens of many pairs in one array: prefix, answer, suffix, prefix, ..."""

    tokens: NDArray
    edges: NDArray[np.int64]  # where each of these begins, and the end

    @classmethod
    def of(cls, pairs: Iterable[TokenizedPair], dtype: np.dtype) -> "PairTokens":
        pieces = [np.array(piece, dtype=dtype) for pair in pairs for piece in pair]
        edges = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, dtype=dtype), *pieces]), edges)

    @classmethod
    def joined(cls, parts: Sequence["PairTokens"]) -> "PairTokens":
        starts = np.cumsum([0, *(len(part.tokens) for part in parts)], dtype=np.int64)
        edges = [part.edges[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate([*edges, starts[-1:]]))

    def __len__(self) -> int:
        return len(self.edges) // 3

    def __getitem__(self, number: int) -> TokenizedPair:
        edges = self.edges[3 * number : 3 * number + 4].tolist()
        prefix, answer, suffix = (self.tokens[start:end].tolist() for start, end in pairwise(edges))
        return TokenizedPair(prefix, answer, suffix)


def fitting_pairs(pairs: Iterable[Pair], tokenizer: Tokenizer, room: Room) -> Iterator[TokenizedPair]:
    """Tokenize pairs and yield those whose answer fits its canvas."""
    left = iter(pairs)
    while some := list(islice(left, PAIRS_AT_ONCE)):
        splits = [at_column(pair.prompt, pair.answer, pair.suffix) for pair in some]
        for prefix, answer, suffix in tokenize_pairs(splits, tokenizer):
            if 0 < len(answer) <= room.answer:
                yield TokenizedPair(prefix[-room.prompt :], answer, suffix[: room.prompt])


def tokens_of(
    pairs: PairFile, tokenizer_file: Path, room: Room, *, num_processes: int = 1, shown: bool = True
) -> PairTokens:
    """Tokenize the pairs whose answer fits, in the order of the file."""
    parts = pairs.parts(PAIRS_OF_A_PART) or [pairs]
    calls = [(part, tokenizer_file, room) for part in parts]
    tokens = []
    with progress("tokenizing pairs", len(parts), unit="parts", shown=shown and len(parts) > 1) as advance:
        for part in in_order(_tokens_of_part, calls, num_processes):
            tokens.append(part)
            advance(1)
    return PairTokens.joined(tokens)


def _tokens_of_part(pairs: PairFile, tokenizer_file: Path, room: Room) -> PairTokens:
    tokenizer = Tokenizer.load(tokenizer_file)
    return PairTokens.of(fitting_pairs(pairs, tokenizer, room), token_dtype(len(tokenizer)))
