"""The evaluator: every number about a set of texts, with or without real texts to compare them with.

`crocodil evaluate` and `crocodil reproduce` both use it. Gen-PPL never stands alone: text that repeats itself has
the best Gen-PPL, and only the diversity beside it shows that.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from crocodil import metrics
from crocodil.judges.language_model import TextScore
from crocodil.judges.lineage import check_unrelated
from crocodil.metrics import (
    BertScore,
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
from crocodil.text.tokenizer import Tokenizer

Row: TypeAlias = dict[str, Any]
NUM_PARTS = 4  # of the texts, to estimate the standard error of Gen-PPL
PAIRS_PER_BATCH = 16  # of BERTScore
OTHER_JUDGES = "other_judges"  # the column with the numbers of other judges
MAUVES = ("mauve", "mauve_pooled")  # by the last token's state, and by the mean over all tokens


@runtime_checkable
class Judge(Protocol):
    """A causal language model that scores texts: `LanguageModel`."""

    @property
    def name(self) -> str: ...
    @property
    def families(self) -> tuple[str, ...]: ...  # of pretrained models that its weights come from
    def scores(self, texts: Sequence[str], *, batch_size: int = 8) -> Sequence[TextScore]: ...
    def features(self, texts: Sequence[str], *, batch_size: int = 8) -> TextFeatures: ...


@runtime_checkable
class Embedder(Protocol):
    """A model that embeds tokens for BERTScore: `TextEncoder`, or `JudgeLayer`."""

    @property
    def name(self) -> str: ...
    @property
    def families(self) -> tuple[str, ...]: ...
    def embed(self, texts: Sequence[str]) -> EmbeddedTexts: ...


@dataclass(frozen=True)
class Reference:
    """Real texts: the judge's features of them, and their scores."""

    features: TextFeatures
    scores: Row
    by_others: Mapping[str, "Reference"] = field(default_factory=dict)  # by the name of each other judge

    def __len__(self) -> int:
        return len(self.features.last)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """A judge, the tokenizer in which diversity is counted, and the settings of MAUVE."""

    judge: Judge
    tokenizer: Tokenizer
    mauve_seeds: Sequence[int] = (0, 1, 2, 3, 4)  # of the clustering
    mauve_buckets: int | None = None  # None: a tenth of the texts
    embedder: Embedder | None = None  # for BERTScore
    judge_layer: Embedder | None = None  # a layer of the judge, for a second BERTScore
    batch_size: int = 8  # texts per forward pass of the judge
    min_texts_for_mauve: int = 1  # on each side; with fewer, MAUVE is None
    other_judges: Sequence[Judge] = ()  # second opinions, in a separate column

    def check_unrelated(self, parents: Collection[str]) -> None:
        """Refuse to judge a model whose weights come from these families, if the judge or an embedder does too."""
        for judge in (self.judge, self.embedder, self.judge_layer):
            if judge is not None:
                check_unrelated(judge, parents)

    def reference(self, texts: Sequence[str]) -> Reference:
        """Prepare real texts, which generated texts are compared with."""
        by_others = {name: evaluator.reference(texts) for name, evaluator in self._other_evaluators().items()}
        return Reference(self.features(texts), self.score(texts), by_others)

    def features(self, texts: Sequence[str]) -> TextFeatures:
        return self.judge.features(texts, batch_size=self.batch_size)

    # ------------------------------------------------------------ rows

    def evaluate(self, texts: Sequence[str], reference: Reference) -> Row:
        """Return all numbers about generated texts: MAUVE against the reference, `score`, and other opinions."""
        row = {**self.mauve_against(reference, texts), **self.score(texts)}
        by_others = {
            name: evaluator.evaluate(texts, reference.by_others[name])
            for name, evaluator in self._other_evaluators().items()
        }
        return _with_opinions(row, by_others)

    def compare(self, real: Reference, other: Reference) -> Row:
        """Return the same numbers for prepared real texts, with MAUVE against other real texts."""
        row = {**self.mauve_row(real.features, other.features), **real.scores}
        by_others = {
            name: evaluator.compare(real.by_others[name], other.by_others[name])
            for name, evaluator in self._other_evaluators().items()
        }
        return _with_opinions(row, by_others)

    def unrelated_to(self, parents: Collection[str]) -> "Evaluator":
        """Return the evaluator without the other judges that share one of these families with a model."""
        unrelated = [judge for judge in self.other_judges if not set(judge.families) & set(parents)]
        return replace(self, other_judges=unrelated)

    def _other_evaluators(self) -> "dict[str, Evaluator]":
        return {judge.name: replace(self, judge=judge, other_judges=()) for judge in self.other_judges}

    def evaluate_real(self, reference: Reference, other: Sequence[str]) -> Row:
        """Return the same numbers for real texts; MAUVE against `other` real texts is the ceiling of MAUVE.

        MAUVE is None unless there are as many other texts as the reference has: it depends on their number.
        """
        same_number = other if len(other) == len(reference) else ()
        return {**self.mauve_against(reference, same_number), **reference.scores}

    def score(self, texts: Sequence[str]) -> Row:
        """Return what needs no reference: Gen-PPL with its standard error, bits per byte, and `statistics`.

        Empty texts do not count in Gen-PPL and bits per byte. Both are NaN where all texts are empty.
        """
        scores = [score for score in self.judge.scores(texts, batch_size=self.batch_size) if score.num_tokens]
        ppl = gen_ppl(scores) if scores else Measured(math.nan, math.nan)
        return {
            "gen_ppl": ppl.mean,
            "gen_ppl_spread": ppl.spread,
            "bits_per_byte": bits_per_byte(scores) if scores else math.nan,
            **self.statistics(texts),
        }

    def statistics(self, texts: Sequence[str]) -> Row:
        """Return what needs no judge: length, diversity, repetition, the shares that parse and that are empty."""
        tokens = self.tokenizer.encode_all(texts)
        return {
            "mean_tokens": fmean(map(len, tokens)),
            "entropy": token_entropy(tokens),
            "distinct_2": distinct_n(tokens, 2),
            "repetition": self_repetition(tokens),
            "parse_share": share_that_parses(texts),
            "empty_share": fmean(not text.strip() for text in texts),
        }

    # ------------------------------------------------------------ MAUVE and BERTScore

    def mauve_against(self, reference: Reference, texts: Sequence[str]) -> Row:
        """Return both MAUVEs of the texts, or None for each number where there are too few texts."""
        if min(len(texts), len(reference)) < max(1, self.min_texts_for_mauve):
            return {name: None for kind in MAUVES for name in (kind, f"{kind}_spread")}
        return self.mauve_row(reference.features, self.features(texts))

    def mauve_row(self, real: TextFeatures, fake: TextFeatures) -> Row:
        """Return MAUVE by the last token's features and by the pooled ones, each with its spread."""
        row: Row = {}
        for name, real_features, fake_features in zip(MAUVES, real, fake, strict=True):
            row[name], row[f"{name}_spread"] = self.mauve(real_features, fake_features)
        return row

    def mauve(self, real: Tensor, fake: Tensor) -> Measured:
        """Return the mean and the standard deviation of MAUVE over the seeds of the clustering."""
        return Measured.over(mauve_by_seed(real, fake, seeds=self.mauve_seeds, num_buckets=self.mauve_buckets))

    def bert_score_row(self, references: Sequence[str], texts: Sequence[str]) -> Row:
        """Return the mean F1 of BERTScore by the embedder and by the judge's layer; None where there is none."""
        embedders = {"bert_score": self.embedder, "bert_score_judge": self.judge_layer}
        return {
            name: None if embedder is None else bert_scores(embedder, references, texts).f1.mean().item()
            for name, embedder in embedders.items()
        }


# ---------------------------------------------------------------- statistics of scores


def _with_opinions(row: Row, by_others: Mapping[str, Row]) -> Row:
    """Return the row with those numbers of other judges' rows that depend on the judge."""
    columns = [*MAUVES, *(f"{name}_spread" for name in MAUVES), "gen_ppl", "gen_ppl_spread", "bits_per_byte"]
    opinions = {judge: {name: other[name] for name in columns} for judge, other in by_others.items()}
    return {**row, OTHER_JUDGES: opinions} if opinions else row


def gen_ppl(scores: Sequence[TextScore]) -> Measured:
    """Return the perplexity per token over all texts, and its standard error from four parts of the texts.

    It is low for text that repeats itself. It also depends on the tokenization: random characters get a lower
    value than shuffled words. Report bits per byte and the entropy beside it. Texts without tokens do not count.
    The standard error of fewer than two texts is NaN.
    """
    judged = [score for score in scores if score.num_tokens]
    parts = [part for start in range(NUM_PARTS) if (part := judged[start::NUM_PARTS])]
    spread = stdev(map(perplexity, parts)) / math.sqrt(len(parts)) if len(parts) > 1 else math.nan
    return Measured(perplexity(judged), spread)


def perplexity(scores: Sequence[TextScore]) -> float:
    """Return the exponential of the mean nats per token over all texts."""
    return math.exp(_total("nats", scores) / _nonzero_total("num_tokens", scores))


def bits_per_byte(scores: Sequence[TextScore]) -> float:
    """Return the code length of all texts under the judge, which does not depend on the tokenization."""
    return metrics.bits_per_byte(_total("nats", scores), int(_nonzero_total("num_bytes", scores)))


def _total(field: str, scores: Sequence[TextScore]) -> float:
    return math.fsum(getattr(score, field) for score in scores)


def _nonzero_total(field: str, scores: Sequence[TextScore]) -> float:
    total = _total(field, scores)
    if not total:
        raise ValueError("nothing to evaluate: " + ("all texts are empty" if scores else "no texts were given"))
    return total


def bert_scores(embedder: Embedder, references: Sequence[str], texts: Sequence[str]) -> BertScore:
    """Return BERTScore of each text and its reference."""
    if len(references) != len(texts):
        raise ValueError(f"BERTScore needs pairs: there are {len(texts)} texts and {len(references)} references")
    if not texts:
        raise ValueError("there are no texts to evaluate")
    batches = [slice(start, start + PAIRS_PER_BATCH) for start in range(0, len(texts), PAIRS_PER_BATCH)]
    parts = [bert_score(embedder.embed(references[batch]), embedder.embed(texts[batch])) for batch in batches]
    return BertScore(*(torch.cat(values) for values in zip(*parts, strict=True)))


def cut_to_length(texts: Sequence[str], tokenizer: Tokenizer, *, length: int) -> list[str]:
    """Cut texts to what fits on a canvas of this length, whose first position holds the BOS token."""
    room = length - 1
    return [
        text if len(ids) <= room else tokenizer.decode(ids[:room])
        for text, ids in zip(texts, tokenizer.encode_all(texts), strict=True)
    ]
