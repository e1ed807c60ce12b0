"""Tables and figures of generated programs that several experiments share."""

from collections.abc import Sequence

from crocodil.pipeline import Method
from crocodil.processes.plan import rule_name
from crocodil.reproduce import published
from crocodil.reproduce.document import Table, measure, number, percent, with_spread
from crocodil.reproduce.figures import Curve, Panel, Real
from crocodil.reproduce.store import Row, distinct, select
from crocodil.reproduce.sweep import CHOSEN, candidate_of

OF_MODEL = ": "  # between the name of a compared model and its method
ORACLE = "encoded registers"  # the method in rows that decodes registers of real programs
NAMES = {
    Method.BASE: "base",
    Method.CON_THEN_DISC: "ConThenDisc",
    Method.CON_WITHIN_DISC: "ConWithinDisc",
    ORACLE: "oracle registers",
}
HEADS = (
    "", "calls", "MAUVE", "MAUVE, pooled", "MAUVE, published", "Gen-PPL", "Gen-PPL, published", "tokens",
    "entropy", "distinct-2", "valid Python", "NFE", "NFE, published", "NFE by FLOPs", "seconds", "temperature",
    "rule", "other settings", "samples",
)  # fmt: skip
MAUVE_LABEL, GEN_PPL_LABEL = "MAUVE (higher is better)", "Gen-PPL (lower is better)"


def display_name(value: object) -> str:
    """Return the name of a method as tables and figures show it; other values are shown unchanged."""
    model, between, method = str(value).rpartition(OF_MODEL)
    return model + between + NAMES.get(method, method)


# ---------------------------------------------------------------- tables


def quality_table(
    rows: Sequence[Row], by: str, length: int, real: Row | None = None, anchor: Row | None = None
) -> Table:
    """Return one line per row, named by the column `by`, and last lines for real programs.

    `anchor` is one half of the real programs, compared with the other half.
    """
    lines = [_line(row, display_name(row[by]), length) for row in rows]
    named = {"real programs": real, "real programs, another half": anchor}
    lines += [_real_line(name, row) for name, row in named.items() if row is not None]
    return Table(HEADS, lines, f"Length {length}")


def _line(row: Row, name: str, length: int) -> list[str]:
    paper = published.GENERATION.get((length, row.get("method", ""), row["calls"]))
    mauve, gen_ppl, nfe = (None,) * 3 if paper is None else (paper.mauve, paper.gen_ppl, paper.nfe)
    return [
        name, str(row["calls"]), with_spread(row["mauve"], row["mauve_spread"]), measure(row, "mauve_pooled"),
        as_printed(mauve), with_spread(row["gen_ppl"], row["gen_ppl_spread"]), as_printed(gen_ppl),
        number(row.get("mean_tokens")), number(row["entropy"]), number(row["distinct_2"]),
        percent(row["parse_share"]), number(row["nfe"]),
        as_printed(nfe), number(row["flop_nfe"]), number(row["seconds"]), f"{row['temperature']}",
        rule_name(row["rule"]), other_settings(row), str(row["num_samples"]),
    ]  # fmt: skip


def other_settings(row: Row) -> str:
    """Return what the sweep chose besides temperature and rule."""
    others = [f"{name} {value}" for name, value in candidate_of(row).items() if name not in CHOSEN]
    return ", ".join(others) or number(None)


def _real_line(name: str, real: Row) -> list[str]:
    cells = {
        "": name,
        "MAUVE": with_spread(real["mauve"], real["mauve_spread"]),
        "MAUVE, pooled": measure(real, "mauve_pooled"),
        "Gen-PPL": with_spread(real["gen_ppl"], real["gen_ppl_spread"]),
        "tokens": number(real.get("mean_tokens")),
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
