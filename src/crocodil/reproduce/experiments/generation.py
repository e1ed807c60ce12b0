"""Generate programs from an empty canvas: quality against cost for all methods (Figs. 6 and 10), and samples."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from crocodil.judges.evaluator import OTHER_JUDGES
from crocodil.pipeline import Crocodil, Generation, Method
from crocodil.reproduce import published
from crocodil.reproduce.choice import BY_AIMS, TIE, best
from crocodil.reproduce.context import AUTOENCODER_PARTS, DRAWING, Context
from crocodil.reproduce.document import Block, Listing, Picture, Section, Table, Text, measure
from crocodil.reproduce.experiments.comparison import equal_cost_blocks, has_base, speedup_caption, speedup_tables
from crocodil.reproduce.experiments.frontiers import frontier_picture, frontier_table, has_other_settings
from crocodil.reproduce.experiments.quality import (
    OF_MODEL,
    ORACLE,
    as_printed,
    display_name,
    quality_panels,
    quality_table,
)
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import (
    Sampler,
    choose_and_measure,
    has_default_settings,
    of_another_model,
    sampler_of,
    sources_of,
    sweep,
)
from crocodil.sampling.configs import Decoding

TITLE = "Generation (Figs. 6 and 10)"
FRONTIER_NOTE = """The table reads each frontier at the same entropies, on the lower convex hull of its points (in
    the logarithm of Gen-PPL): a mixture of the samples of two settings lies between them. A cell is empty where no
    setting of the method is as varied."""
SPEEDUP_NOTE = """A **speed-up** is the cost of the base divided by the cost of the cheapest point of a method that
    matches the base. A point matches if its MAUVE and Gen-PPL are no worse than those of the base,
    within the spread of the base, and its entropy is no further from that of real programs. Methods
    need only match the Gen-PPL of real programs if the base is below it. The first table compares with
    the base **at its best number of calls**: the fewest calls at which the base matches its own best
    point. The second table compares with the base **at one call per token**, as the paper does; the
    line of the base shows what the base itself gains from fewer calls. In the column **MAUVE only**,
    MAUVE alone must match, and the best number of calls of the base is chosen by MAUVE alone."""
QUALITATIVE_CALLS = (256, 128, 64, 32)  # App. G


def compute(context: Context) -> list[Row]:
    return choose_and_measure(context, "generation", entries(context))


def compute_sweep(context: Context) -> list[Row]:
    """Measure the candidates of all methods on the validation split; nothing is measured on the test split."""
    return sweep(context, sources_of(context, entries(context)))


def entries(context: Context) -> list[tuple[Sampler, int]]:
    """Return each sampler with each number of calls at which it is measured."""
    protocol, length = context.protocol, context.length
    at_compared = [calls for calls in protocol.compared_calls if calls <= length]
    return [
        (sampler, calls)
        for sampler in samplers(context)
        for calls in (at_compared if sampler.compared else protocol.calls(length, guided=sampler.is_guided))
    ]


def samplers(context: Context) -> list[Sampler]:
    """Return the methods of the model, the guided methods of compared models, and registers of real programs."""
    own = [sampler_of(context.pipe, method) for method in methods(context.pipe)]
    beside = [
        of_another_model({"method": f"{name}{OF_MODEL}{method}"}, pipe, method, uses=())._replace(compared=name)
        for name, pipe in context.compared.items()
        for method in methods(pipe)
        if method != Method.BASE
    ]
    if len(own) == 1 or not context.protocol.with_oracle:
        return [*own, *beside]
    oracle = Sampler(
        {"method": ORACLE},
        partial(decode_encoded, context),
        (*AUTOENCODER_PARTS, DRAWING),
        tuned_as=sampler_of(context.pipe, Method.CON_THEN_DISC),
    )
    return [*own, *beside, oracle]


def methods(pipe: Crocodil) -> list[Method]:
    """Return the methods that a model supports: without a prior, the base alone."""
    has_prior = pipe.prior is not None or pipe.conditional is not None
    return [
        Method.BASE,
        *([Method.CON_THEN_DISC] if has_prior else []),
        *([Method.CON_WITHIN_DISC] if pipe.conditional is not None else []),
    ]


def decode_encoded(context: Context, count: int, *, seed: int, decoding: Decoding, **drawing: Any) -> Generation:
    """Decode the registers of training programs, as many registers per program as a generation uses."""
    prior = context.pipe.first_prior
    assert prior is not None
    num_registers = replace(context.pipe.settings.drawing, **drawing).num_registers or prior.config.num_registers
    registers = context.pipe.encode(context.texts("train", count), cut=True)[:, :num_registers]
    return context.pipe.decode(registers, seed=seed, decoding=decoding, show_progress=False)


def compute_reference(context: Context) -> list[Row]:
    """Judge real programs like generated ones: the MAUVE of test against valid is the best one can expect."""
    return context.store.compute("reference", [Job({"split": "test"}, partial(_reference_row, context), uses=())])


def _reference_row(context: Context) -> Row:
    real = context.reference("test")
    return {**context.evaluator.compare(real, context.reference("valid")), "num_samples": len(real)}


def compute_anchor(context: Context) -> list[Row]:
    """Judge real test programs like generated ones: one half of them against the other half."""
    return context.store.compute("anchor", [Job({"split": "test"}, partial(_anchor_row, context), uses=())])


def _anchor_row(context: Context) -> Row:
    """Return the numbers of a model that writes real programs. Few programs are halved, and the row says so."""
    texts = context.texts("test", 2 * context.protocol.num_samples)
    half = len(texts) // 2
    is_whole = half == context.protocol.num_samples
    real = context.reference("test") if is_whole else context.evaluator.reference(texts[:half])
    return {**context.evaluator.evaluate(texts[half : 2 * half], real), "num_samples": half}


# ---------------------------------------------------------------- report


def show(
    rows: Sequence[Row], references: Sequence[Row], swept: Sequence[Row] = (), anchors: Sequence[Row] = ()
) -> Section:
    blocks: list[Block] = list(_explanation(rows, swept))
    for length in distinct(rows, "length"):
        (real,) = select(references, length=length)
        anchor = next(iter(select(anchors, length=length)), None)
        blocks += _show_length(select(rows, length=length), real, select(swept, length=length), anchor)
    missing = [str(length) for length in published.LENGTHS if length not in distinct(rows, "length")]
    if missing:
        blocks.append(_published_table())
        blocks.append(Text(f"Not measured: length {', '.join(missing)}. No model of this length was given."))
    return Section(TITLE, blocks)


def _explanation(rows: Sequence[Row], swept: Sequence[Row]) -> list[Text]:
    return [
        Text(
            """Each method writes programs from an empty canvas. The **base** reveals masked tokens without
            guidance. **ConThenDisc** first draws registers from the prior, then decodes them.
            **ConWithinDisc** draws the registers a second time halfway through decoding, given the text so
            far. **Oracle registers** are not drawn: they are the encoder's registers of real training
            programs, and show what a perfect prior would reach."""
        ),
        Text(
            """**Better:** higher MAUVE (the samples as a set resemble real programs), lower Gen-PPL (each text is
            fluent), entropy and share of valid Python close to those of real programs, and lower cost. A
            sampler that repeats itself has a very low Gen-PPL, so always read Gen-PPL together with entropy."""
        ),
        _tuning(rows, swept),
        Text(
            """**Cost** includes the prior and the encoder, in three units. NFE is the paper's unit: demasker
            calls, and calls of other networks weighted by their number of parameters. NFE by FLOPs also
            weights calls by the number of positions. Seconds are measured on the machine that computed the
            rows."""
        ),
        *([Text(SPEEDUP_NOTE)] if has_base(rows) else []),
    ]


def _tuning(rows: Sequence[Row], swept: Sequence[Row]) -> Text:
    """Say how the settings were chosen."""
    if has_default_settings(rows):
        return Text(
            """**Settings.** Every method has the model's default settings. No sweep was made for these rows.
            Oracle registers use the settings of ConThenDisc."""
        )
    if has_other_settings(swept):
        tuned = (
            "The settings of every method are chosen from equally many candidates, those of the base from its own,"
        )
    else:
        tuned = "The temperature and the reveal rule of every method are chosen from the same candidates"
    if BY_AIMS in distinct(rows, "criterion"):
        chosen = """reaches the most aims of the protocol, and has the highest MAUVE among those that reach equally
            many"""
    else:
        chosen = f"""has the lowest Gen-PPL among those whose MAUVE is within its spread, or within {TIE}, of the
            highest"""
    return Text(
        f"""**Fair tuning.** {tuned} on the validation split, at the same few numbers of calls. The chosen
        candidate {chosen}. Other
        numbers of calls use the choice of the nearest one; for large numbers, the best candidates are
        compared again with more calls. Only the chosen setting runs on the test split, once, with other
        seeds. Oracle registers use the settings of ConThenDisc."""
    )


def _show_length(rows: Sequence[Row], real: Row, swept: Sequence[Row], anchor: Row | None) -> list[Block]:
    length, frontier = real["length"], frontier_picture(swept, real)
    panels = quality_panels(
        rows,
        real,
        x="flop_nfe",
        x_label="compute per program (FLOPs, in calls of the base)",
        against="compute",
        by="method",
    )
    return [
        Picture(f"generation-{length}", panels, speedup_caption(rows, real)),
        *([] if frontier is None else [frontier]),
        *([] if anchor is None else _anchored(swept, real)),
        quality_table(rows, "method", length, real, anchor),
        *other_judges_table(rows, real, anchor),
        *speedup_tables(rows, real),
        *equal_cost_blocks(rows, length),
        *(Text(f"**Note:** {note}.") for note in distinct(rows, "note") if note),
    ]


def choices(swept: Sequence[Row]) -> list[Block]:
    """Return the settings that the sweep chooses; shown as long as nothing is measured on the test split."""
    of_methods = [row for row in swept if row.get("method") is not None]
    chosen = [
        best(candidates)
        for length in distinct(of_methods, "length")
        for method in distinct(of_methods, "method")
        for calls in distinct(of_methods, "calls")
        if (candidates := select(of_methods, length=length, method=method, calls=calls))
    ]
    tables = [
        quality_table(select(chosen, length=length), "method", length) for length in distinct(chosen, "length")
    ]
    text = "The settings chosen on the validation split. The numbers are those of the validation split, too."
    return [Text(text), *tables] if tables else []


def _anchored(swept: Sequence[Row], real: Row) -> list[Block]:
    """Return what is shown beside the figure of frontiers since there are anchor rows."""
    table = frontier_table(swept, real)
    return [] if table is None else [table, Text(FRONTIER_NOTE)]


def other_judges_table(rows: Sequence[Row], real: Row, anchor: Row | None) -> list[Table]:
    """Return the numbers of judges other than the one that chose the settings; nothing if there are none."""
    named = [(f"{display_name(row['method'])}, {row['calls']} calls", row) for row in rows]
    named += [("real programs", real), *([] if anchor is None else [("real programs, another half", anchor)])]
    body = [
        [name, judge, *(measure(scores, column) for column in ("mauve", "mauve_pooled", "gen_ppl"))]
        for name, row in named
        for judge, scores in row.get(OTHER_JUDGES, {}).items()
    ]
    heads = ["", "judge", "MAUVE", "MAUVE, pooled", "Gen-PPL"]
    return [Table(heads, body, f"Other judges, length {real['length']}")] if body else []


def _published_table() -> Table:
    """Return the paper's numbers of all lengths."""
    body = [
        [f"{display_name(method)}, length {length}", str(calls), *(as_printed(value) for value in point)]
        for (length, method, calls), point in published.GENERATION.items()
    ]
    factors = ", ".join(f"{factor} x at length {length}" for length, factor in published.SPEEDUP.items())
    heads = ["method", "calls", "NFE, published", "MAUVE, published", "Gen-PPL, published"]
    return Table(heads, body, f"Numbers of the paper, and its speed-ups of ConWithinDisc: {factors}")


def show_samples(rows: Sequence[Row]) -> Section:
    """Return two samples of ConThenDisc for each number of calls of App. G; without those, all samples."""
    rows = select(rows, method=str(Method.CON_THEN_DISC)) or list(rows)
    rows = [row for row in rows if row["calls"] in QUALITATIVE_CALLS] or rows
    blocks: list[Block] = [
        Text(
            """The first two programs of each setting, not selected. Look for what the measures miss: are names
            consistent, do brackets close, does a function do what its name says?"""
        )
    ]
    for row in sorted(rows, key=lambda row: (row["length"], -row["calls"])):
        title = f"Length {row['length']}, {display_name(row['method'])}, {row['calls']} calls"
        blocks += [Listing(f"{title}, sample {index}", text) for index, text in enumerate(row["texts"], start=1)]
    return Section("Samples (App. G)", blocks)
