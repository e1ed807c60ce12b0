"""Time the methods: each point of the generation experiment again, in large and small batches, and on a CPU."""

import copy
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from crocodil.pipeline import Crocodil, Method
from crocodil.pipeline.folder import NETWORKS
from crocodil.reproduce.context import Context
from crocodil.reproduce.experiments.generation import methods, samplers
from crocodil.reproduce.experiments.quality import ORACLE
from crocodil.reproduce.store import Job, Row
from crocodil.reproduce.sweep import (
    SWEPT,
    Sampler,
    candidate_of,
    decoding_of,
    own_settings,
    parts_used_by,
    split_candidate,
    whole_decoding,
)
from crocodil.sampling.cost import num_parameters

LARGEST_ON_CPU = 2_000_000_000  # parameters; a larger demasker is not timed on a CPU


SMALL_BATCHES = (1, 16)  # with few texts at once, a GPU waits for the host


def compute_seconds(context: Context) -> list[Row]:
    """Time every point of the generation again: its own seconds include compilation and graph capture."""
    return _timed(context, "seconds", [None])


def compute_batch_seconds(context: Context) -> list[Row]:
    """Time every point of the generation in small batches."""
    return _timed(context, "batch-seconds", SMALL_BATCHES)


def _timed(context: Context, name: str, batches: Sequence[int | None]) -> list[Row]:
    """Time every point in batches of these sizes. None: all texts of the protocol at once, as memory allows."""
    by_method = {sampler.key["method"]: sampler for sampler in samplers(context)}
    by_method.pop(ORACLE, None)
    jobs = [
        Job(
            {**by_method[point["method"]].key, "calls": point["calls"], **({"batch": batch} if batch else {})},
            partial(_timed_row, context, by_method[point["method"]], point, batch),
            work=point["calls"],
            uses=by_method[point["method"]].uses,
            chosen=_settings_of(point),
        )
        for batch in batches
        for point in context.store.rows("generation")
        if point["method"] in by_method
    ]
    return context.store.compute(name, jobs)


def _timed_row(context: Context, sampler: Sampler, point: Row, batch: int | None) -> Row:
    # Texts differ in length, and so in time: a batch of one is timed for as many texts as the largest.
    count = context.protocol.num_clocked if batch is None else max(SMALL_BATCHES)
    candidate = candidate_of(point)
    decoding, drawing = split_candidate(decoding_of(point), point["calls"], candidate)
    generate = partial(sampler.generate, count, seed=context.seed, decoding=decoding, batch_size=batch, **drawing)
    generate()  # compiles and captures new shapes
    seconds = generate().seconds / count
    return {**_settings_of(point), "seconds": seconds, "num_samples": count}


def _settings_of(point: Row) -> Row:
    """Return the settings of a point: the chosen candidate, and all of its decoding."""
    candidate = candidate_of(point)
    return {**candidate, SWEPT: list(candidate), **whole_decoding(decoding_of(point))}


def with_seconds(points: Sequence[Row], timed: Sequence[Row]) -> list[Row]:
    """Return the points of the generation with the seconds measured here; None where there are none."""
    seconds = {_key(row): row["seconds"] for row in timed}
    return [{**point, "seconds": seconds.get(_key(point))} for point in points]


def _key(row: Row) -> tuple[Any, ...]:
    return row["length"], row["method"], row["calls"]


# ---------------------------------------------------------------- on a CPU


def compute_cpu_seconds(context: Context) -> list[Row]:
    """Time one program at a time on a CPU in float32, with the default number of calls."""
    if num_parameters(context.pipe.demasker) > LARGEST_ON_CPU:
        return []
    jobs = [
        Job(
            {"method": str(method)},
            partial(_cpu_row, context, method),
            uses=parts_used_by(context.pipe, method),
            chosen=own_settings(context.pipe, method),
        )
        for method in methods(context.pipe)
    ]
    return context.store.compute("cpu-seconds", jobs)


def _cpu_row(context: Context, method: Method) -> Row:
    count, all_threads = context.protocol.num_timed, torch.get_num_threads()
    torch.set_num_threads(min(context.protocol.cpu_threads, all_threads))
    try:
        made = on_cpu(context.pipe).generate(
            count, method=method, seed=context.seed, batch_size=1, show_progress=False
        )
        threads = torch.get_num_threads()
    finally:
        torch.set_num_threads(all_threads)
    return {
        **own_settings(context.pipe, method),
        "cpu_seconds": made.seconds / count,
        "threads": threads,
        "machine": platform.machine(),
        "num_samples": count,
    }


def on_cpu(pipe: Crocodil) -> Crocodil:
    """Return the model on the CPU in float32; the given model stays where it is."""
    if pipe.device.type == "cpu":
        return pipe
    copies: dict[str, Any] = {name: copy.deepcopy(getattr(pipe, name)) for name in NETWORKS}
    networks = {name: network and network.to("cpu").float() for name, network in copies.items()}
    return replace(pipe, compiled=False, **networks)
