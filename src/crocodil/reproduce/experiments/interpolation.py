"""Between two programs: mixed registers decoded (App. D, Fig. 8)."""

from collections.abc import Sequence
from functools import cached_property, partial

from crocodil.processes.registers import interpolate
from crocodil.reproduce.context import AUTOENCODER_PARTS, Context
from crocodil.reproduce.document import (
    Block,
    Picture,
    Section,
    Table,
    Text,
    number,
    spread_around,
    spread_or_not_measured,
)
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import quality_and_cost
from crocodil.shapes import RegisterBank

TITLE = "Interpolation (Fig. 8)"
MIX_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
TOKENS_A_CALL = 8  # not stated


class Pairs:
    """Random pairs of validation programs, encoded when they are first needed."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @cached_property
    def ends(self) -> tuple[RegisterBank, RegisterBank]:
        texts = self.context.texts("valid", 2 * self.context.protocol.num_pairs)
        first, second = self.context.pipe.encode(texts[: 2 * (len(texts) // 2)], cut=True).bank.chunk(2)
        return first, second

    def row(self, mix_weight: float) -> Row:
        mixed = interpolate(*self.ends, mix_weight=mix_weight)
        calls = max(1, self.context.length // TOKENS_A_CALL)
        made = self.context.pipe.decode(mixed, calls=calls, seed=self.context.seed, show_progress=False)
        return {
            **quality_and_cost(self.context, made, "test"),
            "temperature": 0.0,
            "calls": made.costs[0].demasker_calls,
        }


def compute(context: Context) -> list[Row]:
    pairs = Pairs(context)
    jobs = [
        Job({"mix_weight": weight}, partial(pairs.row, weight), uses=AUTOENCODER_PARTS) for weight in MIX_WEIGHTS
    ]
    return context.store.compute("interpolation", jobs)


def show(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """The registers of two unrelated programs are mixed, from all of the first (weight 0) to all of the
            second (weight 1), and the mixture is decoded. Where the space of registers is well-behaved, what
            lies between two programs is a program too."""
        ),
        Text(
            """**Better:** a curve that stays high (MAUVE) and low (Gen-PPL) in the middle. **The paper (Fig. 8, no
            numbers printed):** quality remains high along the whole path, with a moderate rise of Gen-PPL in
            the middle."""
        ),
    ]
    heads = ["weight", "MAUVE", "MAUVE, pooled", "Gen-PPL", "entropy", "distinct-2", "is Python", "pairs"]
    for length in distinct(rows, "length"):
        own = select(rows, length=length)
        panels = [
            Panel(
                title=f"{title} on the way, {length} tokens", y_label=title,
                x_label="weight of the second program",
                curves=[
                    Curve("decoded", *([row[one] for row in own] for one in ("mix_weight", key, f"{key}_spread")))
                ],
            )
            for key, title in (("mauve", "MAUVE"), ("gen_ppl", "Gen-PPL"))
        ]  # fmt: skip
        body = [
            [
                f"{row['mix_weight']}", spread_around(row["mauve"], row["mauve_spread"]),
                spread_or_not_measured(row, "mauve_pooled"),
                spread_around(row["gen_ppl"], row["gen_ppl_spread"]), number(row["entropy"]),
                number(row["distinct_2"]), f"{row['parse_share']:.0%}", str(row["num_samples"]),
            ]
            for row in own
        ]  # fmt: skip
        blocks += [Picture(f"interpolation-{length}", panels), Table(heads, body, f"Length {length}")]
    return Section(TITLE, blocks)
