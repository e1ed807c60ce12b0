"""Programs from nothing: base, ConThenDisc and ConWithinDisc against their cost (Figs. 6 and 10), and samples."""

import copy
import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from crocodil.metrics import Measured, QualityPoint, SpeedUp, own_best, speedup_at_matched_quality
from crocodil.pipeline import Crocodil, Generation, Method
from crocodil.pipeline.folder import NETWORKS
from crocodil.reproduce import published
from crocodil.reproduce.context import AUTOENCODER_PARTS, DRAWING, Context
from crocodil.reproduce.document import (
    Block,
    Listing,
    Picture,
    Section,
    Table,
    Text,
    number,
    spread_around,
    spread_or_not_measured,
)
from crocodil.reproduce.experiments import equal_cost
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import (
    CHOSEN,
    CRITERION,
    Sampler,
    candidate_of,
    choose_and_measure,
    decoding_of,
    generate_with,
    own_candidate,
    parts_used_by,
    sampler_of,
)
from crocodil.sampling.configs import Decoding
from crocodil.sampling.cost import num_parameters

TITLE = "Generation (Figs. 6 and 10)"
NAMES = {Method.BASE: "base", Method.CON_THEN_DISC: "ConThenDisc", Method.CON_WITHIN_DISC: "ConWithinDisc"}
ENCODED = "encoded registers"  # decoded instead of drawn ones: what a perfect prior would reach
BOUND = "bound: registers of real programs"  # in pictures, where it is no method
QUALITATIVE_CALLS = (256, 128, 64, 32)  # App. G
LARGEST_ON_CPU = 2_000_000_000  # parameters of a demasker that is timed there


def compute(context: Context) -> list[Row]:
    samplers = [sampler_of(context.pipe, method) for method in methods(context.pipe)]
    if len(samplers) > 1:
        drawn = sampler_of(context.pipe, Method.CON_THEN_DISC)
        decoded = partial(decode_encoded, context)
        samplers.append(Sampler({"method": ENCODED}, decoded, (*AUTOENCODER_PARTS, DRAWING), tuned_as=drawn))
    entries = [
        (sampler, calls)
        for sampler in samplers
        for calls in context.protocol.calls(context.length, guided=sampler.key["method"] != Method.BASE)
    ]
    return choose_and_measure(context, "generation", entries)


def methods(pipe: Crocodil) -> list[Method]:
    """What a model can do: without a prior, the base alone."""
    has_prior = pipe.prior is not None or pipe.conditional is not None
    return [
        Method.BASE,
        *([Method.CON_THEN_DISC] if has_prior else []),
        *([Method.CON_WITHIN_DISC] if pipe.conditional is not None else []),
    ]


def decode_encoded(context: Context, count: int, *, seed: int, decoding: Decoding) -> Generation:
    """As many registers of training programs as guide a generation."""
    prior = context.pipe.conditional if context.pipe.prior is None else context.pipe.prior
    assert prior is not None
    kept = context.pipe.settings.drawing.num_registers or prior.config.num_registers
    registers = context.pipe.encode(context.texts("train", count), cut=True)[:, :kept]
    return context.pipe.decode(registers, seed=seed, decoding=decoding, show_progress=False)


# ---------------------------------------------------------------- what is normal, and how long it takes


def compute_reference(context: Context) -> list[Row]:
    """Real programs, judged as generated ones are: valid against test is as good as MAUVE gets."""
    return context.store.compute("reference", [Job({"split": "test"}, partial(_reference_row, context), uses=())])


def _reference_row(context: Context) -> Row:
    real = context.reference("test")
    mauves = context.evaluator.mauve_row(real.features, context.reference("valid").features)
    return {**mauves, **real.scores, "num_samples": len(real)}


def compute_seconds(context: Context) -> list[Row]:
    """Every point of the generation again, for the clock alone: its own seconds hold compiling and recording."""
    points = [row for row in context.store.rows("generation") if row["method"] in list(Method)]
    jobs = [
        Job(
            {"method": row["method"], "calls": row["calls"]},
            partial(_clocked, context, row),
            work=row["calls"],
            uses=parts_used_by(context.pipe, Method(row["method"])),
            chosen={name: row[name] for name in CHOSEN},
        )
        for row in points
    ]
    return context.store.compute("seconds", jobs)


def _clocked(context: Context, point: Row) -> Row:
    count = context.protocol.num_clocked
    decoding = replace(decoding_of(context.pipe, point["method"]), calls=point["calls"], **candidate_of(point))
    generate = partial(
        generate_with(context.pipe, Method(point["method"])), count, seed=context.seed, decoding=decoding
    )
    generate()  # shapes that are new are compiled and recorded here
    return {**{name: point[name] for name in CHOSEN}, "seconds": generate().seconds / count, "num_samples": count}


def by_the_clock(points: Sequence[Row], clocked: Sequence[Row]) -> list[Row]:
    """The points with the seconds that were measured for their own sake; None where they were not."""
    found = {_place_of(row): row["seconds"] for row in clocked}
    return [{**point, "seconds": found.get(_place_of(point))} for point in points]


def _place_of(row: Row) -> tuple[Any, ...]:
    return row["length"], row["method"], row["calls"]


def compute_cpu_seconds(context: Context) -> list[Row]:
    """One program after the other on a laptop's CPU in float32, with the default number of calls."""
    if num_parameters(context.pipe.demasker) > LARGEST_ON_CPU:
        return []
    jobs = [
        Job(
            {"method": str(method)},
            partial(_cpu_row, context, method),
            uses=parts_used_by(context.pipe, method),
            chosen=own_candidate(context.pipe, method),
        )
        for method in methods(context.pipe)
    ]
    return context.store.compute("cpu-seconds", jobs)


def _cpu_row(context: Context, method: Method) -> Row:
    count, all_threads = context.protocol.num_timed, torch.get_num_threads()
    torch.set_num_threads(min(context.protocol.cpu_threads, all_threads))
    try:
        made = on_cpu(context.pipe).generate(
            count, method=method, seed=context.seed, batch_size=1, show_progress=False
        )
        threads = torch.get_num_threads()
    finally:
        torch.set_num_threads(all_threads)
    return {
        **own_candidate(context.pipe, method),
        "calls": made.costs[0].demasker_calls,
        "cpu_seconds": made.seconds / count,
        "threads": threads,
        "machine": platform.machine(),
        "num_samples": count,
    }


def on_cpu(pipe: Crocodil) -> Crocodil:
    if pipe.device.type == "cpu":
        return pipe
    copies: dict[str, Any] = {name: copy.deepcopy(getattr(pipe, name)) for name in NETWORKS}
    networks = {name: network and network.to("cpu").float() for name, network in copies.items()}
    return replace(pipe, compiled=False, **networks)


# ---------------------------------------------------------------- speed-up


def speedups(
    rows: Sequence[Row], real: Row, *, unit: str = "flop_nfe", calls: int | None = None
) -> dict[str, SpeedUp | None]:
    """At the quality of the base with so many calls: by default, its own best number (`metrics.own_best`)."""
    calls = own_best_calls(rows, real) if calls is None else calls
    known = [row for row in rows if row[unit] is not None]
    curves = {
        method: [_point(row, unit) for row in select(known, method=method)]
        for method in distinct(rows, "method")
        if method != ENCODED
    }
    if calls not in [point.calls for point in curves[Method.BASE]]:  # the clock was not looked at
        return dict.fromkeys(curves)
    return {
        method: speedup_at_matched_quality(curves[Method.BASE], curve, calls=calls, **_normal(real))
        for method, curve in curves.items()
    }


def own_best_calls(rows: Sequence[Row], real: Row) -> int:
    """The fewest calls with which the base is as good as it gets."""
    base = [_point(row, "flop_nfe") for row in select(rows, method=str(Method.BASE))]
    return own_best(base, calls=rows[0]["length"], **_normal(real)).calls


def _normal(real: Row) -> dict[str, Any]:
    """What quality is held against, of real programs."""
    return {
        "real_entropy": real["entropy"],
        "real_gen_ppl": Measured(real["gen_ppl"], real["gen_ppl_spread"] or 0.0),
    }


def speedups_by_mauve(rows: Sequence[Row], real: Row) -> dict[str, SpeedUp | None]:
    """Where MAUVE alone must match, and alone says where the base is best: the other two are alike for all."""
    alike = {name: real[name] for name in ("gen_ppl", "gen_ppl_spread", "entropy")}
    return speedups([{**row, **alike} for row in rows], real)


def _point(row: Row, unit: str) -> QualityPoint:
    """A Gen-PPL that could not be measured is as bad as can be."""
    surprise = math.inf if row["gen_ppl"] is None else row["gen_ppl"]
    return QualityPoint(
        calls=row["calls"],
        nfe=row[unit],
        mauve=Measured(row["mauve"], row["mauve_spread"]),
        gen_ppl=Measured(surprise, row["gen_ppl_spread"] or 0.0),
        entropy=row["entropy"],
    )


# ---------------------------------------------------------------- ink


def show(rows: Sequence[Row], references: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            f"""Programs are written from nothing. The **base** reveals masked tokens without guidance;
            **ConThenDisc** first draws registers from a prior and lets them guide; **ConWithinDisc** draws them
            once more half way, given the text so far. **{ENCODED}** are those of training programs: what a
            perfect prior would reach."""
        ),
        Text(
            """**Better:** higher MAUVE (do the samples as a whole resemble real programs?), lower Gen-PPL (is each
            text fluent?), entropy and share of Python close to those of real programs, lower cost. A collapsed
            sampler that repeats itself has a splendid Gen-PPL: never read it without the entropy beside it."""
        ),
        Text(
            f"""**Fairness.** Every method is swept over the same temperatures and reveal rules on the validation
            split, at the same few numbers of calls; the nearest of them decides for the others, and for many calls
            a final among the best. Chosen is {CRITERION}. That alone runs on the test split, once, with other
            seeds. {ENCODED.capitalize()} take the choices of ConThenDisc. Costs include prior and encoder: NFE is
            the paper's unit (demasker calls, others by their share of parameters), NFE by FLOPs also counts
            positions, and seconds are of this machine. A **speed-up** always stands in all three."""
        ),
        Text(
            """A **speed-up** is granted where a method, at its cheapest, has a MAUVE and a Gen-PPL no worse
            than the base, within the base's own spread, and an entropy no further from that of real programs.
            Where the base's Gen-PPL is below that of real programs, that of real programs is asked: to be less
            surprising than they are is no merit. It is held against the base **at its own best number of calls**:
            the fewest at which the base is as good as it gets by all three measures. The paper holds it against
            the base with **one call a token**, which stands in a second table; there the base has a line of its
            own, which says what it gains by stopping early. **By MAUVE alone** asks for no more than MAUVE, and
            holds it against the base where that is best by MAUVE alone."""
        ),
    ]
    for length in distinct(rows, "length"):
        own, (real,) = select(rows, length=length), select(references, length=length)
        blocks += _show_length(own, real)
    others = [str(length) for length in published.LENGTHS if length not in distinct(rows, "length")]
    if others:
        blocks.append(_published_table())
        blocks.append(Text(f"Left out: lengths {', '.join(others)}; no model trained at them was given."))
    return Section(TITLE, blocks)


def _show_length(rows: Sequence[Row], real: Row) -> list[Block]:
    length = real["length"]
    notes = [note for note in distinct(rows, "note") if note]
    return [
        Picture(
            f"generation-{length}",
            panels(rows, real, along="flop_nfe", label="NFE by FLOPs"),
            _caption(rows, real),
        ),
        Table(QUALITY_HEADS, [*quality_lines(rows, "method", length), _real_line(real)], f"Length {length}"),
        *speedup_tables(rows, real),
        *equal_cost.show(rows, length),
        *(Text(f"**Beware:** {note}.") for note in notes),
    ]


def _caption(rows: Sequence[Row], real: Row) -> str:
    """What the picture shows, with the speed-ups in all units."""
    found = speedups_by_unit(rows, real)
    factors = [
        f"{named(method)} {_in_all_units(of)}"
        for method, of in found.items()
        if method != Method.BASE and of["flops"] is not None
    ]
    held = f"Speed-ups against the base at its own best, {own_best_calls(rows, real)} calls: "
    return f"Quality against cost on canvases of {real['length']} tokens. {held}{'; '.join(factors) or 'none'}."


def _in_all_units(found: dict[str, SpeedUp | None]) -> str:
    pairs = zip(found.values(), UNIT_HEADS, strict=True)
    return ", ".join(f"{_times(factor_of(one))} {unit}" for one, unit in pairs)


def panels(rows: Sequence[Row], real: Row, *, along: str, label: str, by: str = "method") -> list[Panel]:
    """MAUVE and Gen-PPL against cost."""
    return [
        Panel(
            title=f"{title} of generated programs, {real['length']} tokens", x_label=label, y_label=title,
            log_x=True, log_y=measure == "gen_ppl",
            level=("real programs", real[measure]),
            curves=[
                Curve(
                    BOUND if kind == ENCODED else named(kind),
                    *([row[name] for row in select(rows, **{by: kind})]
                    for name in (along, measure, f"{measure}_spread")),
                    is_bound=kind == ENCODED,
                )
                for kind in distinct(rows, by)
            ],
        )
        for measure, title in (("mauve", "MAUVE"), ("gen_ppl", "Gen-PPL"))
    ]  # fmt: skip


QUALITY_HEADS = (
    "", "calls", "MAUVE", "MAUVE, pooled", "MAUVE, published", "Gen-PPL", "Gen-PPL, published", "entropy",
    "distinct-2", "is Python", "NFE", "NFE, published", "NFE by FLOPs", "seconds", "temperature", "rule",
    "samples",
)  # fmt: skip


def named(kind: object) -> str:
    return next((name for method, name in NAMES.items() if method == kind), str(kind))


def quality_lines(rows: Sequence[Row], by: str, length: int) -> list[list[str]]:
    return [_quality_line(row, named(row[by]), length) for row in rows]


def _quality_line(row: Row, name: str, length: int) -> list[str]:
    theirs = published.GENERATION.get((length, row.get("method", ""), row["calls"]))
    mauve, gen_ppl, nfe = (None,) * 3 if theirs is None else (theirs.mauve, theirs.gen_ppl, theirs.nfe)
    return [
        name, str(row["calls"]), spread_around(row["mauve"], row["mauve_spread"]),
        spread_or_not_measured(row, "mauve_pooled"), _as_printed(mauve),
        spread_around(row["gen_ppl"], row["gen_ppl_spread"]), _as_printed(gen_ppl), number(row["entropy"]),
        number(row["distinct_2"]), f"{row['parse_share']:.0%}", number(row["nfe"]), _as_printed(nfe),
        number(row["flop_nfe"]), number(row["seconds"]), f"{row['temperature']}", row["rule"],
        str(row["num_samples"]),
    ]  # fmt: skip


def _real_line(real: Row) -> list[str]:
    known = {
        "": "real programs",
        "MAUVE": spread_around(real["mauve"], real["mauve_spread"]),
        "MAUVE, pooled": spread_or_not_measured(real, "mauve_pooled"),
        "Gen-PPL": spread_around(real["gen_ppl"], real["gen_ppl_spread"]),
        "entropy": number(real["entropy"]),
        "distinct-2": number(real["distinct_2"]),
        "is Python": f"{real['parse_share']:.0%}",
        "samples": str(real["num_samples"]),
    }
    return [known.get(head, number(None)) for head in QUALITY_HEADS]


UNITS = {"flops": "flop_nfe", "seconds": "seconds", "nfe": "nfe"}  # of a speed-up, and their columns
UNIT_HEADS = ("by FLOPs", "by the clock", "in the paper's NFE")


def speedups_by_unit(
    rows: Sequence[Row], real: Row, *, calls: int | None = None
) -> dict[str, dict[str, SpeedUp | None]]:
    """By method, then by unit; `calls` as in `speedups`."""
    found = {unit: speedups(rows, real, unit=column, calls=calls) for unit, column in UNITS.items()}
    return {method: {unit: found[unit][method] for unit in UNITS} for method in found["flops"]}


def factor_of(found: SpeedUp | None) -> float | None:
    return None if found is None else found.factor


def speedup_tables(rows: Sequence[Row], real: Row) -> list[Table]:
    """Against the base at its own best, and against the base with one call a token, as the paper does."""
    length, by_mauve = real["length"], speedups_by_mauve(rows, real)
    best_calls, at_best = own_best_calls(rows, real), speedups_by_unit(rows, real)
    a_token = speedups_by_unit(rows, real, calls=length)
    return [
        Table(
            ["", *UNIT_HEADS, "by FLOPs, MAUVE alone"],
            [
                [named(method), *_factors(found), _reached(by_mauve[method])]
                for method, found in at_best.items()
                if method != Method.BASE
            ],
            f"Speed-up against the base at its own best, {best_calls} calls, length {length}",
        ),
        Table(
            ["", *UNIT_HEADS, "in the paper's NFE, published"],
            [
                [named(method), *_factors(found), _times(_papers(method, length))]
                for method, found in a_token.items()
            ],
            f"Speed-up against the base with one call a token, {length} calls",
        ),
    ]


def _factors(found: dict[str, SpeedUp | None]) -> list[str]:
    if found["flops"] is None:
        return ["no match"] * len(UNITS)
    return [number(None) if one is None else _reached(one) for one in found.values()]


def _reached(found: SpeedUp | None) -> str:
    return "no match" if found is None else f"{_times(found.factor)}, {found.method.calls} calls"


def _papers(method: str, length: int) -> float | None:
    return published.SPEEDUP.get(length) if method == Method.CON_WITHIN_DISC else None


def _published_table() -> Table:
    """For lengths of which there is no row of ours to stand beside."""
    body = [
        [f"{named(method)}, length {length}", str(calls), *(_as_printed(value) for value in point)]
        for (length, method, calls), point in published.GENERATION.items()
    ]
    speedups = ", ".join(f"{factor} x at length {length}" for length, factor in published.SPEEDUP.items())
    heads = ["published", "calls", "NFE, published", "MAUVE, published", "Gen-PPL, published"]
    return Table(heads, body, f"What the paper prints; its speed-ups of ConWithinDisc: {speedups}")


def _as_printed(value: float | None) -> str:
    return number(None) if value is None else str(value)


def _times(factor: float | None) -> str:
    return number(None) if factor is None else f"{number(factor)} x"


def show_samples(rows: Sequence[Row]) -> Section:
    """App. G: two samples of ConThenDisc for each number of calls; where there are none, what there is."""
    drawn = select(rows, method=str(Method.CON_THEN_DISC)) or list(rows)
    chosen = [row for row in drawn if row["calls"] in QUALITATIVE_CALLS] or drawn
    blocks: list[Block] = [
        Text(
            """Programs as they were generated, the first two of each setting, none picked. Read them for what
            numbers do not say: do names agree, do brackets close, does a function do what it is called?"""
        )
    ]
    for row in sorted(chosen, key=lambda row: (row["length"], -row["calls"])):
        for place, text in enumerate(row["texts"], start=1):
            blocks.append(
                Listing(
                    f"Length {row['length']}, {named(row['method'])}, {row['calls']} calls, sample {place}", text
                )
            )
    return Section("Samples (App. G)", blocks)
