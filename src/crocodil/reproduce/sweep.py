"""Fair contests between samplers, the rules of which are code.

Every contestant is swept over the same candidates on the validation split, at the same few numbers of calls; what
was best at the nearest of them runs once on the test split, with other seeds. For many calls the best of the sweep
meet in a final, since what is best with some calls may be bad with more. What differs from a contestant in one
thing alone, in its registers say, takes its choices. Quality never stands without diversity and cost.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, NamedTuple

from crocodil.pipeline import Choices, Crocodil, Generation, Method
from crocodil.processes.reveal import RULES
from crocodil.reproduce.context import GENERATING, Lab, of_base
from crocodil.reproduce.protocol import Candidate
from crocodil.reproduce.store import Job, Row, select

TIE = 0.05  # of MAUVE: what the few samples of a sweep cannot tell apart
CRITERION = f"the highest MAUVE on valid; of those within its spread, or {TIE}, the lowest Gen-PPL"
NUM_SHOWN = 2  # texts of a row, as App. G shows
SWEEP = "sweep"  # the file of everything that was swept
CHOSEN = tuple(field.name for field in fields(Candidate))  # columns of a row that say what was chosen


class Contestant(NamedTuple):
    """Something that writes programs."""

    key: Row  # its name in rows
    generate: Callable[..., Generation]  # (count, *, calls, seed, choices)
    uses: Collection[str]  # parts of the model
    like: "Contestant | None" = None  # whose choices it takes; None: it has a sweep of its own


def plain(pipe: Crocodil, method: Method) -> Contestant:
    """A method of the paper as it is."""
    return Contestant({"method": str(method)}, method_of(pipe, method), used_by(pipe, method))


def used_by(pipe: Crocodil, method: Method) -> Collection[str]:
    return of_base(pipe) if method == Method.BASE else GENERATING


def method_of(pipe: Crocodil, method: Method, **options: Any) -> Callable[..., Generation]:
    return partial(pipe.generate, method=method, on_call=quietly, **options)


def quietly(*_: object) -> None:
    """Watches a generation, so that it shows no progress of its own: the rows have theirs."""


def contest(lab: Lab, name: str, entries: Sequence[tuple[Contestant, int]]) -> list[Row]:
    """Choose on valid, measure once on test: each contestant at each of its numbers of calls."""
    sources = [(one.like or one, lab.setting.swept_for(calls, lab.length)) for one, calls in entries]
    swept = sweep(lab, sources)
    jobs = []
    for (contestant, calls), (source, at) in zip(entries, sources, strict=True):
        one = candidate_of(best(select(swept, **source.key, calls=at)))
        jobs.append(
            Job(
                {**contestant.key, "calls": calls},
                partial(run, lab, contestant, calls, one, split="test", swept_at=at),
                work=calls,
                uses=contestant.uses,
                chosen=asdict(one),
            )
        )
    return lab.store.compute(name, jobs)


def sweep(lab: Lab, sources: Sequence[tuple[Contestant, int]]) -> list[Row]:
    """All candidates of every source at its number of calls; in a final, the best of the last sweep."""
    setting = lab.setting
    at_last = [(source, min(at, setting.swept_calls[-1])) for source, at in sources]
    swept = lab.store.compute(SWEEP, _jobs(lab, [(*entry, setting.candidates) for entry in at_last]))
    finals = [
        (source, at, finalists(select(swept, **source.key, calls=last), setting.num_finalists))
        for (source, at), (_, last) in zip(sources, at_last, strict=True)
        if at > last
    ]
    return [*swept, *lab.store.compute(SWEEP, _jobs(lab, finals))]


def finalists(swept: Sequence[Row], count: int) -> tuple[Candidate, ...]:
    ranked = sorted(swept, key=lambda row: row["mauve"], reverse=True)
    return tuple(candidate_of(row) for row in ranked[:count])


def candidate_of(row: Row) -> Candidate:
    return Candidate(**{name: row[name] for name in CHOSEN})


def _jobs(lab: Lab, entries: Sequence[tuple[Contestant, int, tuple[Candidate, ...]]]) -> list[Job]:
    """Each source once at each number of calls."""
    distinct = {(str(source.key), at): (source, candidates) for source, at, candidates in entries}
    return [
        Job(
            {**source.key, "calls": at, **asdict(one)},
            partial(run, lab, source, at, one, split="valid", swept_at=at),
            work=at,
            uses=source.uses,
        )
        for (_, at), (source, candidates) in distinct.items()
        for one in candidates
    ]


def best(swept: Sequence[Row]) -> Row:
    """CRITERION."""
    top = max(swept, key=lambda row: row["mauve"])
    close = [row for row in swept if row["mauve"] >= top["mauve"] - max(top["mauve_spread"], TIE)]
    return min(close, key=lambda row: math.inf if row["gen_ppl"] is None else row["gen_ppl"])


def run(
    lab: Lab, contestant: Contestant, calls: int, candidate: Candidate, *, split: str, swept_at: int | None = None
) -> Row:
    """One setting of one contestant, judged against one split."""
    is_test = split == "test"
    count = lab.setting.num_samples if is_test else lab.setting.num_swept
    choices = choices_for(lab.pipe, contestant.key.get("method"), candidate)
    made = contestant.generate(count, calls=calls, seed=lab.seed + is_test, choices=choices)
    return {
        **asdict(candidate),
        "top_p": choices.top_p,
        "guidance": choices.guidance,
        "split": split,
        "swept_at": swept_at,  # the number of calls at which the candidate was chosen
        **measured(lab, made, split),
        **({"texts": made.texts[:NUM_SHOWN], "criterion": CRITERION} if is_test else {}),
    }


def own_candidate(pipe: Crocodil, method: Method) -> Candidate:
    """What a method does where nobody chose: `pipe.generate` without choices."""
    choices = pipe.default_choices(method)
    return Candidate(choices.temperature, next(name for name, rule in RULES.items() if rule == choices.rule))


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
