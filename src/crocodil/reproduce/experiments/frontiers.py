"""Frontiers of Gen-PPL against entropy: what each method can reach, over all settings of its sweep."""

import math
from collections.abc import Sequence

from crocodil.pipeline import Method
from crocodil.reproduce.document import Picture, Table, number
from crocodil.reproduce.experiments.quality import GEN_PPL_LABEL, display_name
from crocodil.reproduce.figures import Curve, Panel, Real
from crocodil.reproduce.store import Row, distinct, select
from crocodil.reproduce.sweep import CHOSEN, SWEPT

FRONTIER_CAPTION = (
    "Each faint point is one {setting} on the validation split. A line joins the "
    "settings of a method that no other setting of it beats in both measures. Better is closer to real programs "
    "(the star). Settings with less than half the entropy of real programs are outside the figure."
)
LEVELS = (-0.5, -0.25, 0.0, 0.25)  # of entropy in nats, relative to real programs


def frontier_picture(swept: Sequence[Row], real: Row) -> Picture | None:
    """Return Gen-PPL against entropy, a panel for each number of calls at which every method was swept."""
    panels = [_frontier_panel(rows, real, calls) for calls, rows in comparable(swept).items()]
    setting = "setting" if has_other_settings(swept) else "setting, a temperature with a reveal rule,"
    caption = FRONTIER_CAPTION.format(setting=setting)
    return Picture(f"frontier-{real['length']}", panels, caption) if panels else None


def comparable(swept: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the rows by number of calls, for numbers at which all methods of the model were swept.

    Nothing is returned for a single method. Rows of compared models are included.
    """
    rows = [row for row in swept if row.get("method") is not None and row["gen_ppl"] is not None]
    methods = {row["method"] for row in rows} & set(Method)
    by_calls = {calls: select(rows, calls=calls) for calls in distinct(rows, "calls")}
    return {
        calls: at_calls
        for calls, at_calls in by_calls.items()
        if len(methods) > 1 and methods <= {row["method"] for row in at_calls}
    }


def has_other_settings(rows: Sequence[Row]) -> bool:
    """Whether more than temperature and rule was swept."""
    return any(name not in CHOSEN for row in rows for name in row.get(SWEPT, ()))


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


def frontier_table(swept: Sequence[Row], real: Row) -> Table | None:
    """Return the Gen-PPL of each method at equal entropies; None where no methods can be compared."""
    heads = ["", "calls", "settings", *(f"entropy {real['entropy'] + level:.2f}" for level in LEVELS)]
    body = []
    for calls, rows in comparable(swept).items():
        for method in distinct(rows, "method"):
            points = [(row["entropy"], row["gen_ppl"]) for row in select(rows, method=method)]
            hull = lower_hull(frontier(points))
            values = [number(at_entropy(hull, real["entropy"] + level)) for level in LEVELS]
            body.append([display_name(method), str(calls), str(len(points)), *values])
    if not body:
        return None
    at_own = [number(None if level else real["gen_ppl"]) for level in LEVELS]
    body.append(["real programs", number(None), number(None), *at_own])
    return Table(heads, body, f"Gen-PPL at equal entropy, length {real['length']}")


def lower_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the lower convex hull of a frontier, with the Gen-PPL as its logarithm.

    A mixture of the samples of two settings has about the entropy and the nats per token between them.
    """
    hull: list[tuple[float, float]] = []
    for entropy, gen_ppl in sorted(points):
        point = (entropy, math.log(gen_ppl))
        while len(hull) > 1 and _is_above(hull[-1], hull[-2], point):
            hull.pop()
        hull.append(point)
    return [(entropy, math.exp(nats)) for entropy, nats in hull]


def _is_above(point: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether a point is on or above the line from left to right."""
    width, height = right[0] - left[0], right[1] - left[1]
    return (point[1] - left[1]) * width >= height * (point[0] - left[0])


def at_entropy(hull: Sequence[tuple[float, float]], entropy: float) -> float | None:
    """Return the Gen-PPL of a hull at an entropy, or at the next higher one it reaches; None above all of it."""
    right = next((place for place, point in enumerate(hull) if point[0] >= entropy), None)
    if right is None:
        return None
    if right == 0:
        return hull[0][1]  # more varied and as fluent as anything less varied
    (x_left, y_left), (x_right, y_right) = hull[right - 1], hull[right]
    share = (entropy - x_left) / (x_right - x_left)
    return math.exp((1 - share) * math.log(y_left) + share * math.log(y_right))
