"""How a run went: the rows of metrics.jsonl as values and as curves in text."""

import math
from itertools import pairwise
from pathlib import Path

from crocodil.training.journal import METRICS_FILE, Row, read_rows

WIDTH, HEIGHT = 72, 10


def stages_of(directory: Path) -> dict[str, list[Row]]:
    """The rows of every stage of a run."""
    found = {file.parent.name: read_rows(file.parent) for file in sorted(directory.glob(f"*/{METRICS_FILE}"))}
    if not found:
        raise ValueError(f"{directory} holds no run: no stage in it has a {METRICS_FILE}")
    return found


def last_values(directory: Path) -> dict[str, list[tuple[str, str]]]:
    """The newest value of every metric, stage by stage."""
    return {
        stage: [(name, f"{value:.4g}") for name, value in {k: v for row in rows for k, v in row.items()}.items()]
        for stage, rows in stages_of(directory).items()
    }


def curves(directory: Path) -> dict[str, str]:
    """The loss of every stage against its steps."""
    return {
        f"{stage}: loss": plot([row["loss"] for row in rows if math.isfinite(row.get("loss", math.nan))])
        for stage, rows in stages_of(directory).items()
    }


def plot(values: list[float]) -> str:
    """A curve of characters; each column is the mean of its share of the values."""
    if not values:
        return "nothing yet"
    columns = min(WIDTH, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    level = [round((HEIGHT - 1) * (mean - low) / ((high - low) or 1)) for mean in means]
    lines = []
    for height in reversed(range(HEIGHT)):
        label = f"{low + (high - low) * height / (HEIGHT - 1):9.3f}"
        lines.append(f"{label} │" + "".join("•" if one == height else " " for one in level))
    return "\n".join([*lines, " " * 10 + "└" + "─" * columns, f"{'':11}1{len(values):>{max(columns - 1, 1)}}"])
