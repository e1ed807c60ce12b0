"""What the protocol file asks of the model, and what was measured: one line for each target."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from crocodil.judges.evaluator import MAUVES
from crocodil.pipeline import Method
from crocodil.reproduce.document import NOT_MEASURED, Section, Table, Text, number, percent
from crocodil.reproduce.experiments.comparison import differences, factor_of, has_base, speedups
from crocodil.reproduce.experiments.quality import display_name
from crocodil.reproduce.fixed_protocol import Targets
from crocodil.reproduce.store import Row, distinct, select

TITLE = "Targets"
GUIDED = (Method.CON_THEN_DISC, Method.CON_WITHIN_DISC)


class Line(NamedTuple):
    """One target. `reached` is None if it was not measured."""

    name: str
    wanted: str
    measured: str
    reached: bool | None


def show(wanted: Targets, results: Mapping[str, Sequence[Row]]) -> Section:
    cells = {True: "yes", False: "**no**", None: NOT_MEASURED}
    found = lines(wanted, results)
    text = f"""What the protocol file asks for. Where it names no length, it means {wanted.length} tokens at
        {wanted.calls} calls on test programs; "real" is the row of real programs against other real programs.
        Reached: {sum(line.reached is True for line in found)} of {len(found)}."""
    body = [[line.name, line.wanted, line.measured, cells[line.reached]] for line in found]
    return Section(TITLE, [Text(text), Table(["", "wanted", "measured", "reached"], body)])


def lines(wanted: Targets, results: Mapping[str, Sequence[Row]]) -> list[Line]:
    """Return a line for each target, those on generated programs for each guided method."""
    generated = results.get("generation", ())
    anchor = next(iter(select(results.get("anchor", ()), length=wanted.length)), None)
    found = []
    for method in GUIDED:
        at = select(generated, length=wanted.length, method=str(method), calls=wanted.calls)
        row = next(iter(at), None)
        found += _quality(wanted, display_name(method), row, anchor)
    found += [_speedup(generated, results["reference"], int(at), least) for at, least in wanted.speedup.items()]
    return [*found, _equal_cost(wanted, generated), _bound(wanted, results), _copies(wanted, results)]


def _quality(wanted: Targets, who: str, row: Row | None, real: Row | None) -> list[Line]:
    """Return the lines of one method. `real` are real programs, measured against other real programs."""
    names = [(column, f"{who}: {name}", limit) for column, (name, limit) in _limits(wanted).items()]
    if row is None or real is None:
        return [Line(name, limit, NOT_MEASURED, None) for _, name, limit in names]
    reached = wanted.reached(row, real)
    return [Line(name, limit, _beside_real(column, row, real), column in reached) for column, name, limit in names]


def _limits(wanted: Targets) -> dict[str, tuple[str, str]]:
    """Return the name and the limit of each aim, by column."""
    mauve = f"at least {wanted.mauve_of_real} x real"
    return {
        "parse_share": ("valid Python", f"at least {percent(wanted.parse_share)}"),
        "distinct_2": ("distinct-2", f"at least {wanted.distinct_2_of_real} x real"),
        "entropy": ("entropy", f"within {wanted.entropy_distance} nats of real"),
        **{column: (name, mauve) for column, name in zip(MAUVES, ("MAUVE", "MAUVE, pooled"), strict=True)},
        "gen_ppl": ("Gen-PPL", f"at most {wanted.gen_ppl_of_real} x real"),
    }


def _beside_real(column: str, row: Row, real: Row) -> str:
    if row[column] is None:
        return "none"
    if column == "parse_share":
        return f"{percent(row[column])} (real {percent(real[column])})"
    if column == "entropy":
        return f"{number(row[column])} (real {number(real[column])})"
    return f"{number(row[column])}, {number(row[column] / real[column])} x real ({number(real[column])})"


def _speedup(generated: Sequence[Row], references: Sequence[Row], length: int, least: float) -> Line:
    """The better of the two guided methods counts."""
    name, limit = f"speed-up by FLOPs, length {length}", f"at least {least} x"
    rows, real = select(generated, length=length), select(references, length=length)
    if not has_base(rows) or not real:
        return Line(name, limit, NOT_MEASURED, None)
    factors = {method: factor_of(speedups(rows, real[0]).get(method)) for method in GUIDED}
    shown = [f"{display_name(method)} {_times(factor)}" for method, factor in factors.items()]
    return Line(name, limit, ", ".join(shown), any((factor or 0) >= least for factor in factors.values()))


def _times(factor: float | None) -> str:
    return "no match" if factor is None else f"{number(factor)} x"


def _equal_cost(wanted: Targets, generated: Sequence[Row]) -> Line:
    """At a length, a method is above another if its MAUVE is higher in the mean over the compared costs."""
    by_length = {length: differences(select(generated, length=length)) for length in distinct(generated, "length")}
    means = {
        length: fmean(difference.mauve.mean for difference in at_length)
        for length, at_length in by_length.items()
        if at_length
    }
    shown = ", ".join(f"{mean:+.3f} at {length}" for length, mean in means.items()) or NOT_MEASURED
    reached = sum(mean > 0 for mean in means.values()) >= wanted.lengths_within_above if means else None
    name = "MAUVE, ConWithinDisc minus ConThenDisc at equal cost"
    return Line(name, f"above 0 at {wanted.lengths_within_above} lengths", shown, reached)


def _bound(wanted: Targets, results: Mapping[str, Sequence[Row]]) -> Line:
    rows = select(results.get("likelihood", ()), length=wanted.length)
    shown = ", ".join(f"{row['bits_per_byte']:.3f} ({row['split']})" for row in rows) or NOT_MEASURED
    reached = all(row["bits_per_byte"] <= wanted.bits_per_byte for row in rows) if rows else None
    return Line("bound of the base, bits per byte", f"at most {wanted.bits_per_byte}", shown, reached)


def _copies(wanted: Targets, results: Mapping[str, Sequence[Row]]) -> Line:
    key = {"length": wanted.length, "block": wanted.length, "calls": wanted.calls}
    row = next(iter(select(results.get("autoencoder", ()), **key)), None)
    name, limit = "CER of copies, one block", f"at most {wanted.cer}"
    return (
        Line(name, limit, number(row["cer"]), row["cer"] <= wanted.cer)
        if row
        else Line(name, limit, NOT_MEASURED, None)
    )
