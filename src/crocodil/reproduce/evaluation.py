"""What `crocodil evaluate` does: evaluate one model with one setting, or texts from any other model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crocodil.corpus.shards import Corpus
from crocodil.judges import Evaluator, cut_to_length
from crocodil.pipeline import Crocodil, Method
from crocodil.reproduce.context import Context
from crocodil.reproduce.held_out import HeldOut, corpus_fingerprint
from crocodil.reproduce.protocol import FULL
from crocodil.reproduce.store import Row, commit
from crocodil.reproduce.sweep import decoding_row, generate_with, quality_and_cost
from crocodil.runtime.config import json_lines
from crocodil.sampling.configs import with_knobs

MIN_TEXTS_FOR_MAUVE = 200  # on each side: with fewer, MAUVE is near 1 even for texts that have little in common


def evaluate_model(
    pipe: Crocodil,
    corpus: Corpus,
    evaluator: Evaluator,
    *,
    method: Method,
    knobs: Mapping[str, Any] | None = None,
    count: int,
    split: str,
    seed: int,
) -> Row:
    """Generate texts and evaluate them against a split. `knobs` change fields of the model's sampling configs."""
    decoding, drawing = with_knobs(pipe.settings.decoding_for(method), pipe.settings.drawing, dict(knobs or {}))
    pipe = replace(pipe, settings=replace(pipe.settings, drawing=drawing))
    protocol = replace(FULL, name="evaluate", num_samples=count, num_swept=count)
    context = Context.for_model(
        pipe, corpus=corpus, evaluator=evaluator, protocol=protocol, results=Path(), seed=seed
    )
    made = generate_with(context.pipe, method)(count, seed=seed, decoding=decoding)
    reference, other_real = context.reference(split), context.texts(split, 2 * count)[count:]
    return {
        "method": str(method),
        "calls": decoding.plan(context.length).num_calls,
        **decoding_row(decoding),
        "split": split,
        **quality_and_cost(context, made, split),
        "real": evaluator.evaluate_real(reference, other_real),
        "num_real": len(reference),
        **context.store.conditions,
        "commit": commit(),
    }


def evaluate_texts(texts: Sequence[str], corpus: Corpus, evaluator: Evaluator, *, length: int, split: str) -> Row:
    """Evaluate texts against as many real programs of a split; both are cut to the same length in tokens."""
    count = len(texts)
    real = HeldOut(corpus, evaluator.tokenizer, length).texts(split, 2 * count)
    cut, real = (cut_to_length(whole, evaluator.tokenizer, length=length) for whole in (texts, real))
    reference = evaluator.reference(real[:count])
    return {
        **evaluator.evaluate(cut, reference),
        "real": evaluator.evaluate_real(reference, real[count:]),
        "num_samples": count,
        "num_cut": sum(before != after for before, after in zip(texts, cut, strict=True)),
        "num_real": len(reference),
        "length": length,
        "judge": evaluator.judge.name,
        "corpus": corpus_fingerprint(corpus),
        "split": split,
        "commit": commit(),
    }


def why_no_mauve(row: Row) -> str | None:
    """Return the reason why a row has no MAUVE, or None if it has one."""
    if row["mauve"] is not None:
        return None
    return (
        f"MAUVE was left out: there are {row['num_samples']} texts and {row['num_real']} real programs, and it "
        f"needs at least {MIN_TEXTS_FOR_MAUVE} on each side (raise --count, or give more rows in --samples)"
    )


def read_texts(file: Path) -> list[str]:
    """Return the `text` of every row, as `crocodil generate --format jsonl` writes them."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    texts = []
    for number, line in enumerate(json_lines(file.read_text(encoding="utf-8")), start=1):
        try:
            text = json.loads(line)["text"]
            text.encode()  # fails for other types, and for strings that are not valid Unicode
            texts.append(text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f'line {number} of {file} is not a row with a text: {{"text": "..."}}') from None
    if len(texts) < 2:
        raise ValueError(f"{file} holds {len(texts)} texts: an evaluation needs at least two")
    return texts
