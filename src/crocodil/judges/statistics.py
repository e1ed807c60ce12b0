"""From what judges gave to the numbers that are reported: Gen-PPL, bits per byte, MAUVE, each with its spread.

Needs no judge and no accelerator: scores and features may come from another machine.
"""

import math
from collections.abc import Callable, Sequence
from statistics import stdev
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil import metrics
from crocodil.judges.language_model import TextScore
from crocodil.metrics import Measured
from crocodil.seeding import generator_for

T = TypeVar("T")
NUM_PARTS = 4  # of the texts, from which the spread of Gen-PPL is estimated


# ---------------------------------------------------------------- likelihood


def gen_ppl(scores: Sequence[TextScore]) -> Measured:
    """Perplexity a token over all texts, and its standard error, from that of four parts of them.

    It is low for text that repeats itself, and it depends on how a text splits into tokens: random characters have
    a better one than shuffled words. Report bits per byte and the entropy beside it. Texts without a token do not
    count. The spread of fewer than two texts is not a number.
    """
    judged = [score for score in scores if score.num_tokens]
    parts = [part for start in range(NUM_PARTS) if (part := judged[start::NUM_PARTS])]
    spread = stdev(map(perplexity, parts)) / math.sqrt(len(parts)) if len(parts) > 1 else math.nan
    return Measured(perplexity(judged), spread)


def perplexity(scores: Sequence[TextScore]) -> float:
    """Of all tokens together: exp of all nats by their number."""
    return math.exp(_total("nats", scores) / _counted("num_tokens", scores))


def bits_per_byte(scores: Sequence[TextScore]) -> float:
    """The code length of all texts under the judge, whatever tokens they split into."""
    return metrics.bits_per_byte(_total("nats", scores), int(_counted("num_bytes", scores)))


def with_spread(
    statistic: Callable[[Sequence[T]], float], texts: Sequence[T], *, num_bootstrap: int = 200, seed: int = 0
) -> Measured:
    """A statistic of all texts, and its standard deviation over texts drawn again with replacement.

    A text is whatever the statistic takes: a score for `bits_per_byte`, tokens for an entropy.
    """
    if len(texts) < 2:
        raise ValueError(f"a spread takes at least two texts: there are {len(texts)}")
    generator = generator_for("bootstrap of texts", seed)
    draws = torch.randint(len(texts), (num_bootstrap, len(texts)), generator=generator)
    values = [statistic([texts[i] for i in draw]) for draw in draws.tolist()]
    return Measured(statistic(texts), stdev(values))


def _total(field: str, scores: Sequence[TextScore]) -> float:
    return math.fsum(getattr(score, field) for score in scores)


def _counted(field: str, scores: Sequence[TextScore]) -> float:
    total = _total(field, scores)
    if not total:
        raise ValueError(
            "there is nothing to judge: " + ("all texts are empty" if scores else "no texts were given")
        )
    return total


# ---------------------------------------------------------------- MAUVE


def judge_mauve(
    real_features: Float[Tensor, "N D"],
    fake_features: Float[Tensor, "M E"],
    *,
    seeds: Sequence[int] = range(5),
    num_bootstrap: int = 2,
    num_buckets: int | None = None,
) -> Measured:
    """MAUVE at equal numbers of both, over clusterings and over subsets of the larger side.

    For every seed, `num_bootstrap` subsets of the references are drawn, as large as the samples are many, without
    replacement: where there are no more references than samples, the spread is that of the clustering alone. The
    value depends on the number of texts and of clusters: give `mauve_ceiling` at the same numbers beside it.
    """
    count = min(len(real_features), len(fake_features))
    _check_features(real_features, "real", count, num_buckets)
    _check_features(fake_features, "fake", count, num_buckets)
    if real_features.shape[1] != fake_features.shape[1]:
        widths = f"{real_features.shape[1]} and {fake_features.shape[1]}"
        raise ValueError(f"real and fake features are {widths} wide: take both from the same judge")
    values = []
    for seed in seeds:
        for draw in range(num_bootstrap if len(real_features) != len(fake_features) else 1):
            real = _drawn(real_features, count, "real", seed, draw)
            fake = _drawn(fake_features, count, "fake", seed, draw)
            values.append(metrics.mauve(real, fake, seed=seed, num_buckets=num_buckets))
    return Measured.over(values)


def mauve_ceiling(
    real_features: Float[Tensor, "N D"],
    *,
    count: int,
    seeds: Sequence[int] = range(5),
    num_buckets: int | None = None,
) -> Measured:
    """Real against real: what MAUVE gives at best for `count` texts, from two halves that share none."""
    if len(real_features) < 2 * count:
        raise ValueError(
            f"the ceiling of MAUVE for {count} texts takes {2 * count} real ones: there are {len(real_features)}"
        )
    _check_features(real_features, "real", count, num_buckets)
    values = []
    for seed in seeds:
        one, other = _shuffled(real_features, "ceiling", seed)[: 2 * count].split(count)
        values.append(metrics.mauve(one, other, seed=seed, num_buckets=num_buckets))
    return Measured.over(values)


def _drawn(features: Float[Tensor, "N D"], count: int, *key: str | int) -> Float[Tensor, "C D"]:
    """Shuffled only where some must be left out: a whole set is clustered as it is."""
    return features if len(features) == count else _shuffled(features, *key)[:count]


def _shuffled(features: Float[Tensor, "N D"], *key: str | int) -> Float[Tensor, "N D"]:
    return features[torch.randperm(len(features), generator=generator_for("features", *key))]


def _check_features(features: Float[Tensor, "N D"], which: str, count: int, num_buckets: int | None) -> None:
    needed = num_buckets or 2
    if count < needed:
        raise ValueError(
            f"MAUVE with {needed} clusters takes at least {needed} texts on each side: there are {count}; "
            f"give more samples or fewer clusters (num_buckets)"
        )
    bad = (~features.isfinite()).any(dim=1).nonzero()[:, 0].tolist()
    if bad:
        raise ValueError(f"{len(bad)} of the {which} features are not finite, the first is that of text {bad[0]}")
