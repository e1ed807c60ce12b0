"""MAUVE and BERTScore, computed from features. This module loads no judge."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

Histogram: TypeAlias = NDArray[np.float64]

# The values of Pillutla et al. (2021), "MAUVE", arXiv:2102.01454, App. C, and of its reference package.
MAUVE_SCALE = 5.0  # c
FRONTIER_POINTS = 25
EXPLAINED_VARIANCE = 0.9
KMEANS_RESTARTS, KMEANS_ITERATIONS = 5, 500


# ---------------------------------------------------------------- MAUVE


class TextFeatures(NamedTuple):
    """Two feature vectors per text. The state of the last token depends mostly on the end of the text."""

    last: Float[Tensor, "N D"]  # the state of the last token
    pooled: Float[Tensor, "N D"]  # the mean over all tokens


def mauve(
    real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], *, seed: int, num_buckets: int | None = None
) -> float:
    """Return MAUVE of two sets of feature vectors: 1 for equal distributions, near 0 for disjoint ones.

    The value depends on the number of texts, on the number of clusters (by default a tenth of the texts) and on
    the seed of the clustering. Compare only at equal numbers, over several seeds; report real against real too.
    """
    return mauve_by_seed(real, fake, seeds=[seed], num_buckets=num_buckets)[0]


def mauve_by_seed(
    real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], *, seeds: Sequence[int], num_buckets: int | None = None
) -> list[float]:
    """Return MAUVE for each seed of the clustering. The principal components are computed once."""
    _check_features(real, fake, num_buckets or 2)
    buckets = num_buckets or max(2, round(min(len(real), len(fake)) / 10))
    points = _points(real, fake)
    return [frontier_area(*_shares(points, len(fake), num_buckets=buckets, seed=seed)) for seed in seeds]


def _check_features(real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], min_texts: int) -> None:
    if (count := min(len(real), len(fake))) < min_texts:
        raise ValueError(
            f"MAUVE with {min_texts} clusters needs at least {min_texts} texts on each side: there are {count}; "
            f"give more samples or fewer clusters (num_buckets)"
        )
    for name, features in {"real": real, "fake": fake}.items():
        if bad := (~features.isfinite()).any(dim=1).nonzero()[:, 0].tolist():
            raise ValueError(f"{len(bad)} of the {name} features are not finite, first that of text {bad[0]}")


def frontier_area(real: Histogram, fake: Histogram) -> float:
    """Return the area under MAUVE's divergence frontier of two histograms.

    For mixtures R of both, its points are (exp(-c KL(fake || R)), exp(-c KL(real || R))), from (1, 0) to (0, 1).
    """
    weights = np.linspace(1e-6, 1 - 1e-6, FRONTIER_POINTS)[:, None]
    mixtures = weights * real + (1 - weights) * fake
    of_fake = np.exp(-MAUVE_SCALE * _divergence(fake, mixtures))
    of_real = np.exp(-MAUVE_SCALE * _divergence(real, mixtures))
    return float(np.trapezoid(np.r_[0, of_real, 1], -np.r_[1, of_fake, 0]))


def _divergence(histogram: Histogram, mixtures: Histogram) -> Histogram:
    """Return KL(histogram || R) for each mixture R."""
    support = histogram > 0
    return (histogram[support] * np.log(histogram[support] / mixtures[:, support])).sum(axis=1)


def quantise(
    real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], *, num_buckets: int, seed: int
) -> tuple[Histogram, Histogram]:
    """Return the shares of real and of fake features per k-means cluster of their unit vectors."""
    return _shares(_points(real, fake), len(fake), num_buckets=num_buckets, seed=seed)


def _points(real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"]) -> NDArray[np.float32]:
    """Return the points to cluster, the fake ones first."""
    unit_vectors = F.normalize(torch.cat([fake, real]).double().cpu(), dim=1)
    return principal_components(unit_vectors, share=EXPLAINED_VARIANCE).float().numpy()


def _shares(
    points: NDArray[np.float32], num_fake: int, *, num_buckets: int, seed: int
) -> tuple[Histogram, Histogram]:
    try:
        import faiss
    except ImportError as missing:
        raise ValueError("MAUVE's clusters need faiss: pip install 'crocodil[eval]'") from missing
    kmeans = faiss.Kmeans(
        points.shape[1], num_buckets, niter=KMEANS_ITERATIONS, nredo=KMEANS_RESTARTS, seed=seed,
        min_points_per_centroid=1,  # only silences a warning
    )  # fmt: skip
    with _one_thread(faiss):
        kmeans.train(points)
        cluster = kmeans.assign(points)[1]
    fakes, reals = (np.bincount(part, minlength=num_buckets) for part in np.split(cluster, [num_fake]))
    return reals / reals.sum(), fakes / fakes.sum()


@contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    """Cluster in one thread.

    Threads wait for each other after every short step. For a few thousand points this gains little on idle cores,
    and takes twice as long where other processes need the cores too.
    """
    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(num_threads)


def principal_components(features: Float[Tensor, "N D"], *, share: float) -> Float[Tensor, "N C"]:
    """Project the features on the fewest principal components that explain this share of their variance."""
    centred = features - features.mean(dim=0)
    variances, axes = torch.linalg.eigh(centred.T @ centred)  # far cheaper than the SVD of all texts
    variances, axes = variances.clamp_min(0).flip(0), axes.flip(1)
    explained = variances.cumsum(0) / variances.sum()
    count = int((explained < share).sum()) + 1
    return centred @ axes[:, :count]


# ---------------------------------------------------------------- BERTScore


@dataclass(frozen=True)
class EmbeddedTexts:
    """The token embeddings of a batch of texts."""

    vectors: Float[Tensor, "B N D"]
    present: Bool[Tensor, "B N"]  # not padding: can be matched
    counted: Bool[Tensor, "B N"]  # neither padding nor a special token: counts in the score


class BertScore(NamedTuple):
    precision: Float[Tensor, "B"]
    recall: Float[Tensor, "B"]
    f1: Float[Tensor, "B"]


def bert_score(reference: EmbeddedTexts, candidate: EmbeddedTexts) -> BertScore:
    """Return BERTScore: the mean cosine of each token to its best match in the other text.

    Zhang et al. (2020), arXiv:1904.09675, without idf weights and without rescaling. If either text of a pair is
    empty, its scores are 0.
    """
    cosine = _unit_vectors(candidate) @ _unit_vectors(reference).transpose(1, 2)
    neither_empty = candidate.counted.any(dim=1) & reference.counted.any(dim=1)
    precision = _mean_over(cosine.amax(dim=2), candidate.counted) * neither_empty
    recall = _mean_over(cosine.amax(dim=1), reference.counted) * neither_empty
    total = precision + recall
    return BertScore(precision, recall, 2 * precision * recall / total.where(total != 0, 1))


def _unit_vectors(texts: EmbeddedTexts) -> Float[Tensor, "B N D"]:
    return F.normalize(texts.vectors.float(), dim=-1) * texts.present[..., None]


def _mean_over(values: Float[Tensor, "B N"], counted: Bool[Tensor, "B N"]) -> Float[Tensor, "B"]:
    return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
