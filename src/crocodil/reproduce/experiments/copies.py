"""Does a model copy? The longest run of tokens that its programs share with training programs."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from crocodil.metrics import Run, longest_training_runs
from crocodil.reproduce.context import Context
from crocodil.reproduce.document import Block, Section, Table, Text, number
from crocodil.reproduce.experiments.generation import methods, named
from crocodil.reproduce.store import Job, Row
from crocodil.reproduce.sweep import generate_with, own_candidate

TITLE = "Memorisation"
SHORTEST = 16  # tokens; what is shorter is no run
LONG = 50  # tokens: a run beyond this is a copy rather than an idiom
REAL = "real"


def compute(context: Context) -> list[Row]:
    """One row for everyone: the training tokens are read once for all."""
    chosen = {"chosen": {str(method): own_candidate(context.pipe, method) for method in methods(context.pipe)}}
    job = Job({"at": "default calls"}, lambda: {**chosen, "runs": _measured(context)}, chosen=chosen)
    return context.store.compute("memorisation", [job])


def _measured(context: Context) -> dict[str, Row]:
    texts = _texts(context)
    samples = {who: context.pipe.tokenizer.encode_all(some) for who, some in texts.items()}
    training = [shard.tokens for shard in context.corpus.shards("train")]
    runs = longest_training_runs([one for some in samples.values() for one in some], training, shortest=SHORTEST)
    found, start = {}, 0
    for who, some in samples.items():
        found[who] = described(runs[start : start + len(some)])
        start += len(some)
    return found


def _texts(context: Context) -> dict[str, list[str]]:
    """Of every method as a user gets them, and as many real programs that nobody trained on."""
    count = context.protocol.num_samples
    made = {
        str(method): generate_with(context.pipe, method)(count, seed=context.seed).texts
        for method in methods(context.pipe)
    }
    return {**made, REAL: context.texts("test", count)}


def described(runs: Sequence[Run]) -> Row:
    lengths = [run.length for run in runs]
    return {
        "mean": fmean(lengths),
        "median": float(np.median(lengths)),
        "percentile_95": float(np.percentile(lengths, 95)),
        "max": max(lengths),
        "long_share": fmean(length > LONG for length in lengths),
        "num_samples": len(lengths),
    }


# ---------------------------------------------------------------- ink


def show(rows: Sequence[Row]) -> Section:
    blocks: list[Block] = [
        Text(
            f"""Does the model write, or does it recite? For every program the longest run of tokens that stands in
            the training programs too. Runs of fewer than {SHORTEST} tokens count as 0. Programs come from each
            method with the model's own settings and the default number of calls."""
        ),
        Text(
            """**Better:** as real programs that nobody trained on: licences, imports and idioms are shared by
            programs that never saw each other. Clearly longer runs than theirs are copies. The paper does not
            measure this."""
        ),
    ]
    heads = ["", "mean", "median", "95th percentile", "longest", f"over {LONG} tokens", "samples"]
    for row in rows:
        body = [_line(who, found) for who, found in row["runs"].items()]
        blocks.append(Table(heads, body, f"Longest shared run in tokens, length {row['length']}"))
    return Section(TITLE, blocks)


def _line(who: str, found: Row) -> list[str]:
    return [
        "real programs (test)" if who == REAL else named(who),
        *(number(found[name]) for name in ("mean", "median", "percentile_95", "max")),
        f"{found['long_share']:.1%}",
        str(found["num_samples"]),
    ]
