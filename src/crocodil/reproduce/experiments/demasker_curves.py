"""How much registers help the demasker (Fig. 4), and how well it tolerates noise in them (Fig. 7)."""

from collections.abc import Sequence
from functools import partial

import torch

from crocodil.metrics import Accuracy, demasking_accuracy
from crocodil.pipeline import Crocodil
from crocodil.processes.registers import perturb
from crocodil.reproduce.context import AUTOENCODER_PARTS, Context, batch_size, parts, parts_of_base
from crocodil.reproduce.document import Block, Picture, Section, Table, Text, number
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.shapes import Positions, RegisterBank, RowLogits, TokenIds

WITHOUT_NOISE = "without register noise"  # the name of the ablation in the training presets
BASE = "base"
CURVES_TITLE, NOISE_TITLE = "Guided demasker (Fig. 4)", "Noise on registers (Fig. 7)"


def register_counts(num_registers: int) -> list[int]:
    """Return a 16th, a half and all of the registers: the paper takes 8, 64 and 128 of 128."""
    return sorted({max(1, num_registers // 16), max(1, num_registers // 2), num_registers})


def compute_curves(context: Context) -> list[Row]:
    """Fig. 4: cross-entropy and top-1 accuracy for the base and three numbers of registers."""
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
    """Fig. 7: the same against noise on all registers, for models trained with and without noise."""
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
    """Measure the predictions of hidden tokens of validation programs; `num_registers` None is the base."""
    texts = context.texts("valid", context.protocol.num_programs)
    accuracy, size = Accuracy(), batch_size(pipe)
    for start in range(0, len(texts), size):
        tokens = pipe.tokens_of(texts[start : start + size], cut=True)
        streams = context.streams("demasker", len(tokens), start=start)
        registers = None
        if num_registers is not None:
            registers = pipe.encode(texts[start : start + size], cut=True).bank[:, :num_registers]
            registers = perturb(registers, std=noise_std, streams=streams.at("noise"))
        accuracy += demasking_accuracy(
            partial(demask, pipe, registers), tokens, mask_prob, mask_id=pipe.mask_id, streams=streams
        )
    return {"cross_entropy": accuracy.cross_entropy, "top1": accuracy.top1, "num_samples": len(texts)}


def demask(pipe: Crocodil, registers: RegisterBank | None, noisy_tokens: TokenIds, hidden: Positions) -> RowLogits:
    """Return the logits; without registers those of the base or, if there is none, of the demasker (D14)."""
    if registers is None and pipe.base is not None:
        return pipe.base(noisy_tokens, rows=hidden)
    if registers is None:
        registers = torch.zeros(len(noisy_tokens), 0, pipe.demasker.config.register_width, device=pipe.device)
    return pipe.demasker(noisy_tokens, registers, rows=hidden)


# ---------------------------------------------------------------- report


def show_curves(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """Some tokens of a program are masked, and the demasker predicts them. If registers carry information
            about the program, guided predictions are better than those of the base, most of all when nearly
            all tokens are masked."""
        ),
        Text(
            """**Better:** lower cross-entropy (nats per token), higher top-1 accuracy. **The paper (Fig. 4, no
            numbers printed):** registers help at every mask probability, and more registers help more."""
        ),
    ]
    for length in distinct(rows, "length"):
        blocks += _curves(
            select(rows, length=length),
            f"demasker-{length}",
            by="who",
            x="mask_prob",
            x_label="mask probability",
            against="masking",
        )
    return Section(CURVES_TITLE, blocks)


def show_noise(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """Registers drawn from a prior differ from those of an encoder, so the demasker must tolerate errors
            in them. Here Gaussian noise is added to the registers of an encoder, and 90% of the tokens are
            masked."""
        ),
        Text(
            """**Better:** lower cross-entropy and higher top-1 accuracy as the noise grows. **The paper (Fig. 7,
            no numbers printed):** a demasker trained with noise degrades gradually, one trained without
            degrades early and sharply."""
        ),
    ]
    if WITHOUT_NOISE not in distinct(rows, "trained"):
        blocks.append(missing_model(WITHOUT_NOISE))
    for length in distinct(rows, "length"):
        blocks += _curves(
            select(rows, length=length),
            f"noise-{length}",
            by="trained",
            x="noise_std",
            x_label="standard deviation of the noise",
            against="noise",
        )
    return Section(NOISE_TITLE, blocks)


def missing_model(name: str) -> Text:
    return Text(f"Not measured: **{name}**. No model of this kind was given (`--ablation-model '{name}=DIR'`).")


def _curves(rows: Sequence[Row], name: str, *, by: str, x: str, x_label: str, against: str) -> list[Block]:
    """Return a picture and a table of both measures against `x`, with one curve for each value of `by`."""
    length, kinds = rows[0]["length"], distinct(rows, by)
    measures = {
        "cross_entropy": ("Cross-entropy", "nats per token (lower is better)"),
        "top1": ("Top-1 accuracy", "share of tokens (higher is better)"),
    }
    panels = [
        Panel(
            title=f"{title} against {against}, {length} tokens", x_label=x_label, y_label=y_label,
            curves=[_curve(select(rows, **{by: kind}), kind, x, column) for kind in kinds],
        )
        for column, (title, y_label) in measures.items()
    ]  # fmt: skip
    heads = [x_label, *(f"{kind}: {measure}" for measure in ("nats", "top-1") for kind in kinds)]
    body = [
        [number(value), *(number(row[column]) for column in measures for row in select(rows, **{x: value}))]
        for value in distinct(rows, x)
    ]
    return [Picture(name, panels), Table(heads, body, f"Length {length}")]


def _curve(rows: Sequence[Row], name: str, x: str, y: str) -> Curve:
    return Curve(name, [row[x] for row in rows], [row[y] for row in rows], is_ordered=name[0].isdigit())
