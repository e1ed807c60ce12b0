"""How a candidate of a sweep is chosen: by MAUVE and Gen-PPL, or by the aims of the protocol (decision D83)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from crocodil.reproduce.store import Row
from crocodil.runtime.config import Positive, Share, config

TIE = 0.05  # of MAUVE: smaller differences are noise at the sample size of a sweep
BY_MAUVE = f"the highest MAUVE on valid; of those within its spread, or {TIE}, the lowest Gen-PPL"  # kept in rows
BY_AIMS = "the most aims reached on valid; of those with equally many, the highest MAUVE"
REACHED = "aims_reached"  # the column of a sweep with the names of the aims


@config
class Aims:
    """The quality that samples should have. Real programs are measured against other real programs."""

    parse_share: Share  # at least
    distinct_2_of_real: Positive  # at least, relative to that of real programs
    entropy_distance: Positive  # from that of real programs in nats, at most
    mauve_of_real: Positive  # both MAUVEs: at least, relative to real programs against real programs
    gen_ppl_of_real: Positive  # at most, relative to that of real programs

    def reached(self, row: Row, real: Row) -> list[str]:
        """Return the columns in which samples are as good as they should be. A missing number is not."""

        def resembles(value: float, of_real: float) -> bool:
            return value >= self.mauve_of_real * of_real

        checks = {
            "parse_share": lambda value, _: value >= self.parse_share,
            "distinct_2": lambda value, of_real: value >= self.distinct_2_of_real * of_real,
            "entropy": lambda value, of_real: abs(value - of_real) <= self.entropy_distance,
            "mauve": resembles,
            "mauve_pooled": resembles,
            "gen_ppl": lambda value, of_real: value <= self.gen_ppl_of_real * of_real,
        }
        return [name for name, check in checks.items() if row[name] is not None and check(row[name], real[name])]


def rule_of(aims: Aims | None) -> str:
    """Return the rule in words, as rows and protocol files hold it."""
    return BY_MAUVE if aims is None else BY_AIMS


def best(swept: Sequence[Row]) -> Row:
    """Return the chosen row: by aims where rows say which they reach, else by MAUVE and Gen-PPL."""
    if any(REACHED in row for row in swept):
        return max(swept, key=_rank)
    top = max(swept, key=lambda row: row["mauve"])
    close = [row for row in swept if row["mauve"] >= top["mauve"] - max(top["mauve_spread"], TIE)]
    return min(close, key=lambda row: math.inf if row["gen_ppl"] is None else row["gen_ppl"])


def ranked(swept: Sequence[Row]) -> list[Row]:
    """Return the rows in the order in which they enter a final."""
    return sorted(swept, key=_rank, reverse=True)


def _rank(row: Mapping[str, Any]) -> tuple[int, float]:
    return len(row.get(REACHED, ())), row["mauve"]
