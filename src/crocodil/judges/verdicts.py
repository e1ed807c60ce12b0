"""A number with everything that it depends on (decision D12), and the usual ones of a set of samples at once."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from crocodil.judges.cache import Cached
from crocodil.judges.language_model import LanguageModel
from crocodil.judges.statistics import bits_per_byte, gen_ppl, judge_mauve, mauve_ceiling, with_spread
from crocodil.metrics import token_entropy


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the judged texts came about."""

    temperature: float
    precision: str  # of the sampler's networks, e.g. "bfloat16"
    seed: int
    commit: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One number, complete."""

    metric: str
    mean: float
    spread: float  # a standard deviation
    judge: str
    num_samples: int
    sampling: Sampling

    def row(self) -> dict[str, str | int | float]:
        """Flat, to be written down."""
        values = asdict(self)
        sampling = values.pop("sampling")
        return {**values, **sampling}


def judge_samples(
    texts: Sequence[str],
    references: Sequence[str],
    judge: LanguageModel | Cached,
    sampling: Sampling,
    *,
    batch_size: int = 8,
    seeds: Sequence[int] = range(5),
) -> list[Verdict]:
    """Gen-PPL, what keeps it honest beside it, and MAUVE against the references, by both kinds of features.

    Where there are twice as many references as texts, the ceiling of MAUVE comes with it.
    """
    scores = [score for score in judge.scores(texts, batch_size=batch_size) if score.num_tokens]
    real, fake = (judge.both_features(some, batch_size=batch_size) for some in (references, texts))
    found = {
        "gen_ppl": gen_ppl(scores),
        "bits_per_byte": with_spread(bits_per_byte, scores),
        "token_entropy": with_spread(token_entropy, judge.tokens(texts)),
        "mauve": judge_mauve(real.last, fake.last, seeds=seeds),
        "mauve_pooled": judge_mauve(real.pooled, fake.pooled, seeds=seeds),
    }
    if len(references) >= 2 * len(texts):
        found["mauve_ceiling"] = mauve_ceiling(real.last, count=len(texts), seeds=seeds)
        found["mauve_pooled_ceiling"] = mauve_ceiling(real.pooled, count=len(texts), seeds=seeds)
    return [
        Verdict(
            metric=metric, mean=value.mean, spread=value.spread, judge=judge.name, num_samples=len(texts),
            sampling=sampling,
        )
        for metric, value in found.items()
    ]  # fmt: skip
