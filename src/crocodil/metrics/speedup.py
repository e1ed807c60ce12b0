"""The headline number, as a function: how many times cheaper a method is at the quality of the base (Sec. 5).

Quality is three things at once. Gen-PPL alone is best for text that repeats itself, which the entropy shows; below
that of real text it is no merit.
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
    belongs to it: `speedup_at_matched_quality(base, base, ...)` says how much. A base that is more fluent than
    real text is matched, in Gen-PPL, by what is as fluent as real text.
    """
    target = next((point for point in base if point.calls == calls), None)
    if target is None:
        raise ValueError(f"the base was not measured at {calls} calls: {sorted(point.calls for point in base)}")
    asked = replace(target, gen_ppl=max(target.gen_ppl, real_gen_ppl))
    matching = [point for point in method if matches(point, asked, real_entropy=real_entropy)]
    if not matching:
        return None
    cheapest = min(matching, key=lambda point: point.nfe)
    return SpeedUp(target.nfe / cheapest.nfe, target, cheapest)


def matches(point: QualityPoint, target: QualityPoint, *, real_entropy: float) -> bool:
    """No worse than the target in MAUVE and in Gen-PPL, and an entropy no further from that of real text.

    "No worse" allows for the spread of the target, not of the point: noise is no merit.
    """
    return (
        point.mauve.mean >= target.mauve.mean - target.mauve.spread
        and point.gen_ppl.mean <= target.gen_ppl.mean + target.gen_ppl.spread
        and abs(point.entropy - real_entropy) <= abs(target.entropy - real_entropy)
    )
