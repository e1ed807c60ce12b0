"""Memorisation: the longest run of tokens that a generated program shares with the training programs."""

from collections.abc import Sequence
from itertools import islice
from statistics import fmean

import numpy as np

from crocodil.corpus.shards import TOKENIZER_FILE
from crocodil.metrics import Run, longest_training_runs
from crocodil.reproduce.context import Context
from crocodil.reproduce.document import Block, Section, Table, Text, number
from crocodil.reproduce.experiments.generation import methods
from crocodil.reproduce.experiments.quality import display_name
from crocodil.reproduce.store import Job, Row
from crocodil.reproduce.sweep import generate_with, own_settings
from crocodil.text.tokenizer import Tokenizer

TITLE = "Memorisation"
SHORTEST = 16  # tokens; shorter runs count as 0
LONG = 50  # tokens; a longer run is more likely a copy than an idiom
REAL = "real"


def compute(context: Context) -> list[Row]:
    """Compute one row for all methods, because reading the training tokens takes most of the time."""
    chosen = {"chosen": {str(method): own_settings(context.pipe, method) for method in methods(context.pipe)}}
    job = Job({"at": "default calls"}, lambda: {**chosen, "runs": _runs(context)}, chosen=chosen)
    return context.store.compute("memorisation", [job])


def _runs(context: Context) -> dict[str, Row]:
    tokenizer = Tokenizer.load(context.corpus.directory / TOKENIZER_FILE)  # the model may have other tokens
    samples = {name: tokenizer.encode_all(texts) for name, texts in _texts(context).items()}
    training = [shard.tokens for shard in context.corpus.shards("train")]
    all_samples = [tokens for of_method in samples.values() for tokens in of_method]
    runs = iter(longest_training_runs(all_samples, training, shortest=SHORTEST))
    return {name: describe_runs(list(islice(runs, len(of_method)))) for name, of_method in samples.items()}


def _texts(context: Context) -> dict[str, list[str]]:
    """Return programs of each method with its default settings, and as many real programs of the test split."""
    count = context.protocol.num_samples
    made = {
        str(method): generate_with(context.pipe, method)(count, seed=context.seed).texts
        for method in methods(context.pipe)
    }
    return {**made, REAL: context.texts("test", count)}


def describe_runs(runs: Sequence[Run]) -> Row:
    lengths = [run.length for run in runs]
    return {
        "mean": fmean(lengths),
        "median": float(np.median(lengths)),
        "percentile_95": float(np.percentile(lengths, 95)),
        "max": max(lengths),
        "long_share": fmean(length > LONG for length in lengths),
        "num_samples": len(lengths),
    }


# ---------------------------------------------------------------- report


def show(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            f"""Does the model copy its training programs? This table shows, per program, the longest run of tokens
            that also occurs in a training program. Runs of fewer than {SHORTEST} tokens count as 0. Each
            method uses the model's default settings and number of calls."""
        ),
        Text(
            """**Better:** close to the real programs of the test split, which share licences, imports and idioms
            with the training programs. Clearly longer runs are copies. The paper does not measure this."""
        ),
    ]
    heads = ["method", "mean", "median", "95th percentile", "longest", f"over {LONG} tokens", "samples"]
    for row in rows:
        body = [_line(name, runs) for name, runs in row["runs"].items()]
        blocks.append(Table(heads, body, f"Longest shared run in tokens, length {row['length']}"))
    return Section(TITLE, blocks)


def _line(name: str, runs: Row) -> list[str]:
    return [
        "real programs (test)" if name == REAL else display_name(name),
        *(number(runs[column]) for column in ("mean", "median", "percentile_95", "max")),
        f"{runs['long_share']:.1%}",
        str(runs["num_samples"]),
    ]
