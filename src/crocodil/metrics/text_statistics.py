"""What generated text looks like from outside: errors, diversity, repetition, whether it is Python.

Samples are lists of tokens that end where the text ends: what fills a canvas after it would count as repetition.
"""

import ast
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import fmean
from typing import TypeAlias

Tokens: TypeAlias = Sequence[int]


def character_error_rate(reference: str, found: str) -> float:
    """CER: insertions, deletions and substitutions that turn `found` into `reference`, per reference character.

    Strictly on all characters: white space is part of a program. An empty reference counts as one character.
    """
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as missing:
        raise ValueError("the character error rate needs rapidfuzz: pip install 'crocodil[eval]'") from missing
    return Levenshtein.distance(found, reference) / max(len(reference), 1)


# ---------------------------------------------------------------- diversity


def token_entropy(samples: Sequence[Tokens]) -> float:
    """Entropy of the tokens of a sample in nats, averaged over samples: low where samples repeat themselves."""
    return _mean(map(_entropy, samples))


def pooled_token_entropy(samples: Sequence[Tokens]) -> float:
    """Entropy in nats of the tokens of all samples together: low also where samples resemble each other."""
    return _entropy(list(chain.from_iterable(samples)))


def distinct_n(samples: Sequence[Tokens], n: int) -> float:
    """Different n-grams per n-gram over all samples (Li et al., 2016, arXiv:1510.03055).

    It falls with the number of tokens: compare at equal numbers only.
    """
    grams = [gram for sample in samples for gram in _ngrams(sample, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def self_repetition(samples: Sequence[Tokens], n: int = 4) -> float:
    """The share of a sample's n-grams that stood in it before, averaged over samples.

    This is seq-rep-n of Welleck et al. (2020, arXiv:1908.04319). Samples of fewer than n tokens do not count.
    """
    grams = [_ngrams(sample, n) for sample in samples]
    return _mean(1 - len(set(some)) / len(some) for some in grams if some)


def _ngrams(tokens: Tokens, n: int) -> list[tuple[int, ...]]:
    return list(zip(*(tokens[start:] for start in range(n)), strict=False))


def _entropy(tokens: Tokens) -> float:
    return sum(count / len(tokens) * math.log(len(tokens) / count) for count in Counter(tokens).values())


# ---------------------------------------------------------------- Python


def parses_as_python(text: str) -> bool:
    """Whether a text is a Python program, by the grammar of the running version.

    A program has a statement: nothing at all, or comments alone, would otherwise be perfect samples.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes, `is` with a literal
        try:
            return bool(ast.parse(text).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # NUL; nested too deep
            return False


def share_that_parses(texts: Sequence[str]) -> float:
    return _mean(float(parses_as_python(text)) for text in texts)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else math.nan
