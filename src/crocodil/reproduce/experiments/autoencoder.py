"""Programs through registers and back: Tables 1 and 2, and the example of Fig. 5."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from crocodil.metrics import character_error_rate
from crocodil.pipeline import Crocodil
from crocodil.reproduce import published
from crocodil.reproduce.context import AUTOENCODER_PARTS, Context
from crocodil.reproduce.document import Block, Listing, Picture, Section, Table, Text, number, spread_around
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.protocol import EXAMPLE_CALLS, TABLES, blocks_and_calls
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.sampling.configs import Decoding

TITLE = "Autoencoder (Tables 1 and 2, Fig. 5)"

# The example of Fig. 5 is no program of the corpus: reports travel without the licences of those.
EXAMPLE = '''def moving_average(values: list[float], width: int) -> list[float]:
    """The mean of each stretch of `width` values."""
    if not 0 < width <= len(values):
        raise ValueError(f"a width of {width} for {len(values)} values")
    total = sum(values[:width])
    means = [total / width]
    for old, new in zip(values, values[width:]):
        total += new - old
        means.append(total / width)
    return means
'''


def compute(context: Context) -> list[Row]:
    jobs = [
        Job(
            {"block": block, "calls": calls},
            partial(autoencoder_row, context, context.pipe, block, calls),
            work=calls,
            uses=AUTOENCODER_PARTS,
        )
        for block, calls in blocks_and_calls(context.length, context.protocol.table_rows)
    ]
    return context.store.compute("autoencoder", jobs)


def autoencoder_row(context: Context, pipe: Crocodil, block: int, calls: int) -> Row:
    """Algorithm 6 on validation programs, all registers, the most probable tokens."""
    texts = context.texts("valid", context.protocol.num_copied)
    decoding = Decoding(block_size=block, calls=calls)
    made = pipe.autoencode(texts, cut=True, seed=context.seed, decoding=decoding, show_progress=False)
    errors = [character_error_rate(text, found) for text, found in zip(texts, made.texts, strict=True)]
    return {
        "cer": fmean(errors),
        "exact_share": fmean(error == 0 for error in errors),
        "bert_score": context.evaluator.bert_score(texts, made.texts),
        **context.evaluator.score(made.texts),
        "nfe": made.nfe,
        "flop_nfe": made.flop_nfe,
        "seconds": made.seconds / len(texts),
        "temperature": decoding.temperature,
        "num_samples": len(texts),
        "example": copied(pipe, calls, context.seed)
        if block == context.length and calls in EXAMPLE_CALLS
        else None,
    }


def copied(pipe: Crocodil, calls: int, seed: int) -> Row:
    """The example, in one block."""
    (found,) = pipe.autoencode([EXAMPLE], cut=True, calls=calls, seed=seed, show_progress=False).texts
    source = pipe.tokenizer.decode(pipe.tokens_of([EXAMPLE], cut=True)[0].tolist())  # as long as the model reads
    return {"source": source, "found": found, "cer": character_error_rate(source, found)}


# ---------------------------------------------------------------- ink


def show(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """A program is encoded into registers, and a program is decoded from these registers alone. It is
            decoded in blocks from left to right; within a block each call of the demasker reveals some of its
            tokens."""
        ),
        Text(
            """**Better:** lower CER (character errors per character of the source; 0 is a perfect copy), higher
            BERTScore (similarity of token embeddings), lower Gen-PPL; few calls are cheap. **The paper:**
            nearly perfect already with few calls, and one large block is better than several small ones."""
        ),
    ]
    for length in distinct(rows, "length"):
        blocks += _show_length(select(rows, length=length), length)
    if all(row["bert_score"] is None for row in rows):
        blocks.append(Text("BERTScore was not measured: no model to embed with was given (`--embedder`)."))
    others = [length for length in TABLES if length not in distinct(rows, "length")]
    if others:
        blocks.append(
            Text(f"Left out: length {' and '.join(map(str, others))}; no model trained at it was given.")
        )
    return Section(TITLE, blocks)


def _show_length(rows: Sequence[Row], length: int) -> list[Block]:
    heads = [
        "block", "calls", "Gen-PPL", "Gen-PPL, published", "BERTScore", "BERTScore, published", "CER",
        "CER, published", "exact copies", "entropy", "NFE", "NFE by FLOPs", "seconds",
    ]  # fmt: skip
    table = published.AUTOENCODER.get(length, {})
    odd = any(row.is_odd for row in table.values())
    note = "; † marked (decision D13): more errors than characters beside a high similarity" if odd else ""
    one_block = [row for row in rows if row["block"] == length]
    panel = Panel(
        title=f"Copies of programs, {length} tokens", x_label="demasker calls", y_label="CER", log_x=True,
        curves=[
            Curve(f"block {block}", [row["calls"] for row in own], [row["cer"] for row in own])
            for block in distinct(rows, "block")
            for own in [select(rows, block=block)]
        ],
    )  # fmt: skip
    return [
        Picture(f"autoencoder-{length}", [panel]),
        Table(heads, [_cells(row, table) for row in rows], f"Length {length}{note}"),
        *(block for row in one_block if row["calls"] in EXAMPLE_CALLS for block in _example(row)),
    ]


def _cells(row: Row, table: dict[tuple[int, int], published.AutoencoderRow]) -> list[str]:
    theirs = table.get((row["block"], row["calls"]))
    printed = [number(None)] * 3
    if theirs is not None:
        mark = " †" if theirs.is_odd else ""
        printed = [f"{theirs.gen_ppl:.3f}", f"{theirs.bert_score:.3f}", f"{theirs.cer:.3f}{mark}"]
    return [
        str(row["block"]), str(row["calls"]),
        spread_around(row["gen_ppl"], row["gen_ppl_spread"]), printed[0],
        number(row["bert_score"]), printed[1], number(row["cer"]), printed[2],
        f"{row['exact_share']:.0%}", *(number(row[name]) for name in ("entropy", "nfe", "flop_nfe", "seconds")),
    ]  # fmt: skip


def _example(row: Row) -> list[Block]:
    example, theirs = row["example"], published.EXAMPLE_CER[row["calls"]]
    source = [Listing("Source program", example["source"])] if row["calls"] == EXAMPLE_CALLS[0] else []
    title = f"Decoded in {row['calls']} calls: CER {number(example['cer'])} (the paper's example: {theirs})"
    return [*source, Listing(title, example["found"])]
