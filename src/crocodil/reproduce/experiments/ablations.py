"""Ablations: the number of registers, the time of the refresh, and models trained differently (App. C and G)."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from crocodil.pipeline import Crocodil, Generation, Method
from crocodil.presets.ablated import ABLATIONS
from crocodil.processes.registers import block_ends
from crocodil.reproduce import published
from crocodil.reproduce.context import (
    AUTOENCODER_PARTS,
    GENERATION_PARTS,
    Context,
    draw_from_prior,
    nfe_and_flop_nfe,
    parts,
)
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, number, percent
from crocodil.reproduce.experiments.autoencoder import autoencoder_row
from crocodil.reproduce.experiments.demasker_curves import missing_model
from crocodil.reproduce.experiments.generation import methods
from crocodil.reproduce.experiments.quality import quality_panels, quality_table
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import Sampler, choose_and_measure, generate_with, of_another_model, sampler_of
from crocodil.sampling.configs import Decoding

REGISTER_COUNT_TITLE = "Number of registers (App. G i)"
REFRESH_TITLE = "Time of the refresh (App. G ii)"
VARIANTS_TITLE = "Training ablations (App. C, App. G iii)"
REFRESH_FRACTIONS = (None, 0.25, 0.5, 0.75)  # App. G ii; None: never, which is ConThenDisc
MAIN = "the model itself"
NUMBER_OF_REGISTERS = "registers "  # a variant "registers 16" has a prior with 16 registers


def at_all_calls(context: Context, samplers: Sequence[Sampler]) -> list[tuple[Sampler, int]]:
    return [(one, calls) for one in samplers for calls in context.protocol.ablation_calls_for(context.length)]


# ---------------------------------------------------------------- App. G i: the number of registers


def compute_register_count(context: Context) -> list[Row]:
    """Run ConThenDisc with the first 1, 2, 4 ... drawn registers and otherwise equal settings.

    More registers than the model's prior draws need models of their own, which have their own sweep.
    """
    if Method.CON_THEN_DISC not in methods(context.pipe):
        return []
    prior = context.pipe.first_prior
    assert prior is not None
    samplers = [
        Sampler(
            {"registers": count, "variant_model": parts(context.pipe, GENERATION_PARTS)},
            partial(generate_from, context.pipe, count),
            GENERATION_PARTS,
            tuned_as=sampler_of(context.pipe, Method.CON_THEN_DISC),
        )
        for count in block_ends(prior.config.num_registers)
    ]
    for name, pipe in context.variants.items():
        if name.startswith(NUMBER_OF_REGISTERS):
            count = int(name.removeprefix(NUMBER_OF_REGISTERS))
            key = {"registers": count}
            samplers.append(of_another_model(key, pipe, Method.CON_THEN_DISC, uses=GENERATION_PARTS))
    return choose_and_measure(context, "register-count", at_all_calls(context, samplers))


def generate_from(
    pipe: Crocodil, num_registers: int, count: int, *, seed: int, decoding: Decoding, **drawing: Any
) -> Generation:
    """Run ConThenDisc with the first `num_registers` drawn registers; the cost is that of drawing all."""
    settings = replace(pipe.settings, drawing=replace(pipe.settings.drawing, **drawing))
    pipe, started_at = replace(pipe, settings=settings), time.perf_counter()
    registers, cost = draw_from_prior(pipe, count, seed=seed).first(num_registers)
    made = pipe.decode(registers, seed=seed, decoding=decoding, show_progress=False)
    nfe, flop_nfe = nfe_and_flop_nfe(pipe, cost, num_registers=num_registers)
    seconds = time.perf_counter() - started_at
    return replace(made, nfe=made.nfe + nfe, flop_nfe=made.flop_nfe + flop_nfe, seconds=seconds)


# ---------------------------------------------------------------- App. G ii: the time of the refresh


def compute_refresh(context: Context) -> list[Row]:
    if context.pipe.conditional is None:
        return []
    samplers = [
        Sampler(
            {"refresh": "never" if fraction is None else f"@{fraction:.2f}"},
            generate_with(
                context.pipe, Method.CON_WITHIN_DISC, refresh_at=() if fraction is None else (fraction,)
            ),
            GENERATION_PARTS,
            tuned_as=sampler_of(context.pipe, Method.CON_WITHIN_DISC),
        )
        for fraction in REFRESH_FRACTIONS
    ]
    return choose_and_measure(context, "refresh", at_all_calls(context, samplers))


# ---------------------------------------------------------------- models trained differently


def trained_differently(context: Context) -> dict[str, Crocodil]:
    """Return the model itself and all variants by name, except those with another number of registers."""
    others = {name: pipe for name, pipe in context.variants.items() if not name.startswith(NUMBER_OF_REGISTERS)}
    return {MAIN: context.pipe, **others}


def compute_variants(context: Context) -> list[Row]:
    """Generate with each variant as ConThenDisc, after a sweep of its own."""
    samplers = [
        of_another_model({"variant": name}, pipe, Method.CON_THEN_DISC, uses=GENERATION_PARTS)._replace(
            tuned_as=sampler_of(pipe, Method.CON_THEN_DISC) if name == MAIN else None
        )
        for name, pipe in trained_differently(context).items()
        if Method.CON_THEN_DISC in methods(pipe)
    ]
    return choose_and_measure(context, "variants", at_all_calls(context, samplers))


def compute_variant_autoencoders(context: Context) -> list[Row]:
    """Copy validation programs with each variant, in one block."""
    jobs = [
        Job(
            {"variant": name, "variant_model": parts(pipe, AUTOENCODER_PARTS), "calls": calls},
            partial(autoencoder_row, context, pipe, context.length, calls),
            work=calls,
            uses=AUTOENCODER_PARTS,
        )
        for name, pipe in trained_differently(context).items()
        for calls in context.protocol.ablation_calls_for(context.length)
    ]
    return context.store.compute("variant-autoencoders", jobs)


# ---------------------------------------------------------------- report


def show_register_count(rows: Sequence[Row], references: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            f"""How many registers should guide a generation? Few registers say little; many are hard for the prior
            to draw well. Here ConThenDisc decodes the first 1, 2, 4 ... of the registers that its prior draws,
            with its usual temperature and rule. Larger numbers need models of their own (`--ablation-model
            '{NUMBER_OF_REGISTERS}16=DIR'`)."""
        ),
        Text(
            """**Better:** higher MAUVE, and lower Gen-PPL at an entropy close to that of real programs. **The
            paper (no numbers printed):** 16 registers are close to 8; 32 and 64 are worse."""
        ),
    ]
    for length in distinct(rows, "length"):
        (real,) = select(references, length=length)
        of_length = select(rows, length=length)
        by_calls = [{**row, "curve": f"{row['calls']} calls"} for row in of_length]
        panels = quality_panels(
            by_calls, real, x="registers", x_label="registers", against="registers", by="curve"
        )
        blocks += [
            Picture(f"register-count-{length}", panels),
            quality_table(of_length, "registers", length, real),
        ]
    return Section(REGISTER_COUNT_TITLE, blocks)


def show_refresh(rows: Sequence[Row], references: Sequence[Row]) -> Section:
    texts = [
        Text(
            """ConWithinDisc draws its registers a second time, given the tokens revealed so far. Early, few
            tokens are known; late, few tokens are left to change. The temperature and the rule are those
            chosen for ConWithinDisc, which draws again halfway (@0.50)."""
        ),
        Text(
            """**Better:** higher MAUVE, and lower Gen-PPL at an entropy close to that of real programs. **The
            paper (no numbers printed):** @0.50 is best; @0.25 is close to never; @0.75 gains little."""
        ),
    ]
    return Section(REFRESH_TITLE, [*texts, *_by_calls(rows, references, by="refresh", name="refresh")])


def show_variants(rows: Sequence[Row], autoencoders: Sequence[Row], references: Sequence[Row]) -> Section:
    texts = [
        Text(
            """Each of these models was trained without one idea of the paper, or with it for half of the steps.
            Each has its own sweep, generates as ConThenDisc, and copies programs through its registers."""
        ),
        Text(
            f"""**Better:** higher MAUVE, and lower Gen-PPL at an entropy close to that of real programs; lower
            CER. **The paper:** without block offsets MAUVE falls by about {published.OFFSETS_GAIN}; without
            nested dropout copies hardly change and generation gets worse."""
        ),
    ]
    heads = ["", "calls", "CER", "exact copies", "Gen-PPL", "entropy", "samples"]
    tables = [
        Table(heads, [_copy_line(row) for row in select(autoencoders, length=length)], f"Copies, length {length}")
        for length in distinct(autoencoders, "length")
    ]
    missing = [missing_model(name) for name in ABLATIONS if name not in distinct(autoencoders, "variant")]
    pictures = _by_calls(rows, references, by="variant", name="variants")
    return Section(VARIANTS_TITLE, [*texts, *pictures, *tables, *missing])


def _copy_line(row: Row) -> list[str]:
    return [
        row["variant"], str(row["calls"]), number(row["cer"]), percent(row["exact_share"]), number(row["gen_ppl"]),
        number(row["entropy"]), str(row["num_samples"]),
    ]  # fmt: skip


def _by_calls(rows: Sequence[Row], references: Sequence[Row], *, by: str, name: str) -> list[Block]:
    """Return a picture and a table for each length."""
    blocks: list[Block] = []
    for length in distinct(rows, "length"):
        of_length, (real,) = select(rows, length=length), select(references, length=length)
        panels = quality_panels(of_length, real, x="calls", x_label="demasker calls", against="calls", by=by)
        blocks += [Picture(f"{name}-{length}", panels), quality_table(of_length, by, length, real)]
    return blocks
