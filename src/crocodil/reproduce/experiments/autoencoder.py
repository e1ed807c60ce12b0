"""Copy programs through registers: Tables 1 and 2, and the example of Fig. 5."""

from collections.abc import Sequence
from functools import partial
from statistics import fmean

from crocodil.metrics import character_error_rate
from crocodil.pipeline import Crocodil
from crocodil.reproduce import published
from crocodil.reproduce.context import AUTOENCODER_PARTS, Context
from crocodil.reproduce.document import Block, Listing, Picture, Section, Table, Text, number, percent, with_spread
from crocodil.reproduce.figures import Curve, Panel
from crocodil.reproduce.protocol import EXAMPLE_CALLS, TABLES, blocks_and_calls
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.sampling.configs import Decoding

TITLE = "Autoencoder (Tables 1 and 2, Fig. 5)"

# The example of Fig. 5. It is not from the corpus, because a report does not carry the licences of its programs.
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
    """Run Algorithm 6 on validation programs, with all registers and at temperature 0."""
    texts = context.texts("valid", context.protocol.num_copied)
    decoding = Decoding(block_size=block, calls=calls)
    made = pipe.autoencode(texts, cut=True, seed=context.seed, decoding=decoding, show_progress=False)
    errors = [character_error_rate(text, copy) for text, copy in zip(texts, made.texts, strict=True)]
    return {
        "cer": fmean(errors),
        "exact_share": fmean(error == 0 for error in errors),
        **context.evaluator.bert_score_row(texts, made.texts),
        **context.evaluator.score(made.texts),
        "nfe": made.nfe,
        "flop_nfe": made.flop_nfe,
        "seconds": made.seconds / len(texts),
        "temperature": decoding.temperature,
        "num_samples": len(texts),
        "example": copy_example(pipe, calls, context.seed)
        if block == context.length and calls in EXAMPLE_CALLS
        else None,
    }


def copy_example(pipe: Crocodil, calls: int, seed: int) -> Row:
    """Copy the example in one block."""
    (copy,) = pipe.autoencode([EXAMPLE], cut=True, calls=calls, seed=seed, show_progress=False).texts
    source = pipe.tokenizer.decode(pipe.tokens_of([EXAMPLE], cut=True)[0].tolist())  # cut to the model's length
    return {"source": source, "found": copy, "cer": character_error_rate(source, copy)}


# ---------------------------------------------------------------- report


def show(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            """A program is encoded into registers, and decoded again from the registers alone. Blocks are decoded
            from left to right; within a block, each call of the demasker reveals some of the tokens."""
        ),
        Text(
            """**Better:** lower CER (character errors per character of the source; 0 is a perfect copy), higher
            BERTScore (similarity of token embeddings), lower Gen-PPL, and fewer calls. **The paper:** copies
            are nearly perfect with few calls, and one large block is better than several small ones."""
        ),
    ]
    for length in distinct(rows, "length"):
        blocks += _show_length(select(rows, length=length), length)
    if all(row["bert_score"] is None for row in rows):
        blocks.append(Text("Not measured: BERTScore. No embedding model was given (`--embedder`)."))
    missing = [str(length) for length in TABLES if length not in distinct(rows, "length")]
    if missing:
        blocks.append(Text(f"Not measured: length {', '.join(missing)}. No model of this length was given."))
    return Section(TITLE, blocks)


def _show_length(rows: Sequence[Row], length: int) -> list[Block]:
    by_judge = any(row.get("bert_score_judge") is not None for row in rows)  # older rows lack it
    heads = [
        "block", "calls", "Gen-PPL", "Gen-PPL, published", "BERTScore", "BERTScore, published",
        *["BERTScore by the judge"] * by_judge, "CER", "CER, published", "exact copies", "entropy",
        "NFE", "NFE by FLOPs", "seconds",
    ]  # fmt: skip
    table = published.AUTOENCODER.get(length, {})
    odd = any(row.is_odd for row in table.values())
    note = (
        ". † Published with more errors than characters although the similarity is high (decision D13)"
        if odd
        else ""
    )
    one_block = [row for row in rows if row["block"] == length]
    return [
        Picture(f"autoencoder-{length}", _panels(rows, length)),
        Table(heads, [_cells(row, table, by_judge) for row in rows], f"Length {length}{note}"),
        *(block for row in one_block if row["calls"] in EXAMPLE_CALLS for block in _example(row)),
    ]


def _panels(rows: Sequence[Row], length: int) -> list[Panel]:
    """Return errors and exact copies against calls, with one curve for each block size."""
    by_block = {block: select(rows, block=block) for block in distinct(rows, "block")}
    measures = {
        "cer": ("Copy errors", "CER (lower is better)"),
        "exact_share": ("Exact copies", "share of programs (higher is better)"),
    }
    return [
        Panel(
            title=f"{name} against calls, {length} tokens", x_label="demasker calls", y_label=y_label, log_x=True,
            percent_y=column == "exact_share",
            curves=[
                Curve(
                    f"blocks of {block}" if block < length else "one block", [row["calls"] for row in of_block],
                    [row[column] for row in of_block], is_ordered=True,
                )
                for block, of_block in by_block.items()
            ],
        )
        for column, (name, y_label) in measures.items()
    ]  # fmt: skip


def _cells(row: Row, table: dict[tuple[int, int], published.AutoencoderRow], by_judge: bool) -> list[str]:
    paper = table.get((row["block"], row["calls"]))
    printed = [number(None)] * 3
    if paper is not None:
        mark = " †" if paper.is_odd else ""
        printed = [f"{paper.gen_ppl:.3f}", f"{paper.bert_score:.3f}", f"{paper.cer:.3f}{mark}"]
    return [
        str(row["block"]), str(row["calls"]),
        with_spread(row["gen_ppl"], row["gen_ppl_spread"]), printed[0],
        number(row["bert_score"]), printed[1], *[number(row.get("bert_score_judge"))] * by_judge,
        number(row["cer"]), printed[2],
        percent(row["exact_share"]), *(number(row[name]) for name in ("entropy", "nfe", "flop_nfe", "seconds")),
    ]  # fmt: skip


def _example(row: Row) -> list[Block]:
    example, paper_cer = row["example"], published.EXAMPLE_CER[row["calls"]]
    source = [Listing("Source program", example["source"])] if row["calls"] == EXAMPLE_CALLS[0] else []
    title = f"Decoded in {row['calls']} calls: CER {number(example['cer'])} (the paper's example: {paper_cer})"
    return [*source, Listing(title, example["found"])]
