"""The headline number, as a function: how many times cheaper a method is at the quality of the base (Sec. 5).

Quality is three things at once. Gen-PPL alone is best for text that repeats itself, which the entropy shows; below
that of real text it is no merit.

The paper holds a method against the base with one call a token. A base that is as good with fewer calls gives part
of that factor away for nothing, so the headline here is held against the base at its own best number of calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import NamedTuple


class Measured(NamedTuple):
    """A mean, and the standard deviation from run to run."""

    mean: float
    spread: float

    @classmethod
    def over(cls, values: Sequence[float]) -> "Measured":
        """Of several runs: other seeds, other samples, other clusterings."""
        if len(values) < 2:
            raise ValueError("a spread takes at least two runs")
        return cls(fmean(values), stdev(values))


@dataclass(frozen=True, kw_only=True)
class QualityPoint:
    """A sampler at one number of calls: what it cost, and how good its text was."""

    calls: int  # of the demasker
    nfe: float  # the whole cost, in the unit of the comparison
    mauve: Measured  # higher is better
    gen_ppl: Measured  # lower is better
    entropy: float  # of tokens; best where real text has it


NOT_KNOWN = Measured(0.0, 0.0)  # of real text's Gen-PPL: below any other


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
    """How many times cheaper the method's cheapest point is that matches the base at `calls`; None if none does.

    The paper takes one call a token for `calls`. Where the base itself stops improving earlier, part of the factor
    belongs to it: `speedup_at_matched_quality(base, base, ...)` says how much.
    """
    target = _measured_at(base, calls)
    matching = [point for point in method if matches(point, target, real_entropy, real_gen_ppl)]
    if not matching:
        return None
    cheapest = min(matching, key=lambda point: point.nfe)
    return SpeedUp(target.nfe / cheapest.nfe, target, cheapest)


def speedup_at_own_best(
    base: Sequence[QualityPoint],
    method: Sequence[QualityPoint],
    *,
    calls: int,
    real_entropy: float,
    real_gen_ppl: Measured = NOT_KNOWN,
) -> SpeedUp | None:
    """The headline: the same against the base at its own best, which is found from one call a token, `calls`."""
    own = own_best(base, calls=calls, real_entropy=real_entropy, real_gen_ppl=real_gen_ppl)
    return speedup_at_matched_quality(
        base, method, calls=own.calls, real_entropy=real_entropy, real_gen_ppl=real_gen_ppl
    )


def own_best(
    base: Sequence[QualityPoint], *, calls: int, real_entropy: float, real_gen_ppl: Measured = NOT_KNOWN
) -> QualityPoint:
    """The base with the fewest calls at which it is as good as it gets, by all three measures.

    First, the points that match the base at `calls`, one call a token; second, the highest MAUVE among them;
    third, the fewest calls that match this one. More calls than that buy the base nothing that is measured.
    """
    last = _measured_at(base, calls)
    as_good = [point for point in base if matches(point, last, real_entropy, real_gen_ppl)]
    top = max(as_good, key=lambda point: point.mauve.mean)
    as_good_as_top = [point for point in base if matches(point, top, real_entropy, real_gen_ppl)]
    return min(as_good_as_top, key=lambda point: point.calls)


def matches(
    point: QualityPoint, target: QualityPoint, real_entropy: float, real_gen_ppl: Measured = NOT_KNOWN
) -> bool:
    """No worse than the target in MAUVE and in Gen-PPL, and an entropy no further from that of real text.

    "No worse" allows for the spread of the target, not of the point: noise is no merit. A target that is more
    fluent than real text is matched, in Gen-PPL, by what is as fluent as real text.
    """
    asked = replace(target, gen_ppl=max(target.gen_ppl, real_gen_ppl))
    return (
        point.mauve.mean >= asked.mauve.mean - asked.mauve.spread
        and point.gen_ppl.mean <= asked.gen_ppl.mean + asked.gen_ppl.spread
        and abs(point.entropy - real_entropy) <= abs(asked.entropy - real_entropy)
    )


def _measured_at(base: Sequence[QualityPoint], calls: int) -> QualityPoint:
    found = next((point for point in base if point.calls == calls), None)
    if found is None:
        raise ValueError(f"the base was not measured at {calls} calls: {sorted(point.calls for point in base)}")
    return found
