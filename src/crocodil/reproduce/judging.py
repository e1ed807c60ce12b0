"""What is measured of a set of texts: against real ones by a judge, and by itself.

No Gen-PPL without diversity beside it: text that repeats itself has the best Gen-PPL of all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from crocodil.judges import TextScore, bits_per_byte, gen_ppl
from crocodil.metrics import (
    EmbeddedTexts,
    Measured,
    TextFeatures,
    bert_score,
    distinct_n,
    mauve_by_seed,
    self_repetition,
    share_that_parses,
    token_entropy,
)
from crocodil.reproduce.store import Row
from crocodil.text.tokenizer import Tokenizer

PAIRS_AT_ONCE = 16  # of BERTScore
MAUVES = ("mauve", "mauve_pooled")  # by the last token's state, and by the mean over all tokens


@runtime_checkable
class Judge(Protocol):
    """A causal language model that reads what others wrote: `crocodil.judges.LanguageModel` is one."""

    @property
    def name(self) -> str: ...
    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> Sequence[TextScore]: ...
    def both_features(self, texts: Sequence[str], *, batch_size: int = 8) -> TextFeatures: ...


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

    features: TextFeatures
    fluency: Row

    def __len__(self) -> int:
        return len(self.features.last)


@dataclass(frozen=True, kw_only=True)
class Court:
    """The judge, how MAUVE clusters what it sees, and the tokenizer in which diversity is counted."""

    judge: Judge
    tokenizer: Tokenizer
    mauve_seeds: Sequence[int]
    mauve_buckets: int | None = None
    embedder: Embedder | None = None
    batch_size: int = 8  # of texts that the judge reads at once
    fewest_for_mauve: int = 0  # texts on each side; of fewer it is left out

    def reference(self, texts: Sequence[str]) -> Reference:
        return Reference(self.features(texts), self.fluency(texts))

    def features(self, texts: Sequence[str]) -> TextFeatures:
        return self.judge.both_features(texts, batch_size=self.batch_size)

    def judged(self, texts: Sequence[str], reference: Reference) -> Row:
        """Everything that is said about generated texts; MAUVE is None where there are too few of them."""
        if min(len(texts), len(reference)) < self.fewest_for_mauve:
            likeness: Row = {name: None for kind in MAUVES for name in (kind, f"{kind}_spread")}
        else:
            likeness = self.likeness(reference.features, self.features(texts))
        return {**likeness, **self.fluency(texts)}

    def likeness(self, real: TextFeatures, fake: TextFeatures) -> Row:
        """MAUVE by both kinds of features."""
        found = {name: self.mauve(*pair) for name, pair in zip(MAUVES, zip(real, fake, strict=True), strict=True)}
        return {
            key: value
            for name, one in found.items()
            for key, value in ((name, one.mean), (f"{name}_spread", one.spread))
        }

    def fluency(self, texts: Sequence[str]) -> Row:
        """Surprise with its spread, and diversity beside it; bits a byte do not depend on the judge's tokens."""
        scores = [score for score in self.judge.scores(texts, batch_size=self.batch_size) if score.num_tokens]
        surprise = gen_ppl(scores) if scores else Measured(math.nan, math.nan)
        return {
            "gen_ppl": surprise.mean,
            "gen_ppl_spread": surprise.spread,
            "bits_per_byte": bits_per_byte(scores) if scores else math.nan,
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
