"""Tables and figures of generated programs that several experiments share."""

from collections.abc import Sequence

from crocodil.pipeline import Method
from crocodil.processes.plan import rule_name
from crocodil.reproduce import published
from crocodil.reproduce.document import Picture, Table, measure, number, percent, with_spread
from crocodil.reproduce.figures import Curve, Panel, Real
from crocodil.reproduce.store import Row, distinct, select

ORACLE = "encoded registers"  # the method in rows that decodes registers of real programs
NAMES = {
    Method.BASE: "base",
    Method.CON_THEN_DISC: "ConThenDisc",
    Method.CON_WITHIN_DISC: "ConWithinDisc",
    ORACLE: "oracle registers",
}
HEADS = (
    "", "calls", "MAUVE", "MAUVE, pooled", "MAUVE, published", "Gen-PPL", "Gen-PPL, published", "entropy",
    "distinct-2", "valid Python", "NFE", "NFE, published", "NFE by FLOPs", "seconds", "temperature", "rule",
    "samples",
)  # fmt: skip
MAUVE_LABEL, GEN_PPL_LABEL = "MAUVE (higher is better)", "Gen-PPL (lower is better)"
FRONTIER_CAPTION = (
    "Each faint point is one setting, a temperature with a reveal rule, on the validation split. A line joins the "
    "settings of a method that no other setting of it beats in both measures. Better is closer to real programs "
    "(the star). Settings with less than half the entropy of real programs are outside the figure."
)


def display_name(value: object) -> str:
    """Return the name of a method as tables and figures show it; other values are shown unchanged."""
    return next((name for method, name in NAMES.items() if method == value), str(value))


# ---------------------------------------------------------------- tables


def quality_table(rows: Sequence[Row], by: str, length: int, real: Row | None = None) -> Table:
    """Return one line per row, named by the column `by`, and a last line for real programs."""
    lines = [_line(row, display_name(row[by]), length) for row in rows]
    return Table(HEADS, lines if real is None else [*lines, _real_line(real)], f"Length {length}")


def _line(row: Row, name: str, length: int) -> list[str]:
    paper = published.GENERATION.get((length, row.get("method", ""), row["calls"]))
    mauve, gen_ppl, nfe = (None,) * 3 if paper is None else (paper.mauve, paper.gen_ppl, paper.nfe)
    return [
        name, str(row["calls"]), with_spread(row["mauve"], row["mauve_spread"]), measure(row, "mauve_pooled"),
        as_printed(mauve), with_spread(row["gen_ppl"], row["gen_ppl_spread"]), as_printed(gen_ppl),
        number(row["entropy"]), number(row["distinct_2"]), percent(row["parse_share"]), number(row["nfe"]),
        as_printed(nfe), number(row["flop_nfe"]), number(row["seconds"]), f"{row['temperature']}",
        rule_name(row["rule"]), str(row["num_samples"]),
    ]  # fmt: skip


def _real_line(real: Row) -> list[str]:
    cells = {
        "": "real programs",
        "MAUVE": with_spread(real["mauve"], real["mauve_spread"]),
        "MAUVE, pooled": measure(real, "mauve_pooled"),
        "Gen-PPL": with_spread(real["gen_ppl"], real["gen_ppl_spread"]),
        "entropy": number(real["entropy"]),
        "distinct-2": number(real["distinct_2"]),
        "valid Python": percent(real["parse_share"]),
        "samples": str(real["num_samples"]),
    }
    return [cells.get(head, number(None)) for head in HEADS]


def as_printed(value: float | None) -> str:
    """Return a number of the paper, verbatim."""
    return number(None) if value is None else str(value)


# ---------------------------------------------------------------- figures


def quality_panels(rows: Sequence[Row], real: Row, *, x: str, x_label: str, against: str, by: str) -> list[Panel]:
    """Return MAUVE and Gen-PPL along the column `x`, with one curve for each value of the column `by`."""
    return [
        Panel(
            title=f"{name} against {against}, {real['length']} tokens",
            x_label=x_label,
            y_label=y_label,
            log_x=True,
            log_y=column == "gen_ppl",
            real_y=Real(real[column], real[f"{column}_spread"]),
            curves=[_curve(select(rows, **{by: value}), value, x, column) for value in distinct(rows, by)],
        )
        for column, name, y_label in (("mauve", "MAUVE", MAUVE_LABEL), ("gen_ppl", "Gen-PPL", GEN_PPL_LABEL))
    ]


def _curve(rows: Sequence[Row], value: object, x: str, column: str) -> Curve:
    is_oracle = value == ORACLE
    name = "oracle: registers of real programs" if is_oracle else display_name(value)
    columns = ([row[name] for row in rows] for name in (x, column, f"{column}_spread"))
    return Curve(name, *columns, is_reference=is_oracle)


def frontier_picture(swept: Sequence[Row], real: Row) -> Picture | None:
    """Return Gen-PPL against entropy, a panel for each number of calls at which every method was swept."""
    rows = [row for row in swept if row.get("method") is not None and row["gen_ppl"] is not None]
    num_methods = len(distinct(rows, "method"))
    by_calls = {calls: select(rows, calls=calls) for calls in distinct(rows, "calls")}
    panels = [
        _frontier_panel(swept_rows, real, calls)
        for calls, swept_rows in by_calls.items()
        if len(distinct(swept_rows, "method")) == num_methods > 1
    ]
    return Picture(f"frontier-{real['length']}", panels, FRONTIER_CAPTION) if panels else None


def _frontier_panel(rows: Sequence[Row], real: Row, calls: int) -> Panel:
    least_entropy = real["entropy"] / 2
    by_method = {
        method: sorted((row["entropy"], row["gen_ppl"]) for row in select(rows, method=method))
        for method in distinct(rows, "method")
    }
    return Panel(
        title=f"Gen-PPL against entropy, {real['length']} tokens, {calls} calls",
        x_label="entropy in nats (higher is more varied)",
        y_label=GEN_PPL_LABEL,
        log_y=True,
        least_x=least_entropy,
        real_x=Real(real["entropy"]),
        real_y=Real(real["gen_ppl"], real["gen_ppl_spread"]),
        curves=[
            Curve(
                display_name(method),
                *zip(*frontier(points), strict=True),
                cloud=[point for point in points if point[0] >= least_entropy],
            )
            for method, points in by_method.items()
        ],
    )


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point beats in both: a higher entropy with a lower Gen-PPL."""
    return sorted(
        point
        for point in points
        if not any(other != point and other[0] >= point[0] and other[1] <= point[1] for other in points)
    )
