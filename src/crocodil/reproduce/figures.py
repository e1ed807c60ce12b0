"""Draw measured curves as SVG figures. The only module that imports matplotlib, which is an optional extra."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import StringIO
from itertools import cycle
from typing import Any

PANEL_SIZE = (4.7, 3.5)  # inches; two panels fill the width of a README page
# The colour-blind safe palette of Okabe and Ito. The base has the same look in all figures.
BASE, BASE_LOOK = "base", {"color": "#d55e00", "marker": "s"}
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#e69f00")
MARKERS = ("o", "^", "D", "v", "P", "X")  # one more than colours: 30 different looks
SEQUENTIAL = "viridis_r"  # for curves that differ in one ordered quantity
REFERENCE: Mapping[str, Any] = {"color": "#767676", "linestyle": "--", "linewidth": 1.5}
REAL, REAL_COLOUR = "real programs", "#444444"
STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",  # text stays text
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.wspace": 0.04,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@dataclass(frozen=True)
class Curve:
    """Points joined in their order; a y of None was not measured and is left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] = ()
    cloud: Sequence[tuple[float, float]] = field(default=(), kw_only=True)  # further points, drawn faintly
    is_reference: bool = field(default=False, kw_only=True)  # not a method: drawn dashed and grey
    is_ordered: bool = field(default=False, kw_only=True)  # coloured by its rank among the ordered curves


@dataclass(frozen=True)
class Real:
    """The value of real text, with its spread."""

    value: float | None
    spread: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    real_x: Real | None = None  # drawn as a vertical band
    real_y: Real | None = None  # drawn as a horizontal band
    least_x: float | None = None  # where the axis begins
    log_x: bool = False  # to base 2
    log_y: bool = False
    percent_y: bool = False


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(name: str, panels: Sequence[Panel]) -> str:
    """Return the panels side by side as an SVG element; the same panels give the same bytes."""
    import matplotlib

    # The salt gives every figure its own ids: one page may hold several figures.
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        text = StringIO()
        draw_figure(panels).savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def draw_figure(panels: Sequence[Panel]) -> Any:
    """Return a matplotlib figure with one legend below all panels."""
    from matplotlib.figure import Figure

    width, height = PANEL_SIZE
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    share_y = len({panel.y_label for panel in panels}) == 1
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=share_y)
    looks = _looks([curve for panel in panels for curve in panel.curves])
    legend: dict[str, Any] = {}
    for axes, panel in zip(grid[0], panels, strict=True):
        legend = {**legend, **_draw_panel(axes, panel, looks)}
        if share_y:
            axes.label_outer()
    if REAL in legend:
        legend[REAL] = legend.pop(REAL)  # last
    if legend:
        figure.legend(
            legend.values(), legend.keys(), loc="outside lower center", frameon=False,
            ncols=min(len(legend), 3 * len(panels)), columnspacing=1.5,
        )  # fmt: skip
    return figure


def _looks(curves: Sequence[Curve]) -> dict[str, Mapping[str, Any]]:
    """Return the colour and the marker of each curve by its name, equal in all panels of a figure."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    by_name = {curve.name: curve for curve in curves}
    ordered = [name for name, curve in by_name.items() if curve.is_ordered]
    others = [name for name, curve in by_name.items() if not (curve.is_ordered or curve.is_reference)]
    shades = [0.15 + 0.8 * rank / max(1, len(ordered) - 1) for rank in range(len(ordered))]
    colours = {
        **dict(zip((name for name in others if name != BASE), cycle(COLOURS), strict=False)),
        **{name: to_hex(colormaps[SEQUENTIAL](shade)) for name, shade in zip(ordered, shades, strict=True)},
    }
    looks = {
        name: {"color": colour, "marker": marker}
        for (name, colour), marker in zip(colours.items(), cycle(MARKERS), strict=False)
    }
    return {**dict.fromkeys(by_name, REFERENCE), BASE: BASE_LOOK, **looks}


def _draw_panel(axes: Any, panel: Panel, looks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Draw a panel, and return the handles of its legend."""
    legend = _draw_real(axes, panel)
    for curve in panel.curves:
        legend |= _draw_curve(axes, curve, looks[curve.name], positive=panel.log_y)
    if panel.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(_plain_number)
    if panel.log_y:
        from matplotlib.ticker import LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(_plain_number)
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.locator_params(axis="y", nbins=6)
    if panel.percent_y:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    if panel.least_x is not None:
        axes.set_xlim(left=panel.least_x)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    return legend


def _draw_curve(axes: Any, curve: Curve, look: Mapping[str, Any], *, positive: bool) -> dict[str, Any]:
    spread = curve.spread or [None] * len(curve.x)
    points = [
        (x, y, around or 0.0)
        for x, y, around in zip(curve.x, curve.y, spread, strict=True)
        if y is not None and (y > 0 or not positive)
    ]
    if curve.cloud:
        axes.scatter(*zip(*curve.cloud, strict=True), s=14, alpha=0.4, linewidths=0, **look)
    if not points:
        return {}
    xs, ys, around = zip(*points, strict=True)
    return {curve.name: axes.errorbar(xs, ys, yerr=around if any(around) else None, capsize=2, **look)}


def _draw_real(axes: Any, panel: Panel) -> dict[str, Any]:
    """Draw the value of real text as a line within a band of its spread."""
    legend = {}
    sides = ((panel.real_x, axes.axvline, axes.axvspan), (panel.real_y, axes.axhline, axes.axhspan))
    for real, draw_line, draw_band in sides:
        if real is not None and real.value is not None:
            around = real.spread or 0.0
            band = draw_band(real.value - around, real.value + around, color=REAL_COLOUR, alpha=0.15, linewidth=0)
            legend[REAL] = (band, draw_line(real.value, color=REAL_COLOUR, linewidth=1, linestyle=":"))
    if panel.real_x is not None and panel.real_y is not None:
        axes.plot([panel.real_x.value], [panel.real_y.value], marker="*", markersize=13, color=REAL_COLOUR)
    return legend


def _plain_number(value: float, _: int) -> str:
    return f"{value:g}"
