"""A fair comparison of samplers: every sampler gets the same sweep.

All samplers are swept over equally many candidates on the validation split, at the same few numbers of calls. The
best candidate at the nearest swept number of calls then runs once on the test split, with other seeds. For many
calls the top candidates are ranked again in a final, because the best candidate for few calls may be bad for many.
A sampler that differs from another in one thing only, such as its registers, uses the other's candidate. With
one candidate there is no sweep. Every row holds quality, diversity and cost.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, NamedTuple

from crocodil.pipeline import Crocodil, Generation, Method
from crocodil.reproduce.choice import REACHED, best, ranked, rule_of
from crocodil.reproduce.context import GENERATION_PARTS, Context, described, parts, parts_of_base
from crocodil.reproduce.store import VARIANT_MODEL, Job, Row, select
from crocodil.sampling.configs import Decoding, Drawing

NUM_SHOWN = 2  # texts kept in a row, as in App. G
SWEEP = "sweep"  # the file of the sweep's rows
SWEPT = "swept"  # the column with the names of the candidate's fields
DECODING = "decoding"  # the column with all of a decoding, in rows that do not name its fields one by one
CHOSEN = ("temperature", "rule")  # the fields of a candidate in rows that do not name them


class Sampler(NamedTuple):
    """A way to generate programs."""

    key: Row  # its name in rows
    generate: Callable[..., Generation]  # (count, *, seed, decoding, **changes of the model's `Drawing`)
    uses: Collection[str]  # parts of the model
    tuned_as: "Sampler | None" = None  # use the candidate chosen for this sampler; None: a sweep of its own
    decoding: Decoding | None = None  # the default of its model; None: that of the context's model
    compared: str | None = None  # the name of its model, if it is a compared one

    @property
    def is_guided(self) -> bool:
        return self.key.get("method") != Method.BASE


def sampler_of(pipe: Crocodil, method: Method) -> Sampler:
    """Return one of the paper's methods, unchanged."""
    return Sampler({"method": str(method)}, generate_with(pipe, method), parts_used_by(pipe, method))


def of_another_model(key: Row, pipe: Crocodil, method: Method, *, uses: Collection[str]) -> Sampler:
    """Return a method of a model that is measured beside the context's model. The key names its parts."""
    return Sampler(
        {**key, VARIANT_MODEL: parts(pipe, GENERATION_PARTS)},
        generate_with(pipe, method),
        uses,
        decoding=pipe.settings.decoding_for(method),
    )


def parts_used_by(pipe: Crocodil, method: Method) -> Collection[str]:
    return parts_of_base(pipe) if method == Method.BASE else GENERATION_PARTS


def generate_with(pipe: Crocodil, method: Method, **options: Any) -> Callable[..., Generation]:
    """Return `pipe.generate` for this method, without a progress bar."""
    return partial(pipe.generate, method=method, show_progress=False, **options)


def choose_and_measure(context: Context, name: str, entries: Sequence[tuple[Sampler, int]]) -> list[Row]:
    """Choose a candidate on valid for each sampler and number of calls, then measure it once on test."""
    sources = sources_of(context, entries)
    swept = sweep(context, sources)
    jobs = []
    for (sampler, calls), (source, chosen_at) in zip(entries, sources, strict=True):
        only = _only_candidate(context, source)
        swept_at = chosen_at if only is None else None
        candidate = candidate_of(best(select(swept, **source.key, calls=swept_at))) if only is None else only
        jobs.append(
            Job(
                {**sampler.key, "calls": calls},
                partial(measure, context, sampler, calls, candidate, split="test", swept_at=swept_at),
                work=calls,
                uses=sampler.uses,
                chosen=settings_of(context, sampler, calls, candidate),
                defaults=decoding_row(Decoding()),
            )
        )
    return context.store.compute(name, jobs)


def sources_of(context: Context, entries: Sequence[tuple[Sampler, int]]) -> list[tuple[Sampler, int]]:
    """Return for each entry the sampler that is swept for it, and at how many calls."""
    return [
        (sampler.tuned_as or sampler, context.protocol.swept_for(calls, context.length))
        for sampler, calls in entries
    ]


def sweep(context: Context, sources: Sequence[tuple[Sampler, int]]) -> list[Row]:
    """Measure all candidates of each sampler at its number of calls; in a final, only the top candidates."""
    protocol = context.protocol
    sources = [(source, swept_at) for source, swept_at in sources if _only_candidate(context, source) is None]
    if protocol.is_chosen_elsewhere(context.length):
        return _swept_elsewhere(context, sources)
    last_sweeps = [(source, min(swept_at, protocol.swept_calls[-1])) for source, swept_at in sources]
    jobs = _sweep_jobs(context, [(source, last, _candidates(context, source)) for source, last in last_sweeps])
    swept = context.store.compute(SWEEP, jobs)
    finals = [
        (source, swept_at, finalists(select(swept, **source.key, calls=last), protocol.num_finalists))
        for (source, swept_at), (_, last) in zip(sources, last_sweeps, strict=True)
        if swept_at > last
    ]
    return [*swept, *context.store.compute(SWEEP, _sweep_jobs(context, finals))]


def _swept_elsewhere(context: Context, sources: Sequence[tuple[Sampler, int]]) -> list[Row]:
    """Return the rows of the length at which settings are chosen; they must be complete."""
    protocol, length = context.protocol, context.protocol.chosen_at
    rows = replace(context.store, conditions={**context.store.conditions, "length": length}).rows(SWEEP)
    for source, swept_at in sources:
        wanted = protocol.num_swept_at(swept_at, num_candidates=len(_candidates(context, source)))
        if len(select(rows, **source.key, calls=swept_at)) < wanted:
            name = next(iter(source.key.values()))
            raise ValueError(
                f"settings are chosen at length {length}, where the sweep of {name} at {swept_at} calls is not "
                "finished: measure that length first"
            )
    return rows


def _candidates(context: Context, source: Sampler) -> list[Row]:
    return context.protocol.candidates(guided=source.is_guided, compared=source.compared)


def _only_candidate(context: Context, source: Sampler) -> Row | None:
    """Return the candidate of a sampler that has only one: there is nothing to choose, and it is not swept."""
    candidates = _candidates(context, source)
    return candidates[0] if len(candidates) == 1 else None


def has_default_settings(rows: Sequence[Row]) -> bool:
    """Whether rows were measured with the model's default settings, without a sweep."""
    return all(row.get("swept_at", 0) is None for row in rows)


def finalists(swept: Sequence[Row], count: int) -> list[Row]:
    """Return the `count` best candidates."""
    return [candidate_of(row) for row in ranked(swept)[:count]]


def candidate_of(row: Row) -> Row:
    """Return the fields of the sampling configs that were chosen for a row."""
    return {name: row[name] for name in row.get(SWEPT, CHOSEN)}


def _sweep_jobs(context: Context, entries: Sequence[tuple[Sampler, int, list[Row]]]) -> list[Job]:
    """Return one job per sampler, number of calls and candidate, without repetitions."""
    distinct = {(str(source.key), swept_at): (source, candidates) for source, swept_at, candidates in entries}
    return [
        Job(
            {**source.key, "calls": swept_at, **candidate},
            partial(measure, context, source, swept_at, candidate, split="valid", swept_at=swept_at),
            work=swept_at,
            uses=source.uses,
            chosen=settings_of(context, source, swept_at, candidate),
            defaults=decoding_row(Decoding()),
        )
        for (_, swept_at), (source, candidates) in distinct.items()
        for candidate in candidates
    ]


def measure(
    context: Context,
    sampler: Sampler,
    calls: int,
    candidate: Row,
    *,
    split: str,
    swept_at: int | None = None,
) -> Row:
    """Generate with one candidate and evaluate against one split."""
    is_test = split == "test"
    count = context.protocol.num_samples if is_test else context.protocol.num_swept
    decoding, drawing = split_candidate(default_decoding(context, sampler), calls, candidate)
    made = sampler.generate(count, seed=context.seed + is_test, decoding=decoding, **drawing)
    numbers = quality_and_cost(context, made, split)
    return {
        **decoding_row(decoding),
        **drawing,
        SWEPT: list(candidate),
        "split": split,
        "swept_at": swept_at,  # the number of calls at which the candidate was chosen; None: it is the only one
        **numbers,
        **(_shown(context, made, swept_at) if is_test else _aims_reached(context, numbers)),
    }


def _shown(context: Context, made: Generation, swept_at: int | None) -> Row:
    """Return what only rows of test have: some texts, and the rule by which the candidate was chosen."""
    return {"texts": made.texts[:NUM_SHOWN], "criterion": rule_of(context.protocol.aims) if swept_at else None}


def _aims_reached(context: Context, numbers: Row) -> Row:
    aims = context.protocol.aims
    return {} if aims is None else {REACHED: aims.reached(numbers, context.real_on_valid)}


def split_candidate(decoding: Decoding, calls: int, candidate: Row) -> tuple[Decoding, Row]:
    """Return the decoding of a candidate, and its changes of how registers are drawn."""
    names = {entry.name for entry in fields(Drawing)}
    drawing = {name: value for name, value in candidate.items() if name in names}
    others = {name: value for name, value in candidate.items() if name not in names}
    return replace(decoding, calls=calls, **others), drawing


def settings_of(context: Context, sampler: Sampler, calls: int, candidate: Row) -> Row:
    """Return all sampling settings of a row: those of the candidate, and the model's defaults for the others."""
    decoding, drawing = split_candidate(default_decoding(context, sampler), calls, candidate)
    return {**decoding_row(decoding), **drawing}


def default_decoding(context: Context, sampler: Sampler) -> Decoding:
    """Return the default config of a sampler: that of its method, or of ConThenDisc."""
    if sampler.decoding is not None:
        return sampler.decoding
    method = sampler.key.get("method")
    return context.pipe.settings.decoding_for(Method(method) if method in list(Method) else Method.CON_THEN_DISC)


def own_settings(pipe: Crocodil, method: Method) -> Row:
    """Return what `pipe.generate` uses by default: the candidate, the number of calls and all of the decoding."""
    decoding = pipe.settings.decoding_for(method)
    num_calls = decoding.plan(pipe.settings.length).num_calls
    return {**candidate_of(decoding_row(decoding)), "calls": num_calls, **whole_decoding(decoding)}


def whole_decoding(decoding: Decoding) -> Row:
    """Return all of a decoding as one column. Rows without it may have had any other settings: none is reused."""
    return {DECODING: described(replace(decoding, calls=None))}


def decoding_of(row: Row) -> Decoding:
    """Return the decoding of a measured row. Fields that are newer than the row have their defaults."""
    return Decoding(**{entry.name: row[entry.name] for entry in fields(Decoding) if entry.name in row})


def decoding_row(decoding: Decoding) -> Row:
    """Return the fields of a config as columns; the number of calls is a key of the row."""
    return {name: value for name, value in asdict(decoding).items() if name != "calls"}


def quality_and_cost(context: Context, made: Generation, split: str) -> Row:
    """Return all numbers of the evaluator, and the three costs per program. Other judges see test rows only."""
    evaluator = context.evaluator if split == "test" else replace(context.evaluator, other_judges=())
    return {
        **evaluator.evaluate(made.texts, context.reference(split)),
        "nfe": made.nfe,
        "flop_nfe": made.flop_nfe,
        "seconds": made.seconds / len(made.texts),
        "num_samples": len(made.texts),
        "note": made.note,
    }
