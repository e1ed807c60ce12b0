"""Compare methods: speed-ups at matched quality, and ConWithinDisc with ConThenDisc at equal cost."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from crocodil.metrics import Measured, QualityPoint, SpeedUp, own_best, speedup_at_matched_quality
from crocodil.pipeline import Method
from crocodil.reproduce import published
from crocodil.reproduce.document import Block, Table, Text, number
from crocodil.reproduce.experiments.quality import ORACLE, display_name
from crocodil.reproduce.store import Row, distinct, select

COST = "flop_nfe"
UNITS = {"flops": COST, "seconds": "seconds", "nfe": "nfe"}  # units of a speed-up, and their columns
UNIT_HEADS = ("by FLOPs", "by time", "by the paper's NFE")


# ---------------------------------------------------------------- speed-ups at matched quality


def has_base(rows: Sequence[Row]) -> bool:
    return bool(select(rows, method=str(Method.BASE)))


def speedups(
    rows: Sequence[Row], real: Row, *, unit: str = COST, calls: int | None = None
) -> dict[str, SpeedUp | None]:
    """Return the speed-up of each method over the base with `calls`, by default its best number of calls.

    There are none if the base was not measured.
    """
    if not has_base(rows):
        return {}
    calls = own_best_calls(rows, real) if calls is None else calls
    measured = [row for row in rows if row[unit] is not None]
    curves = {
        method: [_point(row, unit) for row in select(measured, method=method)]
        for method in distinct(rows, "method")
        if method != ORACLE
    }
    if calls not in [point.calls for point in curves[Method.BASE]]:  # the base was not timed
        return dict.fromkeys(curves)
    return {
        method: speedup_at_matched_quality(curves[Method.BASE], curve, calls=calls, **_real_quality(real))
        for method, curve in curves.items()
    }


def own_best_calls(rows: Sequence[Row], real: Row) -> int:
    """Return the fewest calls at which the base matches its own best point (`metrics.own_best`)."""
    base = [_point(row, COST) for row in select(rows, method=str(Method.BASE))]
    return own_best(base, calls=most_calls(rows), **_real_quality(real)).calls


def most_calls(rows: Sequence[Row]) -> int:
    """Return the most calls at which the base was measured: one per token, unless the protocol has a limit."""
    return max(row["calls"] for row in select(rows, method=str(Method.BASE)))


def speedups_by_mauve(rows: Sequence[Row], real: Row) -> dict[str, SpeedUp | None]:
    """Return the speed-ups where MAUVE alone must match: all rows get the other measures of real programs."""
    equal = {name: real[name] for name in ("gen_ppl", "gen_ppl_spread", "entropy")}
    return speedups([{**row, **equal} for row in rows], real)


def speedups_by_other_rules(rows: Sequence[Row], real: Row) -> dict[str, dict[str, SpeedUp | None]]:
    """Return the speed-ups by FLOPs, by rule and method: the rule of matching, and others beside it.

    They show what the number depends on. All but two rules compare with the base at its best by the first one.
    """
    best = own_best_calls(rows, real)
    (base,) = select(rows, method=str(Method.BASE), calls=best)
    count, share = base["num_samples"], base["parse_share"]
    least = share - math.sqrt(share * (1 - share) / count)  # its standard error
    parsing = [row for row in rows if row["method"] == Method.BASE or row["parse_share"] >= least]
    pooled = [{**row, **{f"mauve{end}": row[f"mauve_pooled{end}"] for end in ("", "_spread")}} for row in rows]
    return {
        "the rule": speedups(rows, real),
        "pooled MAUVE instead of MAUVE": speedups(pooled, real, calls=best),
        "without the spread of the base's MAUVE": speedups(
            [{**row, "mauve_spread": 0.0} for row in rows], real, calls=best
        ),
        "MAUVE alone, the base at its best by MAUVE": speedups_by_mauve(rows, real),
        "the base at half of its calls": speedups(rows, real, calls=best // 2),
        "also as many samples that parse": speedups(parsing, real, calls=best),
    }


def speedups_by_unit(
    rows: Sequence[Row], real: Row, *, calls: int | None = None
) -> dict[str, dict[str, SpeedUp | None]]:
    """Return the speed-ups by method, then by unit; `calls` as in `speedups`."""
    by_unit = {unit: speedups(rows, real, unit=column, calls=calls) for unit, column in UNITS.items()}
    return {method: {unit: by_unit[unit][method] for unit in UNITS} for method in by_unit["flops"]}


def factor_of(speedup: SpeedUp | None) -> float | None:
    return None if speedup is None else speedup.factor


def _real_quality(real: Row) -> dict[str, Any]:
    return {
        "real_entropy": real["entropy"],
        "real_gen_ppl": Measured(real["gen_ppl"], real["gen_ppl_spread"] or 0.0),
    }


def _point(row: Row, unit: str) -> QualityPoint:
    """Return a row as a point of quality and cost; a Gen-PPL that could not be measured counts as infinite."""
    gen_ppl = math.inf if row["gen_ppl"] is None else row["gen_ppl"]
    return QualityPoint(
        calls=row["calls"],
        nfe=row[unit],
        mauve=Measured(row["mauve"], row["mauve_spread"]),
        gen_ppl=Measured(gen_ppl, row["gen_ppl_spread"] or 0.0),
        entropy=row["entropy"],
    )


def speedup_tables(rows: Sequence[Row], real: Row) -> list[Table]:
    """Return two tables: the base at its best number of calls, and at one call per token as in the paper.

    There is no second table if the base was not measured at one call per token, and none if it was not measured.
    """
    if not has_base(rows):
        return []
    length, by_mauve, at_best = real["length"], speedups_by_mauve(rows, real), speedups_by_unit(rows, real)
    against_best = Table(
        ["", *UNIT_HEADS, "by FLOPs, MAUVE only"],
        [
            [display_name(method), *_cells(by_unit), _cell(by_mauve[method])]
            for method, by_unit in at_best.items()
            if method != Method.BASE
        ],
        f"Speed-up over the base at its best number of calls ({own_best_calls(rows, real)}), length {length}",
    )
    if most_calls(rows) < length:
        return [against_best]
    per_token = speedups_by_unit(rows, real, calls=length)
    against_most = Table(
        ["", *UNIT_HEADS, "by the paper's NFE, published"],
        [
            [display_name(method), *_cells(by_unit), _times(_published_factor(method, length))]
            for method, by_unit in per_token.items()
        ],
        f"Speed-up over the base at one call per token ({length}), length {length}",
    )
    return [against_best, against_most]


def speedup_caption(rows: Sequence[Row], real: Row) -> str:
    """Return the speed-ups of all methods in all units as one sentence."""
    if not has_base(rows):
        return "No base was measured."
    factors = [
        f"{display_name(method)} "
        + ", ".join(
            f"{_times(factor_of(one))} {unit}" for one, unit in zip(by_unit.values(), UNIT_HEADS, strict=True)
        )
        for method, by_unit in speedups_by_unit(rows, real).items()
        if method != Method.BASE and by_unit["flops"] is not None
    ]
    base = f"the base at its best number of calls ({own_best_calls(rows, real)})"
    return f"Speed-ups over {base}: {'; '.join(factors) or 'none'}."


def _cells(by_unit: dict[str, SpeedUp | None]) -> list[str]:
    if by_unit["flops"] is None:
        return ["no match"] * len(UNITS)
    return [number(None) if one is None else _cell(one) for one in by_unit.values()]


def _cell(speedup: SpeedUp | None) -> str:
    return "no match" if speedup is None else f"{_times(speedup.factor)}, {speedup.method.calls} calls"


def _times(factor: float | None) -> str:
    return number(None) if factor is None else f"{number(factor)} x"


def _published_factor(method: str, length: int) -> float | None:
    return published.SPEEDUP.get(length) if method == Method.CON_WITHIN_DISC else None


# ---------------------------------------------------------------- the two guided methods at equal cost


class Difference(NamedTuple):
    """ConWithinDisc minus ConThenDisc at one cost, both interpolated."""

    cost: float
    mauve: Measured
    gen_ppl: Measured

    @property
    def is_no_worse(self) -> bool:
        """Whether neither measure is worse by more than the spread."""
        return self.mauve.mean >= -self.mauve.spread and self.gen_ppl.mean <= self.gen_ppl.spread


def differences(rows: Sequence[Row]) -> list[Difference]:
    """Return the differences at the powers of two within the range of both curves."""
    within, then = (_curve(rows, method) for method in (Method.CON_WITHIN_DISC, Method.CON_THEN_DISC))
    if not within or not then:
        return []
    least, most = max(within[0][COST], then[0][COST]), min(within[-1][COST], then[-1][COST])
    powers = range(math.ceil(math.log2(least)), math.floor(math.log2(most)) + 1)
    return [
        Difference(
            cost, *(_minus(_at(within, name, cost), _at(then, name, cost)) for name in ("mauve", "gen_ppl"))
        )
        for cost in (2.0**power for power in powers)
    ]


def _curve(rows: Sequence[Row], method: Method) -> list[Row]:
    measured = [row for row in select(rows, method=str(method)) if row["gen_ppl"] is not None]
    return sorted(measured, key=lambda row: row[COST])


def _at(curve: Sequence[Row], name: str, cost: float) -> Measured:
    """Return a measure at a cost within the curve, linear in the logarithm of the cost."""
    right = next(index for index, row in enumerate(curve) if row[COST] >= cost)
    after, before = curve[right], curve[max(0, right - 1)]
    width = math.log(after[COST] / before[COST])
    share = math.log(cost / before[COST]) / width if width else 0.0

    def between(column: str) -> float:
        return (1 - share) * (before[column] or 0.0) + share * (after[column] or 0.0)

    return Measured(between(name), between(f"{name}_spread"))


def _minus(first: Measured, second: Measured) -> Measured:
    return Measured(first.mean - second.mean, math.hypot(first.spread, second.spread))


def equal_cost_blocks(rows: Sequence[Row], length: int) -> list[Block]:
    """Return a table of the differences with its explanation; nothing where one method was not measured."""
    all_differences = differences(rows)
    if not all_differences:
        return []
    num_no_worse = sum(one.is_no_worse for one in all_differences)
    heads = ["NFE by FLOPs", "MAUVE, difference", "Gen-PPL, difference", "no worse"]
    body = [
        [number(one.cost), _signed(one.mauve), _signed(one.gen_ppl), "yes" if one.is_no_worse else "no"]
        for one in all_differences
    ]
    return [
        Table(heads, body, f"ConWithinDisc minus ConThenDisc at equal cost, length {length}"),
        Text(
            f"""The curves are interpolated between measured points, linearly in the logarithm of the cost. "No
            worse" means that neither measure is worse by more than the spread of the difference; this holds at
            {num_no_worse} of {len(all_differences)} costs. A difference within its spread shows nothing either
            way. The spread covers clusterings and samples, not repeated training. Costs below the cheapest
            point of ConWithinDisc are not compared."""
        ),
    ]


def _signed(value: Measured) -> str:
    return f"{value.mean:+.3f} ± {value.spread:.3f}"
