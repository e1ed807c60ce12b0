"""Trim a byte-level BPE tokenizer to the tokens that texts use, closed under merges. Does not import torch.

A causal model of 49,152 or 151,936 tokens spends much of its weights and time on tokens that one kind of text
never has. The trimmed tokenizer has our four special tokens, all 256 bytes, and the most used tokens with every
token that merges make on the way to them. All merges between these tokens stay, in their order. So

- any text comes back exactly: every byte has its token, and no normaliser changes the text;
- a word whose old tokens are all kept has exactly the old tokens. The old encoding applies, again and again, the
  first merge of the list that fits. Each of these merges leads to a token of the result, so it was kept, and among
  the kept merges that fit it is still the first;
- a word with a token that is gone is split into more tokens, with the same bytes. Other words do not change.

A word is what the pre-tokenizer takes for one. A normaliser (Qwen's NFC) is dropped: a text
that it would change has other tokens than before, but comes back unchanged.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

from crocodil.text.tokenizer import SPECIAL_TOKENS, Tokenizer

ROWS = 64  # the number of rows of an embedding is a multiple of this: matrix products are faster
_TEXTS_AT_ONCE = 256  # per call of the tokenizer


class Trimmed(NamedTuple):
    tokenizer: Tokenizer
    old_ids: list[int | None]  # of each row of the new embedding; None: a new token, or a row without one


def count_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[int]:
    """Return how often each token occurs in these texts."""
    counts: Counter[int] = Counter()
    rest = iter(texts)
    while chunk := list(islice(rest, _TEXTS_AT_ONCE)):
        for ids in tokenizer.encode_all(chunk):
            counts.update(ids)
    return counts


def trim(tokenizer: Tokenizer, counts: Mapping[int, int], *, size: int | None = None) -> Trimmed:
    """Keep the most used tokens, at most `size` rows in all; None keeps every token that occurs.

    The number of rows is a multiple of 64: the last places go to the tokens with the lowest old ids, which were
    merged first. Ids 0 to 3 are the mask, BOS, EOS and padding tokens.
    """
    definition = _definition(tokenizer)
    vocabulary, merges = definition["model"]["vocab"], definition["model"]["merges"]
    ranks = {(left, right): rank for rank, (left, right) in enumerate(merges)}
    fixed = [*SPECIAL_TOKENS, *_alphabet()]
    most = len(vocabulary) if size is None else size
    if most < len(fixed):
        raise ValueError(f"a trimmed vocabulary needs {len(fixed)} tokens for all bytes, not {size}")
    kept = _Kept(fixed, ranks, keeps_words=bool(definition["model"].get("ignore_merges")))
    ordinary = _ordinary_tokens(definition)
    used = sorted((i for i, count in counts.items() if count and i in ordinary), key=lambda i: (-counts[i], i))
    kept.add_all((ordinary[i] for i in used), most=_rounded(most))
    kept.add_all((ordinary[i] for i in sorted(ordinary)), most=_rounded(len(kept.tokens)))
    tokens = [*fixed, *sorted(kept.tokens - set(fixed), key=vocabulary.__getitem__)]
    old_ids = [*_old_special_ids(tokenizer), *(vocabulary.get(token) for token in tokens[len(SPECIAL_TOKENS) :])]
    old_ids += [None] * (_rounded(len(tokens)) - len(tokens))
    return Trimmed(_with_tokens(definition, tokens), old_ids)


class _Kept:
    """Tokens that are kept, closed under merges."""

    def __init__(self, fixed: Sequence[str], ranks: Mapping[tuple[str, str], int], *, keeps_words: bool) -> None:
        self.tokens, self.ranks, self.keeps_words = set(fixed), ranks, keeps_words

    def add_all(self, tokens: Iterable[str], *, most: int) -> None:
        """Add tokens in this order, each with its merges, as long as there is room for all of them."""
        for token in tokens:
            if len(self.tokens) >= most:
                return
            missing = self._needed(token) - self.tokens
            if len(self.tokens) + len(missing) <= most:
                self.tokens |= missing

    def _needed(self, token: str) -> set[str]:
        *steps, last = _merged(token, self.ranks)
        if last == token:
            return {token, *steps}
        return {token} if self.keeps_words else set()  # no merges lead to it: only whole words may be this token


def _merged(token: str, ranks: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """Yield what merges make of the bytes of a token, one after the other: always the first merge that fits.

    In a longer text no merge crosses the borders of a token, so its bytes are merged in the same way there.
    """
    parts = list(token)
    yield parts[0]
    while len(parts) > 1:
        rank, at = min((ranks.get(pair, math.inf), at) for at, pair in enumerate(pairwise(parts)))
        if rank == math.inf:
            return
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        yield parts[at]


def _definition(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the contents of tokenizer.json; other kinds than byte-level BPE are refused."""
    definition = json.loads(tokenizer.to_json())
    model = definition["model"]
    if model["type"] != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise ValueError(f"only a byte-level BPE tokenizer can be trimmed, not {model['type']}")
    assert tokenizer.token_bytes  # raises a ValueError if the tokens do not reproduce a text byte for byte
    return definition


def _ordinary_tokens(definition: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens that merges may make, by id: no special or added ones."""
    added = {token["content"] for token in definition["added_tokens"]}
    letters = set(_alphabet())
    vocabulary = definition["model"]["vocab"]
    return {i: token for token, i in vocabulary.items() if token not in added and letters.issuperset(token)}


def _old_special_ids(tokenizer: Tokenizer) -> list[int | None]:
    """Return the old ids of the four special tokens.

    A model without BOS has seen the EOS token before each document. A padding token that is EOS becomes a new
    token.
    """
    special = tokenizer.special
    return [special.mask, special.bos, special.eos, None if special.pad == special.eos else special.pad]


def _with_tokens(definition: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    from tokenizers import Tokenizer as Raw

    ids = {token: i for i, token in enumerate(tokens)}
    merges = [
        [left, right]
        for left, right in definition["model"]["merges"]
        if left in ids and right in ids and left + right in ids
    ]
    model = {**definition["model"], "vocab": ids, "merges": merges, "unk_token": None, "dropout": None}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": ids[token], "content": token, **added} for token in SPECIAL_TOKENS]
    # The post-processor would add special tokens by their old ids.
    changed = {"model": model, "added_tokens": special, "normalizer": None, "post_processor": None}
    return Tokenizer(Raw.from_str(json.dumps({**definition, **changed})))


def _alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def _rounded(size: int) -> int:
    return -(-size // ROWS) * ROWS
