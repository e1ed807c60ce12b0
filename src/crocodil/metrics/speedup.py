"""The headline number: how many times cheaper a method is than the base at the same quality (Sec. 5).

Quality means MAUVE, Gen-PPL and entropy together. Gen-PPL alone is best for text that repeats itself, which the
entropy shows. Methods need only match the Gen-PPL of real programs.

The paper compares a method with the base at one call per token. If the base is as good with fewer calls, part of
that speed-up is not the method's. The headline here compares with the base at its own best number of calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import NamedTuple


class Measured(NamedTuple):
    """A mean and its spread: the standard deviation from run to run, or a standard error."""

    mean: float
    spread: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Measured":
        """Return the mean and the standard deviation over several runs, such as other seeds or clusterings."""
        if len(values) < 2:
            raise ValueError("a spread needs at least two runs")
        return cls(fmean(values), stdev(values))


@dataclass(frozen=True, kw_only=True)
class QualityPoint:
    """The cost and the quality of a sampler at one number of calls."""

    calls: int  # of the demasker
    nfe: float  # the total cost, in the unit of the comparison
    mauve: Measured  # higher is better
    gen_ppl: Measured  # lower is better
    entropy: float  # of tokens; best when equal to that of real text


NOT_KNOWN = Measured(0.0, 0.0)  # stands for an unknown Gen-PPL of real text: lower than any other


class SpeedUp(NamedTuple):
    factor: float
    base: QualityPoint
    method: QualityPoint


def speedup_at_matched_quality(
    base: Sequence[QualityPoint],
    method: Sequence[QualityPoint],
    *,
    calls: int,
    real_entropy: float,
    real_gen_ppl: Measured = NOT_KNOWN,
) -> SpeedUp | None:
    """Return the speed-up of the method's cheapest point that matches the base at `calls`; None if none matches.

    In the paper, `calls` is one call per token. If the base stops improving earlier, part of the factor belongs to
    the base; `speedup_at_matched_quality(base, base, ...)` returns that part.
    """
    target = _point_at(base, calls)
    matching = [point for point in method if matches(point, target, real_entropy, real_gen_ppl)]
    if not matching:
        return None
    cheapest = min(matching, key=lambda point: point.nfe)
    return SpeedUp(target.nfe / cheapest.nfe, target, cheapest)


def own_best(
    base: Sequence[QualityPoint], *, calls: int, real_entropy: float, real_gen_ppl: Measured = NOT_KNOWN
) -> QualityPoint:
    """Return the base at the fewest calls at which it is as good as it gets, by all three measures.

    First take the points that match the base at `calls`, one call per token; then the highest MAUVE among them;
    then the fewest calls that match this one. More calls improve nothing that is measured.
    """
    full = _point_at(base, calls)
    as_good = [point for point in base if matches(point, full, real_entropy, real_gen_ppl)]
    top = max(as_good, key=lambda point: point.mauve.mean)
    as_good_as_top = [point for point in base if matches(point, top, real_entropy, real_gen_ppl)]
    return min(as_good_as_top, key=lambda point: point.calls)


def matches(
    point: QualityPoint, target: QualityPoint, real_entropy: float, real_gen_ppl: Measured = NOT_KNOWN
) -> bool:
    """Whether a point is no worse in MAUVE and Gen-PPL, and its entropy no further from that of real text.

    "No worse" allows for the spread of the target, not for that of the point: a noisy point gains nothing. If the
    target has a lower Gen-PPL than real text, the point need only match real text.
    """
    required = replace(target, gen_ppl=max(target.gen_ppl, real_gen_ppl))
    return (
        point.mauve.mean >= required.mauve.mean - required.mauve.spread
        and point.gen_ppl.mean <= required.gen_ppl.mean + required.gen_ppl.spread
        and abs(point.entropy - real_entropy) <= abs(required.entropy - real_entropy)
    )


def _point_at(base: Sequence[QualityPoint], calls: int) -> QualityPoint:
    point = next((point for point in base if point.calls == calls), None)
    if point is None:
        measured = sorted(point.calls for point in base)
        raise ValueError(f"the base was not measured at {calls} calls, only at {measured}")
    return point
