"""What if: other numbers of registers, other moments of the refresh, models trained otherwise (App. C and G)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from crocodil.pipeline import Crocodil, Generation, Method
from crocodil.presets.runs import ABLATIONS
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
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, number
from crocodil.reproduce.experiments.autoencoder import autoencoder_row
from crocodil.reproduce.experiments.demasker_curves import missing
from crocodil.reproduce.experiments.generation import QUALITY_HEADS, methods, panels, quality_lines
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import Sampler, choose_and_measure, generate_with, sampler_of
from crocodil.sampling.configs import Decoding

REGISTER_COUNT_TITLE = "Number of registers (App. G i)"
REFRESH_TITLE = "Moment of the refresh (App. G ii)"
VARIANTS_TITLE = "Trained otherwise (App. C, App. G iii)"
REFRESH_FRACTIONS = (None, 0.25, 0.5, 0.75)  # App. G ii; None: never, which is ConThenDisc
MAIN = "the model itself"
NUMBER_OF_REGISTERS = "registers "  # a variant of this name and a number has a prior of that many


def at_all_calls(context: Context, samplers: Sequence[Sampler]) -> list[tuple[Sampler, int]]:
    return [(one, calls) for one in samplers for calls in context.protocol.ablation_calls_for(context.length)]


# ---------------------------------------------------------------- App. G i: how many registers are drawn


def compute_register_count(context: Context) -> list[Row]:
    """The first of the drawn registers alone, all else as ConThenDisc has it.

    More than the model's own prior draws take models of their own, which are swept for themselves.
    """
    if Method.CON_THEN_DISC not in methods(context.pipe):
        return []
    own = context.pipe.conditional if context.pipe.prior is None else context.pipe.prior
    assert own is not None
    samplers = [
        Sampler(
            {"registers": count, "variant_model": parts(context.pipe, GENERATION_PARTS)},
            partial(generate_from, context.pipe, count),
            GENERATION_PARTS,
            tuned_as=sampler_of(context.pipe, Method.CON_THEN_DISC),
        )
        for count in block_ends(own.config.num_registers)
    ]
    for name, pipe in context.variants.items():
        if name.startswith(NUMBER_OF_REGISTERS):
            count = int(name.removeprefix(NUMBER_OF_REGISTERS))
            key = {"registers": count, "variant_model": parts(pipe, GENERATION_PARTS)}
            samplers.append(Sampler(key, generate_with(pipe, Method.CON_THEN_DISC), GENERATION_PARTS))
    return choose_and_measure(context, "register-count", at_all_calls(context, samplers))


def generate_from(pipe: Crocodil, num_registers: int, count: int, *, seed: int, decoding: Decoding) -> Generation:
    """ConThenDisc from the first drawn registers; all were paid for."""
    registers, spent = draw_from_prior(pipe, count, seed=seed).first(num_registers)
    made = pipe.decode(registers, seed=seed, decoding=decoding, show_progress=False)
    nfe, flop_nfe = nfe_and_flop_nfe(pipe, spent, num_registers=num_registers)
    return replace(made, nfe=made.nfe + nfe, flop_nfe=made.flop_nfe + flop_nfe)


# ---------------------------------------------------------------- App. G ii: when registers are drawn again


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


# ---------------------------------------------------------------- models trained otherwise


def trained_otherwise(context: Context) -> dict[str, Crocodil]:
    others = {name: pipe for name, pipe in context.variants.items() if not name.startswith(NUMBER_OF_REGISTERS)}
    return {MAIN: context.pipe, **others}


def compute_variants(context: Context) -> list[Row]:
    """Each generates as ConThenDisc, after a sweep of its own; that of the model itself has been."""
    samplers = [
        Sampler(
            {"variant": name, "variant_model": parts(pipe, GENERATION_PARTS)},
            generate_with(pipe, Method.CON_THEN_DISC),
            GENERATION_PARTS,
            tuned_as=sampler_of(pipe, Method.CON_THEN_DISC) if name == MAIN else None,
        )
        for name, pipe in trained_otherwise(context).items()
        if Method.CON_THEN_DISC in methods(pipe)
    ]
    return choose_and_measure(context, "variants", at_all_calls(context, samplers))


def compute_variant_autoencoders(context: Context) -> list[Row]:
    """And each copies validation programs, in one block."""
    jobs = [
        Job(
            {"variant": name, "variant_model": parts(pipe, AUTOENCODER_PARTS), "calls": calls},
            partial(autoencoder_row, context, pipe, context.length, calls),
            work=calls,
            uses=AUTOENCODER_PARTS,
        )
        for name, pipe in trained_otherwise(context).items()
        for calls in context.protocol.ablation_calls_for(context.length)
    ]
    return context.store.compute("variant-autoencoders", jobs)


# ---------------------------------------------------------------- ink


def show_register_count(rows: Sequence[Row], references: Sequence[Row]) -> Section:
    texts = [
        Text(
            f"""How many registers should guide a generation? Few say little, many are hard for the prior to draw
            well. Here ConThenDisc, with its own temperatures and rules, is guided by the first 1, 2, 4 ... of
            the registers that its prior draws; larger numbers need priors of their own
            (`--ablation-model '{NUMBER_OF_REGISTERS}16=DIR'`)."""
        ),
        Text(
            """**Better:** higher MAUVE, lower Gen-PPL at a sound entropy. **The paper (no numbers printed):** 16
            registers are close to 8; 32 and 64 degrade."""
        ),
    ]
    return _show(REGISTER_COUNT_TITLE, texts, rows, references, by="registers", name="register-count")


def show_refresh(rows: Sequence[Row], references: Sequence[Row]) -> Section:
    texts = [
        Text(
            """ConWithinDisc draws its registers a second time, given the tokens found so far. Too early there is
            little to go by; too late there is little left to change. Temperatures and rules are those that were
            chosen for ConWithinDisc, which draws again half way."""
        ),
        Text(
            """**Better:** higher MAUVE, lower Gen-PPL at a sound entropy. **The paper (no numbers printed):**
            @0.50, half way, is best; @0.25 is closer to never; @0.75 gains little."""
        ),
    ]
    return _show(REFRESH_TITLE, texts, rows, references, by="refresh", name="refresh")


def show_variants(rows: Sequence[Row], autoencoders: Sequence[Row], references: Sequence[Row]) -> Section:
    texts = [
        Text(
            """Models that were trained with one idea of the paper left out: is it worth its place? Each is swept
            like the model itself, generates as ConThenDisc, and copies programs through its registers."""
        ),
        Text(
            f"""**Better:** higher MAUVE, lower Gen-PPL at a sound entropy; lower CER. **The paper:** without block
            offsets MAUVE falls by about {published.OFFSETS_GAIN}; without nested dropout copying hardly changes
            and generation suffers."""
        ),
    ]
    section = _show(VARIANTS_TITLE, texts, rows, references, by="variant", name="variants")
    heads = ["", "calls", "CER", "exact copies", "Gen-PPL", "entropy", "samples"]
    tables = [
        Table(heads, [_copy_line(row) for row in select(autoencoders, length=length)], f"Copies, length {length}")
        for length in distinct(autoencoders, "length")
    ]
    absent = [missing(name) for name in ABLATIONS if name not in distinct(autoencoders, "variant")]
    return Section(section.title, [*section.blocks, *tables, *absent])


def _copy_line(row: Row) -> list[str]:
    return [
        row["variant"], str(row["calls"]), number(row["cer"]), f"{row['exact_share']:.0%}", number(row["gen_ppl"]),
        number(row["entropy"]), str(row["num_samples"]),
    ]  # fmt: skip


def _show(
    title: str, texts: Sequence[Text], rows: Sequence[Row], references: Sequence[Row], *, by: str, name: str
) -> Section:
    blocks: list[Block] = list(texts)
    for length in distinct(rows, "length"):
        own, (real,) = select(rows, length=length), select(references, length=length)
        blocks.append(Picture(f"{name}-{length}", panels(own, real, along="calls", label="demasker calls", by=by)))
        blocks.append(Table(QUALITY_HEADS, quality_lines(own, by, length), f"Length {length}"))
    return Section(title, blocks)
