"""Is drawing registers again worth its cost? ConWithinDisc beside ConThenDisc where both cost the same."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from crocodil.metrics import Measured
from crocodil.pipeline import Method
from crocodil.reproduce.document import Block, Table, Text, number
from crocodil.reproduce.store import Row, select

COST = "flop_nfe"


class Difference(NamedTuple):
    """ConWithinDisc less ConThenDisc at one cost, each between its two nearest points."""

    cost: float
    mauve: Measured
    gen_ppl: Measured

    @property
    def is_no_worse(self) -> bool:
        """In neither measure worse by more than the spread."""
        return self.mauve.mean >= -self.mauve.spread and self.gen_ppl.mean <= self.gen_ppl.spread


def differences(rows: Sequence[Row]) -> list[Difference]:
    """At the powers of two that lie in the range of both curves."""
    within, then = (_known(rows, method) for method in (Method.CON_WITHIN_DISC, Method.CON_THEN_DISC))
    if not within or not then:
        return []
    least, most = max(within[0][COST], then[0][COST]), min(within[-1][COST], then[-1][COST])
    return [
        Difference(cost, *(_less(at(within, name, cost), at(then, name, cost)) for name in ("mauve", "gen_ppl")))
        for cost in (2.0**power for power in range(math.ceil(math.log2(least)), math.floor(math.log2(most)) + 1))
    ]


def _known(rows: Sequence[Row], method: Method) -> list[Row]:
    own = [row for row in select(rows, method=str(method)) if row["gen_ppl"] is not None]
    return sorted(own, key=lambda row: row[COST])


def at(curve: Sequence[Row], name: str, cost: float) -> Measured:
    """A measure at a cost within the curve: linear between two points in the logarithm of the cost."""
    right = next(place for place, row in enumerate(curve) if row[COST] >= cost)
    after, before = curve[right], curve[max(0, right - 1)]
    width = math.log(after[COST] / before[COST])
    share = math.log(cost / before[COST]) / width if width else 0.0

    def between(column: str) -> float:
        return (1 - share) * (before[column] or 0.0) + share * (after[column] or 0.0)

    return Measured(between(name), between(f"{name}_spread"))


def _less(first: Measured, second: Measured) -> Measured:
    return Measured(first.mean - second.mean, math.hypot(first.spread, second.spread))


# ---------------------------------------------------------------- ink


def show(rows: Sequence[Row], length: int) -> list[Block]:
    """Nothing where one of the two was not measured."""
    found = differences(rows)
    if not found:
        return []
    good = sum(one.is_no_worse for one in found)
    heads = ["NFE by FLOPs", "MAUVE, difference", "Gen-PPL, difference", "no worse"]
    body = [
        [number(one.cost), _signed(one.mauve), _signed(one.gen_ppl), "yes" if one.is_no_worse else "no"]
        for one in found
    ]
    return [
        Table(heads, body, f"ConWithinDisc less ConThenDisc at equal cost, length {length}"),
        Text(
            f"""Between measured points the curves are taken as straight in the logarithm of the cost.
            ConWithinDisc is no worse, in neither measure by more than the spread of both, at {good} of
            {len(found)} costs. A difference within its spread says nothing either way, and the spread is that of
            clusterings and of samples, not of models trained again. Costs below the cheapest ConWithinDisc,
            which ConThenDisc alone can afford, are not compared."""
        ),
    ]


def _signed(value: Measured) -> str:
    return f"{value.mean:+.3f} ± {value.spread:.3f}"
