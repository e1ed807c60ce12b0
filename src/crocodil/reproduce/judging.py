"""What is measured of a set of texts: against real ones by a judge, and by itself.

No Gen-PPL without diversity beside it: text that repeats itself has the best Gen-PPL of all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from crocodil.metrics import (
    EmbeddedTexts,
    Measured,
    bert_score,
    bits_per_byte,
    distinct_n,
    mauve_by_seed,
    self_repetition,
    share_that_parses,
    token_entropy,
)
from crocodil.reproduce.rows import Row
from crocodil.tokenization import Tokenizer

NUM_FOLDS = 4  # parts of the samples from which the spread of Gen-PPL is estimated
PAIRS_AT_ONCE = 16  # of BERTScore


@runtime_checkable
class TextScore(Protocol):
    """How surprising a text is to a judge."""

    @property
    def nats(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...


@runtime_checkable
class Judge(Protocol):
    """A causal language model that reads what others wrote: `crocodil.judges.LanguageModel` is one."""

    @property
    def name(self) -> str: ...
    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> Sequence[TextScore]: ...
    def features(self, texts: Sequence[str], *, batch_size: int = 8) -> Tensor: ...


@runtime_checkable
class Embedder(Protocol):
    """A model of token embeddings for BERTScore: `crocodil.judges.TextEncoder` is one."""

    @property
    def name(self) -> str: ...
    def embed(self, texts: Sequence[str]) -> EmbeddedTexts: ...


def load_judge(name_or_path: str, *, device: str) -> Judge:
    from crocodil.judges import LanguageModel

    return LanguageModel.load(name_or_path, device=device)


def load_embedder(name_or_path: str, *, device: str) -> Embedder:
    from crocodil.judges import TextEncoder

    return TextEncoder.load(name_or_path, device=device)


@dataclass(frozen=True)
class Reference:
    """Real programs as the judge sees them, and what is normal for them."""

    features: Tensor
    fluency: Row


@dataclass(frozen=True, kw_only=True)
class Court:
    """The judge, how MAUVE clusters what it sees, and the tokenizer in which diversity is counted."""

    judge: Judge
    tokenizer: Tokenizer
    mauve_seeds: Sequence[int]
    mauve_buckets: int | None = None
    embedder: Embedder | None = None
    batch_size: int = 8  # of texts that the judge reads at once

    def reference(self, texts: Sequence[str]) -> Reference:
        return Reference(self.features(texts), self.fluency(texts))

    def features(self, texts: Sequence[str]) -> Tensor:
        return self.judge.features(texts, batch_size=self.batch_size)

    def judged(self, texts: Sequence[str], reference: Reference) -> Row:
        """Everything that is said about generated texts."""
        likeness = self.mauve(reference.features, self.features(texts))
        return {"mauve": likeness.mean, "mauve_spread": likeness.spread, **self.fluency(texts)}

    def fluency(self, texts: Sequence[str]) -> Row:
        """Surprise with its spread, and diversity beside it; bits a byte do not depend on the judge's tokens."""
        scores = [score for score in self.judge.scores(texts, batch_size=self.batch_size) if score.num_tokens]
        surprise = gen_ppl(scores)
        nats, num_bytes = sum(score.nats for score in scores), sum(score.num_bytes for score in scores)
        return {
            "gen_ppl": surprise.mean,
            "gen_ppl_spread": surprise.spread,
            "bits_per_byte": bits_per_byte(nats, num_bytes) if num_bytes else math.nan,
            **self.looks(texts),
        }

    def looks(self, texts: Sequence[str]) -> Row:
        """What needs no judge: diversity, repetition, whether it is Python."""
        tokens = self.tokenizer.encode_all(texts)
        return {
            "entropy": token_entropy(tokens),
            "distinct_2": distinct_n(tokens, 2),
            "repetition": self_repetition(tokens),
            "parse_share": share_that_parses(texts),
            "empty_share": fmean(not text.strip() for text in texts),
        }

    def mauve(self, real: Tensor, fake: Tensor) -> Measured:
        """Mean and spread over clusterings."""
        return Measured.over(mauve_by_seed(real, fake, seeds=self.mauve_seeds, num_buckets=self.mauve_buckets))

    def bert_score(self, references: Sequence[str], found: Sequence[str]) -> float | None:
        """Mean F1; None without a model to embed with."""
        if self.embedder is None:
            return None
        parts = []
        for start in range(0, len(found), PAIRS_AT_ONCE):
            here = slice(start, start + PAIRS_AT_ONCE)
            parts.append(bert_score(self.embedder.embed(references[here]), self.embedder.embed(found[here])).f1)
        return torch.cat(parts).mean().item()


def gen_ppl(scores: Sequence[TextScore]) -> Measured:
    """Perplexity a token over all texts; its spread from that of parts of them."""
    folds = [part for fold in range(NUM_FOLDS) if (part := scores[fold::NUM_FOLDS])]
    spread = stdev(map(_perplexity, folds)) / math.sqrt(len(folds)) if len(folds) > 1 else math.nan
    return Measured(_perplexity(scores), spread)


def _perplexity(scores: Sequence[TextScore]) -> float:
    num_tokens = sum(score.num_tokens for score in scores)
    return math.exp(sum(score.nats for score in scores) / num_tokens) if num_tokens else math.nan
