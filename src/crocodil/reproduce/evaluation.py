"""One setting of one model, or texts that any other model wrote, judged as everything else here is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crocodil.corpus.shards import Corpus
from crocodil.judges import cut_alike
from crocodil.pipeline import Crocodil, Method
from crocodil.reproduce.context import Lab, held_out
from crocodil.reproduce.judging import Court
from crocodil.reproduce.protocol import FULL
from crocodil.reproduce.store import Row, commit
from crocodil.reproduce.sweep import decoding_row, measured, method_of

FEWEST_FOR_MAUVE = 200  # texts on each side: with fewer, MAUVE is near 1 for texts that have little in common


def evaluate_model(
    pipe: Crocodil,
    corpus: Corpus,
    court: Court,
    *,
    method: Method,
    calls: int | None = None,
    temperature: float | None = None,
    rule: str | None = None,
    count: int,
    split: str,
    seed: int,
) -> Row:
    """Generate as `pipe.generate` does, and judge against a split: None is what the model's own settings say."""
    setting = replace(FULL, name="evaluate", num_samples=count, num_swept=count)
    lab = Lab.around(pipe, corpus=corpus, court=court, setting=setting, results=Path(), seed=seed)
    asked: dict[str, Any] = {"calls": calls, "temperature": temperature, "rule": rule}
    decoding = replace(
        lab.pipe.decoding_for(method), **{name: value for name, value in asked.items() if value is not None}
    )
    made = method_of(lab.pipe, method)(count, seed=seed, decoding=decoding)
    return {
        "method": str(method),
        "calls": decoding.plan(lab.length).num_calls,
        **decoding_row(decoding),
        "split": split,
        **measured(lab, made, split),
        "num_real": len(lab.references[split]),
        **lab.store.conditions,
        "commit": commit(),
    }


def evaluate_texts(
    texts: Sequence[str], corpus: Corpus, court: Court, *, length: int, split: str, count: int
) -> Row:
    """As many real programs as there are texts, at most `count`, stand beside them; both are cut alike."""
    real = held_out(corpus, court.tokenizer, split, length=length, count=min(count, len(texts)))
    read, real = (cut_alike(some, court.tokenizer, length=length) for some in (texts, real))
    return {
        **court.judged(read, court.reference(real)),
        "num_samples": len(texts),
        "num_cut": sum(one != other for one, other in zip(texts, read, strict=True)),
        "num_real": len(real),
        "length": length,
        "judge": court.judge.name,
        "split": split,
        "commit": commit(),
    }


def why_no_mauve(row: Row) -> str | None:
    """A line for whoever asked, where MAUVE was left out."""
    if row["mauve"] is not None:
        return None
    return (
        f"MAUVE was left out: there are {row['num_samples']} texts and {row['num_real']} real programs, and with "
        f"fewer than {FEWEST_FOR_MAUVE} on each side it is worth nothing (--count, or more rows in --samples)"
    )


def read_texts(file: Path) -> list[str]:
    """The `text` of every row, as `crocodil generate --format jsonl` writes them."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    texts = []
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            text = json.loads(line)["text"]
            text.encode()  # a string, and one that is text
            texts.append(text)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError(f'line {place} of {file} is no row with a text: {{"text": "..."}}') from None
    if len(texts) < 2:
        raise ValueError(f"{file} holds {len(texts)} texts: what is judged are sets of at least two")
    return texts
