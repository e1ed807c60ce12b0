"""Fair contests between samplers, the rules of which are code.

Every contestant is swept over the same candidates on the validation split, at every number of calls; what was best
there runs once on the test split, with other seeds. Quality never stands without diversity and cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from crocodil.pipeline import Choices, Crocodil, Generation, Method
from crocodil.reproduce.lab import Lab
from crocodil.reproduce.rows import Job, Row, select
from crocodil.reproduce.settings import RULES, Candidate

CRITERION = "the highest MAUVE on valid; of those within its spread, the lowest Gen-PPL"
NUM_SHOWN = 2  # texts of a row, as App. G shows


class Contestant(NamedTuple):
    """Something that writes programs."""

    key: Row  # its name in rows
    generate: Callable[..., Generation]  # (count, *, calls, seed, choices)


def method_of(pipe: Crocodil, method: Method, **options: Any) -> Callable[..., Generation]:
    return partial(pipe.generate, method=method, on_call=quietly, **options)


def quietly(*_: object) -> None:
    """Watches a generation, so that it shows no progress of its own: the rows have theirs."""


def contest(lab: Lab, name: str, entries: Sequence[tuple[Contestant, int]]) -> list[Row]:
    """Choose on valid, measure once on test: each contestant at each of its numbers of calls."""
    swept = lab.store.compute(
        f"{name}-sweep",
        [
            Job(
                {**contestant.key, "calls": calls, "temperature": one.temperature, "rule": one.rule},
                partial(run, lab, contestant, calls, one, split="valid"),
                work=calls,
            )
            for contestant, calls in entries
            for one in lab.setting.candidates
        ],
    )
    jobs = []
    for contestant, calls in entries:
        chosen = best(select(swept, **contestant.key, calls=calls))
        one = Candidate(chosen["temperature"], chosen["rule"])
        jobs.append(
            Job(
                {**contestant.key, "calls": calls},
                partial(run, lab, contestant, calls, one, split="test"),
                work=calls,
            )
        )
    return lab.store.compute(name, jobs)


def best(swept: Sequence[Row]) -> Row:
    """CRITERION."""
    top = max(swept, key=lambda row: row["mauve"])
    close = [row for row in swept if row["mauve"] >= top["mauve"] - top["mauve_spread"]]
    return min(close, key=lambda row: math.inf if row["gen_ppl"] is None else row["gen_ppl"])


def run(lab: Lab, contestant: Contestant, calls: int, candidate: Candidate, *, split: str) -> Row:
    """One setting of one contestant, judged against one split."""
    is_test = split == "test"
    count = lab.setting.num_samples if is_test else lab.setting.num_swept
    choices = choices_for(lab.pipe, contestant.key.get("method"), candidate)
    made = contestant.generate(count, calls=calls, seed=lab.seed + is_test, choices=choices)
    return {
        "temperature": candidate.temperature,
        "rule": candidate.rule,
        "top_p": choices.top_p,
        "guidance": choices.guidance,
        "split": split,
        **measured(lab, made, split),
        **({"texts": made.texts[:NUM_SHOWN], "criterion": CRITERION} if is_test else {}),
    }


def choices_for(pipe: Crocodil, method: str | None, candidate: Candidate) -> Choices:
    known = method if method in list(Method) else Method.CON_THEN_DISC
    own = pipe.default_choices(Method(known))
    return replace(own, temperature=candidate.temperature, rule=RULES[candidate.rule])


def measured(lab: Lab, made: Generation, split: str) -> Row:
    """Quality, diversity beside it, and all three costs, of a program on average."""
    return {
        **lab.court.judged(made.texts, lab.references[split]),
        "nfe": made.nfe,
        "flop_nfe": made.flop_nfe,
        "seconds": made.seconds / len(made.texts),
        "num_samples": len(made.texts),
        "note": made.note,
    }
