"""The likelihood bound of the base in bits per byte, on whole programs: how good a language model it is."""

from collections.abc import Sequence
from functools import partial

import torch

from crocodil.metrics import bits_per_byte, negative_elbo
from crocodil.reproduce.context import Context, batch_size, parts_of_base
from crocodil.reproduce.document import Section, Table, Text, with_spread
from crocodil.reproduce.experiments.demasker_curves import BASE, demask
from crocodil.reproduce.store import Job, Row

NAME, TITLE = "likelihood", "Likelihood of the base"
SPLITS = ("valid", "test")
CHOSEN_FROM = 4  # times as many programs are drawn as are used, since some do not fit the canvas


def compute(context: Context) -> list[Row]:
    """Bound the likelihood of programs that fit the canvas, the end of the text included; skip others."""
    jobs = [
        Job({"who": BASE, "split": split}, partial(bound_row, context, texts), uses=parts_of_base(context.pipe))
        for split in SPLITS
        if (texts := whole_programs(context, split))
    ]
    return context.store.compute(NAME, jobs)


def bound_row(context: Context, texts: Sequence[str]) -> Row:
    nats = torch.cat([_nats(context, texts, start) for start in range(0, len(texts), batch_size(context.pipe))])
    num_bytes = torch.tensor([len(text.encode()) for text in texts], dtype=torch.float64)
    bound = bits_per_byte(nats.sum().item(), int(num_bytes.sum()))
    per_byte = nats.sum() / num_bytes.sum()
    error = (nats - per_byte * num_bytes).std() * len(texts) ** 0.5  # of the sum of nats
    return {
        "bits_per_byte": bound,
        "bits_per_byte_spread": bits_per_byte(error.item(), int(num_bytes.sum())),
        "num_maskings": context.protocol.num_maskings,
        "num_bytes": int(num_bytes.sum()),
        "num_samples": len(texts),
    }


def whole_programs(context: Context, split: str) -> list[str]:
    """Return programs of a split that fit the canvas with BOS and EOS; others are cut in all other experiments."""
    count, room = context.protocol.num_bound, context.length - 2
    texts = context.texts(split, CHOSEN_FROM * count)
    sizes = map(len, context.pipe.tokenizer.encode_all(texts))
    return [text for text, size in zip(texts, sizes, strict=True) if text and size <= room][:count]


def _nats(context: Context, texts: Sequence[str], start: int) -> torch.Tensor:
    """Return the bound of each program of one batch in nats; BOS is given."""
    pipe, size = context.pipe, batch_size(context.pipe)
    tokens = pipe.tokens_of(texts[start : start + size], cut=True)
    given = torch.zeros_like(tokens, dtype=torch.bool)
    given[:, 0] = True
    return negative_elbo(
        partial(demask, pipe, None),
        tokens,
        mask_id=pipe.mask_id,
        streams=context.streams(NAME, len(tokens), start=start),
        given=given,
        num_draws=context.protocol.num_maskings,
    ).cpu()


def show(rows: Sequence[Row]) -> Section:
    heads = ["length", "programs of", "bits per byte", "samples", "maskings"]
    body = [
        [
            str(row["length"]),
            row["split"],
            with_spread(row["bits_per_byte"], row["bits_per_byte_spread"]),
            str(row["num_samples"]),
            str(row["num_maskings"]),
        ]
        for row in rows
    ]
    text = """An upper bound on the bits that the base needs for whole programs, their ends included, from several
        maskings of each. **Better:** lower. The spread is the standard error over programs."""
    return Section(TITLE, [Text(text), Table(heads, body)])
