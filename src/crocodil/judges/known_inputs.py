"""Inputs whose order is known, to check a judge: real programs, shuffled ones, noise, and a repeated line."""

import random
import string
import sysconfig
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crocodil.judges.evaluator import bits_per_byte, perplexity
from crocodil.judges.language_model import LanguageModel
from crocodil.metrics import token_entropy

NUM_TEXTS, NUM_LINES = 24, 16
NUM_CHARACTERS = 64  # per random text: each is a token, and a judge of code is slow on a CPU
RANKED = ("real", "lines shuffled", "tokens shuffled", "random characters")  # by bits per byte, lowest first
REPEATED = "one line repeated"
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " "


class Judged(NamedTuple):
    """What a judge says about one kind of input."""

    gen_ppl: float
    bits_per_byte: float
    entropy: float  # of the judge's tokens within a text, in nats


def real_programs(count: int = NUM_TEXTS, *, num_lines: int = NUM_LINES) -> list[str]:
    """Return pieces of Python's standard library, from many modules in turn."""
    pieces = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("[!_]*.py")):
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        pieces += [
            (start, file.name, "".join(lines[start : start + num_lines]))
            for start in range(60, len(lines) - num_lines, num_lines)
        ]
    return [text for _, _, text in sorted(pieces)[:count]]


def known_inputs(judge: LanguageModel, texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts, what is left of them after three kinds of damage, and one line repeated."""
    return {
        "real": list(texts),
        "lines shuffled": list(map(lines_shuffled, texts)),
        "tokens shuffled": tokens_shuffled(judge, texts),
        "random characters": [random_characters(text[:NUM_CHARACTERS]) for text in texts],
        REPEATED: ["return None\n" * 25],
    }


def lines_shuffled(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(random.Random(text).sample(lines, len(lines)))


def tokens_shuffled(judge: LanguageModel, texts: Sequence[str]) -> list[str]:
    shuffled = [random.Random(str(row)).sample(row, len(row)) for row in judge.tokens(texts)]
    return [judge.tokenizer.decode(row) for row in shuffled]


def random_characters(text: str) -> str:
    """Return as many random characters as the text has."""
    return "".join(random.Random(text).choices(CHARACTERS, k=len(text)))


def judge_known_inputs(judge: LanguageModel, texts: Sequence[str] | None = None) -> dict[str, Judged]:
    """Return the judge's numbers about each kind of input; by default, the texts are `real_programs()`."""
    rows = {}
    for kind, inputs in known_inputs(judge, real_programs() if texts is None else texts).items():
        scores = judge.scores(inputs, batch_size=4)
        rows[kind] = Judged(perplexity(scores), bits_per_byte(scores), token_entropy(judge.tokens(inputs)))
    return rows


def check_order(name: str, rows: Mapping[str, Judged]) -> None:
    """Refuse a judge that does not rank the inputs as everybody would, or whose entropy misses the repetition."""
    for better, worse in pairwise(RANKED):
        if rows[better].bits_per_byte >= rows[worse].bits_per_byte:
            raise ValueError(
                f"{name} is no judge of programs: it needs {rows[better].bits_per_byte:.2f} bits per byte for "
                f"'{better}', and {rows[worse].bits_per_byte:.2f} for '{worse}'"
            )
    if rows[REPEATED].entropy >= rows["real"].entropy:
        raise ValueError(
            f"the tokens of {name} do not expose repetition: a repeated line has the entropy of programs"
        )
