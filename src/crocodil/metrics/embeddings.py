"""What is computed from the features that a judge gave: MAUVE and BERTScore. Knows no judge."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

Histogram: TypeAlias = NDArray[np.float64]

# The choices of Pillutla et al. (2021), "MAUVE", arXiv:2102.01454, App. C, as its reference package has them.
MAUVE_SCALE = 5.0  # c
FRONTIER_POINTS = 25
EXPLAINED_VARIANCE = 0.9
KMEANS_RESTARTS, KMEANS_ITERATIONS = 5, 500


# ---------------------------------------------------------------- MAUVE


class TextFeatures(NamedTuple):
    """Two vectors for each text. The last token's state says most of all how a text ends; the mean does not."""

    last: Float[Tensor, "N D"]
    pooled: Float[Tensor, "N D"]  # over all tokens


def mauve(
    real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], *, seed: int, num_buckets: int | None = None
) -> float:
    """MAUVE of two clouds of features, one a text: 1 where they are alike, near 0 where they do not meet.

    The value depends on the number of texts and of buckets (a tenth of the texts unless given), and on the seed of
    the clustering: compare at equal numbers, over several seeds, beside real against real.
    """
    return mauve_by_seed(real, fake, seeds=[seed], num_buckets=num_buckets)[0]


def mauve_by_seed(
    real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], *, seeds: Sequence[int], num_buckets: int | None = None
) -> list[float]:
    """MAUVE for each seed of the clustering; the main components, half of the work, are the same for all."""
    buckets = num_buckets or max(2, round(min(len(real), len(fake)) / 10))
    points = _points(real, fake)
    return [frontier_area(*_shares(points, len(fake), num_buckets=buckets, seed=seed)) for seed in seeds]


def frontier_area(real: Histogram, fake: Histogram) -> float:
    """The area under MAUVE's divergence frontier of two histograms.

    For mixtures R of both, its points are (exp(-c KL(fake || R)), exp(-c KL(real || R))), from (1, 0) to (0, 1).
    """
    weights = np.linspace(1e-6, 1 - 1e-6, FRONTIER_POINTS)[:, None]
    mixtures = weights * real + (1 - weights) * fake
    of_fake = np.exp(-MAUVE_SCALE * _divergence(fake, mixtures))
    of_real = np.exp(-MAUVE_SCALE * _divergence(real, mixtures))
    return float(np.trapezoid(np.r_[0, of_real, 1], -np.r_[1, of_fake, 0]))


def _divergence(histogram: Histogram, mixtures: Histogram) -> Histogram:
    """KL(histogram || R) for each mixture R."""
    seen = histogram > 0
    return (histogram[seen] * np.log(histogram[seen] / mixtures[:, seen])).sum(axis=1)


def quantise(
    real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"], *, num_buckets: int, seed: int
) -> tuple[Histogram, Histogram]:
    """The share of real and of fake features in each cluster: k-means on the main components of unit vectors."""
    return _shares(_points(real, fake), len(fake), num_buckets=num_buckets, seed=seed)


def _points(real: Float[Tensor, "N D"], fake: Float[Tensor, "M D"]) -> NDArray[np.float32]:
    """What is clustered: the fake ones first."""
    together = F.normalize(torch.cat([fake, real]).double().cpu(), dim=1)
    return main_components(together, share=EXPLAINED_VARIANCE).float().numpy()


def _shares(
    points: NDArray[np.float32], num_fake: int, *, num_buckets: int, seed: int
) -> tuple[Histogram, Histogram]:
    try:
        import faiss
    except ImportError as missing:
        raise ValueError("MAUVE's clusters need faiss: pip install 'crocodil[eval]'") from missing
    kmeans = faiss.Kmeans(
        points.shape[1], num_buckets, niter=KMEANS_ITERATIONS, nredo=KMEANS_RESTARTS, seed=seed,
        min_points_per_centroid=1,  # says nothing about few points, computes the same
    )  # fmt: skip
    kmeans.train(points)
    cluster = kmeans.assign(points)[1]
    fakes, reals = (np.bincount(part, minlength=num_buckets) for part in np.split(cluster, [num_fake]))
    return reals / reals.sum(), fakes / fakes.sum()


def main_components(features: Float[Tensor, "N D"], *, share: float) -> Float[Tensor, "N C"]:
    """The features in the fewest principal components that hold this share of their variance."""
    centred = features - features.mean(dim=0)
    variances, axes = torch.linalg.eigh(centred.T @ centred)  # far less work than the SVD of all texts
    variances, axes = variances.clamp_min(0).flip(0), axes.flip(1)
    held = variances.cumsum(0) / variances.sum()
    count = int((held < share).sum()) + 1
    return centred @ axes[:, :count]


# ---------------------------------------------------------------- BERTScore


@dataclass(frozen=True)
class EmbeddedTexts:
    """The tokens of a batch of texts as a model embeds them."""

    vectors: Float[Tensor, "B N D"]
    present: Bool[Tensor, "B N"]  # not filling: may be matched
    counted: Bool[Tensor, "B N"]  # present, and no special token: asks for a match


class BertScore(NamedTuple):
    precision: Float[Tensor, "B"]
    recall: Float[Tensor, "B"]
    f1: Float[Tensor, "B"]


def bert_score(reference: EmbeddedTexts, found: EmbeddedTexts) -> BertScore:
    """How close every token's best match in the other text is, as a cosine (Zhang et al., 2020, arXiv:1904.09675).

    Neither weighted by rarity nor rescaled. Where one text is empty, all is 0.
    """
    cosine = _directions(found) @ _directions(reference).transpose(1, 2)
    neither_empty = found.counted.any(dim=1) & reference.counted.any(dim=1)
    precision = _mean_over(cosine.amax(dim=2), found.counted) * neither_empty
    recall = _mean_over(cosine.amax(dim=1), reference.counted) * neither_empty
    both = precision + recall
    return BertScore(precision, recall, 2 * precision * recall / both.where(both != 0, 1))


def _directions(texts: EmbeddedTexts) -> Float[Tensor, "B N D"]:
    return F.normalize(texts.vectors.float(), dim=-1) * texts.present[..., None]


def _mean_over(values: Float[Tensor, "B N"], counted: Bool[Tensor, "B N"]) -> Float[Tensor, "B"]:
    return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
