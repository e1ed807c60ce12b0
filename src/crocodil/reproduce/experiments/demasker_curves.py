"""How much registers tell a demasker (Fig. 4), and how well it bears noise in them (Fig. 7)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from crocodil.metrics import Accuracy, demasking_accuracy
from crocodil.pipeline import Crocodil
from crocodil.processes.registers import perturb
from crocodil.reproduce.context import AUTOENCODER_PARTS, Context, batch_size, parts, parts_of_base
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, number
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.shapes import Positions, RegisterBank, RowLogits, TokenIds

WITHOUT_NOISE = "without register noise"  # the ablation, as the training presets name it
BASE = "base"
CURVES_TITLE, NOISE_TITLE = "Guided demasker (Fig. 4)", "Noise on registers (Fig. 7)"


def register_counts(num_registers: int) -> list[int]:
    """Three of them, as 8, 64 and 128 are of the paper's 128."""
    return sorted({max(1, num_registers // 16), max(1, num_registers // 2), num_registers})


def compute_curves(context: Context) -> list[Row]:
    """Fig. 4: cross-entropy and top-1 over the mask probability, for the base and three numbers of registers."""
    counts = [None, *register_counts(context.pipe.encoder.config.num_registers)]
    jobs = [
        Job(
            {"who": BASE if count is None else f"{count} register{'s' if count > 1 else ''}", "mask_prob": prob},
            partial(accuracy_row, context, context.pipe, mask_prob=prob, num_registers=count),
            uses=parts_of_base(context.pipe) if count is None else AUTOENCODER_PARTS,
        )
        for count in counts
        for prob in context.protocol.mask_probs
    ]
    return context.store.compute("demasker", jobs)


def compute_noise(context: Context) -> list[Row]:
    """Fig. 7: the same at 90% masking over the noise on all registers, with and without noise in training."""
    trained = {"with register noise": context.pipe}
    if WITHOUT_NOISE in context.variants:
        trained[WITHOUT_NOISE] = context.variants[WITHOUT_NOISE]
    jobs = [
        Job(
            {"trained": name, "noise_std": std, "variant_model": parts(pipe, AUTOENCODER_PARTS)},
            partial(
                accuracy_row, context, pipe, mask_prob=context.protocol.noise_mask_prob,
                num_registers=pipe.encoder.config.num_registers, noise_std=std,
            ),
            uses=AUTOENCODER_PARTS,
        )
        for name, pipe in trained.items()
        for std in context.protocol.noise_stds
    ]  # fmt: skip
    return context.store.compute("noise", jobs)


def accuracy_row(
    context: Context, pipe: Crocodil, *, mask_prob: float, num_registers: int | None, noise_std: float = 0.0
) -> Row:
    """At the hidden tokens of validation programs; no number of registers is the base."""
    texts = context.texts("valid", context.protocol.num_programs)
    found, size = Accuracy(), batch_size(pipe)
    for start in range(0, len(texts), size):
        tokens = pipe.tokens_of(texts[start : start + size], cut=True)
        streams = context.streams("demasker", len(tokens), start=start)
        registers = None
        if num_registers is not None:
            registers = pipe.encode(texts[start : start + size], cut=True).bank[:, :num_registers]
            registers = perturb(registers, std=noise_std, streams=streams.at("noise"))
        found += demasking_accuracy(
            partial(demask, pipe, registers), tokens, mask_prob, mask_id=pipe.mask_id, streams=streams
        )
    return {"cross_entropy": found.cross_entropy, "top1": found.top1, "num_samples": len(texts)}


def demask(pipe: Crocodil, registers: RegisterBank | None, noisy_tokens: TokenIds, hidden: Positions) -> RowLogits:
    """Of the base where there are no registers; a model without one has the empty prefix (decision D14)."""
    if registers is None and pipe.base is not None:
        return pipe.base(noisy_tokens, rows=hidden)
    if registers is None:
        registers = torch.zeros(len(noisy_tokens), 0, pipe.demasker.config.register_width, device=pipe.device)
    return pipe.demasker(noisy_tokens, registers, rows=hidden)


# ---------------------------------------------------------------- ink


def show_curves(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """Some tokens of a program are hidden, and the demasker guesses them. If registers say anything about
            a program, guesses guided by them are better than those of the base model, most of all where nearly
            everything is hidden."""
        ),
        Text(
            """**Better:** lower cross-entropy, higher top-1. **The paper (Fig. 4, no numbers printed):** guidance
            helps at every mask probability, and more registers help more."""
        ),
    ]
    for length in distinct(rows, "length"):
        blocks += _curves(
            select(rows, length=length), "who", "mask_prob", "mask probability", f"demasker-{length}"
        )
    return Section(CURVES_TITLE, blocks)


def show_noise(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """Registers that a prior draws are never quite those that an encoder would give, so the demasker must
            bear errors in them. Here noise of growing strength is added to encoded registers, at 90% masking."""
        ),
        Text(
            """**Better:** lower cross-entropy and higher top-1 as the noise grows. **The paper (Fig. 7, no numbers
            printed):** trained with noise, the demasker degrades gradually; without, early and sharply."""
        ),
    ]
    if WITHOUT_NOISE not in distinct(rows, "trained"):
        blocks.append(missing(WITHOUT_NOISE))
    for length in distinct(rows, "length"):
        own = select(rows, length=length)
        blocks += _curves(own, "trained", "noise_std", "standard deviation of the noise", f"noise-{length}")
    return Section(NOISE_TITLE, blocks)


def missing(name: str) -> Text:
    return Text(f"Not measured: **{name}**; no such model was given (`--ablation-model '{name}=DIR'`).")


def _curves(rows: Sequence[Row], by: str, along: str, label: str, name: str) -> list[Block]:
    """A picture of both measures along one quantity, and the same as a table."""
    kinds = distinct(rows, by)
    panels = [
        Panel(
            title=title, x_label=label, y_label=title,
            curves=[Curve(kind, *_columns(select(rows, **{by: kind}), along, measure)) for kind in kinds],
        )
        for measure, title in (("cross_entropy", "cross-entropy, nats"), ("top1", "top-1"))
    ]  # fmt: skip
    heads = [label, *(f"{kind}: {measure}" for measure in ("nats", "top-1") for kind in kinds)]
    body = [
        [number(place), *(number(row[measure]) for measure in ("cross_entropy", "top1") for row in at)]
        for place in distinct(rows, along)
        for at in [select(rows, **{along: place})]
    ]
    return [Picture(name, panels), Table(heads, body, f"Length {rows[0]['length']}")]


def _columns(rows: Sequence[Row], *names: str) -> list[list[Any]]:
    return [[row[name] for row in rows] for name in names]
