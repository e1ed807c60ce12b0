"""Rows in, picture out: curves as SVG. The only door to matplotlib, which is an extra."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from typing import Any

WIDTH, HEIGHT = 5.2, 4.0  # of a panel, in inches
METHOD: dict[str, Any] = {"marker": "o", "markersize": 3}
BOUND: dict[str, Any] = {"linestyle": ":", "color": "grey", "linewidth": 1.5}


@dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float | None]  # None: not measured
    spread: Sequence[float | None] = ()
    is_bound: bool = field(default=False, kw_only=True)  # no method, but what one could reach


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    level: tuple[str, float | None] | None = None  # a line across: what real text has, say
    log_x: bool = False
    log_y: bool = False


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw(name: str, panels: Sequence[Panel]) -> str:
    """Panels side by side, as the text of an SVG element; the same rows give the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    # The salt makes ids differ from figure to figure: several stand on one page.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, panel)
        written = StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


def _draw_panel(axes, panel: Panel) -> None:  # type: ignore[no-untyped-def]
    for curve in panel.curves:
        spread = curve.spread or [None] * len(curve.x)
        known = [
            (x, y, around or 0.0)
            for x, y, around in zip(curve.x, curve.y, spread, strict=True)
            if y is not None and (y > 0 or not panel.log_y)
        ]
        if known:
            xs, ys, around = zip(*known, strict=True)
            look = BOUND if curve.is_bound else METHOD
            axes.errorbar(xs, ys, yerr=around, label=curve.name, capsize=2, **look)
    if panel.level is not None and panel.level[1] is not None:
        axes.axhline(panel.level[1], label=panel.level[0], linestyle="--", linewidth=1, color="grey")
    if panel.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if panel.log_y:
        from matplotlib.ticker import LogFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)  # below: hides no curve
