"""One setting of one model, or texts that any other model wrote, judged as everything else here is."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from crocodil.corpus.shards import Corpus
from crocodil.pipeline import Crocodil, Method
from crocodil.processes.masking import RULES
from crocodil.reproduce.contests import plain, run
from crocodil.reproduce.judging import Court
from crocodil.reproduce.lab import Lab, held_out
from crocodil.reproduce.rows import Row, commit
from crocodil.reproduce.settings import FULL, Candidate


def evaluate_model(
    pipe: Crocodil,
    corpus: Corpus,
    court: Court,
    *,
    method: Method,
    calls: int,
    candidate: Candidate,
    count: int,
    split: str,
    seed: int,
) -> Row:
    """Generate, and judge against a split; the priors take the steps that the model says."""
    if candidate.rule not in RULES:
        raise ValueError(f"no reveal rule {candidate.rule!r}: take one of {', '.join(RULES)}")
    setting = replace(FULL, name="evaluate", num_samples=count, num_swept=count)
    lab = Lab.around(pipe, corpus=corpus, court=court, setting=setting, results=Path(), seed=seed)
    contestant = plain(lab.pipe, method)
    found = run(lab, contestant, calls, candidate, split=split)
    return {**contestant.key, "calls": calls, **found, **lab.store.conditions, "commit": commit()}


def evaluate_texts(
    texts: Sequence[str], corpus: Corpus, court: Court, *, length: int, split: str, count: int
) -> Row:
    """As many real programs as there are texts, at most `count`, stand beside them."""
    real = held_out(corpus, court.tokenizer, split, length=length, count=min(count, len(texts)))
    return {
        **court.judged(texts, court.reference(real)),
        "num_samples": len(texts),
        "num_real": len(real),
        "judge": court.judge.name,
        "split": split,
        "commit": commit(),
    }


def read_texts(file: Path) -> list[str]:
    """The `text` of every row, as `crocodil generate --format jsonl` writes them."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist")
    texts = []
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            texts.append(json.loads(line)["text"])
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f'line {place} of {file} is no row with a text: {{"text": "..."}}') from None
    if len(texts) < 2:
        raise ValueError(f"{file} holds {len(texts)} texts: MAUVE compares sets of many")
    return texts
