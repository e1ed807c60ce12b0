"""Interpolation: decode mixtures of the registers of two programs (App. D, Fig. 8)."""

from collections.abc import Sequence
from functools import cached_property, partial
from statistics import fmean

from crocodil.processes.registers import interpolate
from crocodil.reproduce.context import AUTOENCODER_PARTS, Context
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, measure, number, percent, with_spread
from crocodil.reproduce.experiments.quality import GEN_PPL_LABEL, MAUVE_LABEL
from crocodil.reproduce.figures import Curve, Panel, Real
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import quality_and_cost
from crocodil.shapes import RegisterBank

TITLE = "Interpolation (Fig. 8)"
MIX_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
TOKENS_PER_CALL = 8  # not stated in the paper


class Pairs:
    """Random pairs of validation programs, encoded on first use."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @cached_property
    def ends(self) -> tuple[RegisterBank, RegisterBank]:
        texts = self.context.texts("valid", 2 * self.context.protocol.num_pairs)
        first, second = self.context.pipe.encode(texts[: 2 * (len(texts) // 2)], cut=True).bank.chunk(2)
        return first, second

    def row(self, mix_weight: float) -> Row:
        mixed = interpolate(*self.ends, mix_weight=mix_weight)
        calls = max(1, self.context.length // TOKENS_PER_CALL)
        made = self.context.pipe.decode(mixed, calls=calls, seed=self.context.seed, show_progress=False)
        return {
            **quality_and_cost(self.context, made, "test"),
            "temperature": 0.0,
            "calls": calls,
            "calls_made": fmean(cost.demasker_calls for cost in made.costs),
        }


def compute(context: Context) -> list[Row]:
    pairs = Pairs(context)
    jobs = [
        Job({"mix_weight": weight}, partial(pairs.row, weight), uses=AUTOENCODER_PARTS) for weight in MIX_WEIGHTS
    ]
    return context.store.compute("interpolation", jobs)


def show(rows: Sequence[Row], references: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """The registers of two unrelated programs are mixed, from only the first (weight 0) to only the
            second (weight 1), and the mixture is decoded. If the register space is smooth, mixtures decode to
            programs too."""
        ),
        Text(
            """**Better:** MAUVE stays high and Gen-PPL low in the middle. **The paper (Fig. 8, no numbers
            printed):** quality stays high along the whole path, with a moderate rise of Gen-PPL in the middle."""
        ),
    ]
    for length in distinct(rows, "length"):
        of_length, (real,) = select(rows, length=length), select(references, length=length)
        blocks += [Picture(f"interpolation-{length}", _panels(of_length, real)), _table(of_length, length)]
    return Section(TITLE, blocks)


def _panels(rows: Sequence[Row], real: Row) -> list[Panel]:
    columns = {"mauve": ("MAUVE", MAUVE_LABEL), "gen_ppl": ("Gen-PPL", GEN_PPL_LABEL)}
    return [
        Panel(
            title=f"{name} between two programs, {real['length']} tokens",
            x_label="weight of the second program",
            y_label=y_label,
            real_y=Real(real[column], real[f"{column}_spread"]),
            curves=[
                Curve(
                    "decoded mixtures",
                    *([row[key] for row in rows] for key in ("mix_weight", column, f"{column}_spread")),
                )
            ],
        )
        for column, (name, y_label) in columns.items()
    ]


def _table(rows: Sequence[Row], length: int) -> Table:
    heads = ["weight", "MAUVE", "MAUVE, pooled", "Gen-PPL", "entropy", "distinct-2", "valid Python", "pairs"]
    body = [
        [
            f"{row['mix_weight']}", with_spread(row["mauve"], row["mauve_spread"]), measure(row, "mauve_pooled"),
            with_spread(row["gen_ppl"], row["gen_ppl_spread"]), number(row["entropy"]), number(row["distinct_2"]),
            percent(row["parse_share"]), str(row["num_samples"]),
        ]
        for row in rows
    ]  # fmt: skip
    return Table(heads, body, f"Length {length}")
