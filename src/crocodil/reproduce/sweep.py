"""Fair contests between samplers, the rules of which are code.

Every contestant is swept over the same candidates on the validation split, at the same few numbers of calls; what
was best at the nearest of them runs once on the test split, with other seeds. For many calls the best of the sweep
meet in a final, since what is best with some calls may be bad with more. What differs from a contestant in one
thing alone, in its registers say, takes its choices. Quality never stands without diversity and cost.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

from crocodil.pipeline import Crocodil, Generation, Method
from crocodil.reproduce.context import GENERATING, Lab, of_base
from crocodil.reproduce.store import Job, Row, select
from crocodil.sampling.configs import Decoding

TIE = 0.05  # of MAUVE: what the few samples of a sweep cannot tell apart
CRITERION = f"the highest MAUVE on valid; of those within its spread, or {TIE}, the lowest Gen-PPL"
NUM_SHOWN = 2  # texts of a row, as App. G shows
SWEEP = "sweep"  # the file of everything that was swept
CHOSEN = ("temperature", "rule")  # columns of a row that say what was chosen


class Contestant(NamedTuple):
    """Something that writes programs."""

    key: Row  # its name in rows
    generate: Callable[..., Generation]  # (count, *, seed, decoding)
    uses: Collection[str]  # parts of the model
    like: "Contestant | None" = None  # whose choices it takes; None: it has a sweep of its own


def plain(pipe: Crocodil, method: Method) -> Contestant:
    """A method of the paper as it is."""
    return Contestant({"method": str(method)}, method_of(pipe, method), used_by(pipe, method))


def used_by(pipe: Crocodil, method: Method) -> Collection[str]:
    return of_base(pipe) if method == Method.BASE else GENERATING


def method_of(pipe: Crocodil, method: Method, **options: Any) -> Callable[..., Generation]:
    return partial(pipe.generate, method=method, show_progress=False, **options)


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
                chosen=one,
            )
        )
    return lab.store.compute(name, jobs)


def sweep(lab: Lab, sources: Sequence[tuple[Contestant, int]]) -> list[Row]:
    """All candidates of every source at its number of calls; in a final, the best of the last sweep."""
    setting = lab.setting
    at_last = [(source, min(at, setting.swept_calls[-1])) for source, at in sources]
    swept = lab.store.compute(SWEEP, _jobs(lab, [(*entry, setting.candidates()) for entry in at_last]))
    finals = [
        (source, at, finalists(select(swept, **source.key, calls=last), setting.num_finalists))
        for (source, at), (_, last) in zip(sources, at_last, strict=True)
        if at > last
    ]
    return [*swept, *lab.store.compute(SWEEP, _jobs(lab, finals))]


def finalists(swept: Sequence[Row], count: int) -> list[Row]:
    ranked = sorted(swept, key=lambda row: row["mauve"], reverse=True)
    return [candidate_of(row) for row in ranked[:count]]


def candidate_of(row: Row) -> Row:
    """Return the fields of `Decoding` that a row was measured with."""
    return {name: row[name] for name in CHOSEN}


def _jobs(lab: Lab, entries: Sequence[tuple[Contestant, int, list[Row]]]) -> list[Job]:
    """Each source once at each number of calls."""
    distinct = {(str(source.key), at): (source, candidates) for source, at, candidates in entries}
    return [
        Job(
            {**source.key, "calls": at, **one},
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
    lab: Lab, contestant: Contestant, calls: int, candidate: Row, *, split: str, swept_at: int | None = None
) -> Row:
    """One setting of one contestant, judged against one split."""
    is_test = split == "test"
    count = lab.setting.num_samples if is_test else lab.setting.num_swept
    decoding = replace(decoding_of(lab.pipe, contestant.key.get("method")), calls=calls, **candidate)
    made = contestant.generate(count, seed=lab.seed + is_test, decoding=decoding)
    return {
        **decoding_row(decoding),
        "split": split,
        "swept_at": swept_at,  # the number of calls at which the candidate was chosen
        **measured(lab, made, split),
        **({"texts": made.texts[:NUM_SHOWN], "criterion": CRITERION} if is_test else {}),
    }


def decoding_of(pipe: Crocodil, method: str | None) -> Decoding:
    """Return the default config of a method; a variant has that of ConThenDisc."""
    return pipe.decoding_for(Method(method) if method in list(Method) else Method.CON_THEN_DISC)


def own_candidate(pipe: Crocodil, method: Method) -> Row:
    """Return what `pipe.generate` uses by default."""
    return candidate_of(decoding_row(pipe.decoding_for(method)))


def decoding_row(decoding: Decoding) -> Row:
    """Return the fields of a config as columns; the number of calls is a key of the row."""
    return {name: value for name, value in asdict(decoding).items() if name != "calls"}


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
