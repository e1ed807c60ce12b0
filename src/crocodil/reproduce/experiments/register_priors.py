"""Quality of the priors: PSNR against diffusion time, and PRDC of the drawn registers (App. E)."""

import math
from collections.abc import Sequence
from functools import partial

from crocodil.metrics import prdc_per_register, psnr, squared_error_by_time
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.processes.gaussian import Denoise
from crocodil.processes.registers import normalise, perturb
from crocodil.reproduce import published
from crocodil.reproduce.context import (
    PRIOR_PARTS,
    Context,
    batch_size,
    draw_from_conditional,
    draw_from_prior,
    mask_half,
)
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, number, with_spread
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.shapes import RegisterBank, TokenIds

TITLE = "Priors over registers (Fig. 9, PRDC of App. E)"
UNCONDITIONAL, CONDITIONAL = "unconditional", "conditional"
PRDC_NAMES = ("precision", "recall", "density", "coverage")


def priors(context: Context) -> dict[str, RegisterDenoiser]:
    """Return the priors by name; a conditional prior with an empty canvas can serve as both (decision D15)."""
    pipe = context.pipe
    by_name = {UNCONDITIONAL: pipe.first_prior, CONDITIONAL: pipe.conditional}
    return {name: prior for name, prior in by_name.items() if prior is not None}


def compute_psnr(context: Context) -> list[Row]:
    """Measure the predicted registers of validation programs; the conditional prior sees half of the tokens."""
    jobs = [
        Job({"prior": name, "diffusion_time": time}, partial(_psnr_row, context, name, time), uses=PRIOR_PARTS)
        for name in priors(context)
        for time in context.protocol.diffusion_times
    ]
    return context.store.compute("psnr", jobs)


def _psnr_row(context: Context, name: str, time: float) -> Row:
    prior, pipe = priors(context)[name], context.pipe
    texts = context.texts("valid", context.protocol.num_programs)
    total, size = 0.0, batch_size(pipe)
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        streams = context.streams("psnr", len(batch), start=start)
        registers = prior.standardise(pipe.encode(batch, cut=True).bank[:, : prior.config.num_registers])
        condition = mask_half(pipe, batch, streams.at("half")) if name == CONDITIONAL else None
        errors = squared_error_by_time(_denoise(context, prior, condition), registers, [time], streams=streams)
        total += errors[time] * len(batch)
    return {"psnr": psnr(total / len(texts)), "num_samples": len(texts)}


def _denoise(context: Context, prior: RegisterDenoiser, seen: TokenIds | None) -> Denoise:
    if prior.condition_embed is None:
        return prior
    condition = context.pipe.condition(context.pipe.canvas(context.length).tokens if seen is None else seen)
    return lambda registers, time: prior(registers, time, condition=condition)


def compute_prdc(context: Context) -> list[Row]:
    """Compare drawn registers with those of validation programs, register by register."""
    jobs = [Job({"prior": name}, partial(_prdc_row, context, name), uses=PRIOR_PARTS) for name in priors(context)]
    return context.store.compute("prdc", jobs)


def _prdc_row(context: Context, name: str) -> Row:
    pipe, protocol = context.pipe, context.protocol
    texts = context.texts("valid", protocol.num_drawn)
    if name == CONDITIONAL:
        seen = mask_half(pipe, texts, context.streams("prdc", len(texts)))
        num_steps = pipe.settings.drawing.refresh_steps
        fake = draw_from_conditional(pipe, seen, seed=context.seed, num_steps=num_steps)
    else:
        num_steps = pipe.settings.drawing.prior_steps
        fake = draw_from_prior(pipe, len(texts), seed=context.seed).registers
    real = _as_noisy_as_drawn(context, pipe.encode(texts, cut=True).bank[:, : fake.shape[1]])
    prdc = prdc_per_register(real, fake, nearest=protocol.nearest)
    spread = {f"{measure}_spread": value for measure, value in prdc.spread._asdict().items()}
    return {**prdc.mean._asdict(), **spread, "num_samples": len(texts), "num_steps": num_steps}


def _as_noisy_as_drawn(context: Context, registers: RegisterBank) -> RegisterBank:
    """Return encoded registers with the noise that drawn ones have (decisions D48 and D63)."""
    drawing = context.pipe.settings.drawing
    std = drawing.register_noise
    if not std:
        return registers
    noisy = perturb(registers, std=std, streams=context.streams("noise of prdc", len(registers)))
    return normalise(noisy) * math.sqrt(1 + std**2) if drawing.early_stop else noisy


# ---------------------------------------------------------------- report


def show(psnr_rows: Sequence[Row], prdc_rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """A prior turns noise into registers step by step: its input is pure noise at diffusion time 1 and
            clean registers at time 0. The conditional prior also sees half of the tokens of the program, which
            should help most where the noise is strong."""
        ),
        Text(
            """**Better:** higher PSNR (closer to the true registers; predicting zero gives 0 dB). PRDC compares
            the distributions of drawn and encoded registers: precision and density measure whether drawn
            registers look real, recall and coverage whether they are as varied as real ones; all are best near
            1. **The paper:** the conditional prior has a higher PSNR over a wide range of times (Fig. 9, no
            numbers printed) and a higher recall. The paper's PRDC is a mean over 128 registers, ours over the
            registers that the prior draws."""
        ),
    ]
    for length in distinct([*psnr_rows, *prdc_rows], "length"):
        blocks += _show_psnr(select(psnr_rows, length=length), length)
        blocks += _show_prdc(select(prdc_rows, length=length), length)
    return Section(TITLE, blocks)


def _show_psnr(rows: Sequence[Row], length: int) -> list[Block]:
    if not rows:
        return []
    names = distinct(rows, "prior")
    panel = Panel(
        title=f"PSNR of predicted registers, {length} tokens", x_label="diffusion time (1 is pure noise)",
        y_label="PSNR in dB (higher is better)",
        curves=[
            Curve(f"{name} prior", [row["diffusion_time"] for row in of_prior], [row["psnr"] for row in of_prior])
            for name in names
            for of_prior in [select(rows, prior=name)]
        ],
    )  # fmt: skip
    by_time = [
        [number(time), *(number(row["psnr"]) for row in select(rows, diffusion_time=time))]
        for time in distinct(rows, "diffusion_time")
    ]
    heads = ["diffusion time", *(f"{name}, dB" for name in names)]
    return [Picture(f"psnr-{length}", [panel]), Table(heads, by_time, f"PSNR, length {length}")]


def _show_prdc(rows: Sequence[Row], length: int) -> list[Block]:
    if not rows:
        return []
    heads = ["prior", *(head for name in PRDC_NAMES for head in (name, f"{name}, published")), "samples", "steps"]
    return [Table(heads, [_prdc_line(row) for row in rows], f"PRDC, length {length}")]


def _printed(mean: float | None, spread: float | None) -> str:
    if mean is None:
        return number(None)
    return f"about {mean}" if spread is None else f"{mean:.3f} ± {spread:.3f}"


def _prdc_line(row: Row) -> list[str]:
    paper, cells = published.PRDC[row["prior"]], []
    for name in PRDC_NAMES:
        cells.append(with_spread(row[name], row[f"{name}_spread"]))
        cells.append(_printed(*paper.get(name, (None, None))))
    return [row["prior"], *cells, str(row["num_samples"]), str(row["num_steps"])]
