"""Statistics of texts that need no judge: character errors, diversity, repetition, whether a text parses.

A sample is a list of tokens that ends where the text ends: the EOS tokens after it would count as repetition.
"""

import ast
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import TypeAlias

Tokens: TypeAlias = Sequence[int]


def character_error_rate(reference: str, text: str) -> float:
    """Return the CER: insertions, deletions and substitutions from `text` to `reference`, per reference character.

    All characters count: white space is part of a program. An empty reference counts as one character.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as missing:
        raise ValueError("the character error rate needs rapidfuzz: pip install rapidfuzz") from missing
    return Levenshtein.distance(text, reference) / max(len(reference), 1)


# ---------------------------------------------------------------- diversity


def token_entropy(samples: Sequence[Tokens]) -> float:
    """Return the token entropy of a sample in nats, averaged over samples: low if samples repeat themselves."""
    return _mean(map(_entropy, samples))


def distinct_n(samples: Sequence[Tokens], n: int) -> float:
    """Return the share of distinct n-grams among all n-grams of all samples (Li et al., 2016, arXiv:1510.03055).

    It falls with the number of tokens: compare at equal numbers only.
    """
    grams = [gram for sample in samples for gram in _ngrams(sample, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def self_repetition(samples: Sequence[Tokens], n: int = 4) -> float:
    """Return the share of a sample's n-grams that occurred before in the sample, averaged over samples.

    This is seq-rep-n of Welleck et al. (2020, arXiv:1908.04319). Samples of fewer than n tokens do not count.
    """
    grams_by_sample = [_ngrams(sample, n) for sample in samples]
    return _mean(1 - len(set(grams)) / len(grams) for grams in grams_by_sample if grams)


def _ngrams(tokens: Tokens, n: int) -> list[tuple[int, ...]]:
    return list(zip(*(tokens[start:] for start in range(n)), strict=False))


def _entropy(tokens: Tokens) -> float:
    return sum(count / len(tokens) * math.log(len(tokens) / count) for count in Counter(tokens).values())


# ---------------------------------------------------------------- Python


def parses_as_python(text: str) -> bool:
    """Whether a text is a Python program, by the grammar of the running Python version.

    A program has at least one statement: an empty text, or one of comments only, does not count.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, `is` with a literal
        try:
            return bool(ast.parse(text).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # NUL bytes, too deep nesting
            return False


def share_that_parses(texts: Sequence[str]) -> float:
    return _mean(float(parses_as_python(text)) for text in texts)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return fmean(numbers) if numbers else math.nan
