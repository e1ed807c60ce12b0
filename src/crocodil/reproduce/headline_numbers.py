"""The main numbers of all results as JSON, for programs."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import crocodil
from crocodil.processes.plan import TOKENS_PER_CALL
from crocodil.reproduce.experiments import Results, comparison
from crocodil.reproduce.fixed_protocol import PROTOCOL, TEST_CORPUS
from crocodil.reproduce.store import Row, distinct, select

NEWER_CONDITIONS = (TEST_CORPUS, PROTOCOL)  # older rows do not have them


def summary(results: Results) -> dict[str, Any]:
    """Return the main numbers for programs: what all models share, and every measure by length."""
    models = results["model"]
    lengths = {str(row["length"]): _of_length(results, row["length"]) for row in models}
    return {
        "version": crocodil.__version__,
        **{name: _common(models, name) for name in ("setting", "judge", "embedder", "seed", "corpus")},
        **{name: _common(models, name) for name in NEWER_CONDITIONS if all(name in row for row in models)},
        **{
            name: {length: measure(rows) for length, rows in lengths.items()} for name, measure in MEASURES.items()
        },
    }


def _of_length(results: Results, length: int) -> Results:
    return {name: select(rows, length=length) for name, rows in results.items()}


def _common(models: Sequence[Row], name: str) -> Any:
    """Return the value that all models share, or the list of different values."""
    values = distinct(models, name)
    return values[0] if len(values) == 1 else values


def _speedups(results: Results, *, per_token: bool = False) -> dict[str, dict[str, float | None]]:
    """Return the speed-ups over the base at its best number of calls, or at one call per token; None: no match."""
    if not results.get("generation"):
        return {}
    (real,) = results["reference"]
    calls = real["length"] if per_token else None
    speedups = comparison.speedups_by_unit(results["generation"], real, calls=calls)
    return {
        method: {unit: comparison.factor_of(one) for unit, one in by_unit.items()}
        for method, by_unit in speedups.items()
    }


def _speedups_by_mauve(results: Results) -> dict[str, float | None]:
    """Return the speed-ups by FLOPs where MAUVE alone must match."""
    if not results.get("generation"):
        return {}
    speedups = comparison.speedups_by_mauve(results["generation"], results["reference"][0])
    return {method: comparison.factor_of(one) for method, one in speedups.items()}


def _points(results: Results) -> dict[str, Row]:
    """Return for each method the point that matches the base, else the one nearest to the default calls."""
    rows, (real,) = results.get("generation", ()), results["reference"]
    speedups = comparison.speedups(rows, real) if rows else {}
    points = {}
    for method in distinct(rows, "method"):
        match = speedups.get(method)
        wanted = max(1, real["length"] // TOKENS_PER_CALL) if match is None else match.method.calls
        points[method] = min(select(rows, method=method), key=lambda row: abs(math.log(row["calls"] / wanted)))
    return points


def _by_method(results: Results, name: str) -> dict[str, Any]:
    points = {method: row[name] for method, row in _points(results).items()}
    return {**points, "real": results["reference"][0].get(name)}


# Each function gets the results of one length. `at_calls` tells at which point `parse_share` and `entropy` are.
MEASURES: Mapping[str, Callable[[Results], Any]] = {
    "model": lambda results: results["model"][0]["model"],
    "prior_steps": lambda results: results["model"][0]["prior_steps"],
    "refresh_steps": lambda results: results["model"][0]["refresh_steps"],
    "eta": lambda results: results["model"][0]["eta"],
    "pag_scale": lambda results: results["model"][0]["pag_scale"],
    "num_samples": lambda results: results["reference"][0]["num_samples"],
    "base_compute_share": lambda results: {
        "demasker and encoder": results["model"][0]["base_compute_share"],
        "with priors": results["model"][0].get("base_compute_share_with_priors"),
    },
    "own_best_calls": lambda results: (
        comparison.own_best_calls(results["generation"], results["reference"][0])
        if comparison.has_base(results.get("generation", ()))
        else None
    ),
    "speedup": _speedups,
    "speedup_at_one_call_a_token": partial(_speedups, per_token=True),
    "speedup_by_mauve": _speedups_by_mauve,
    "at_calls": lambda results: {method: row["calls"] for method, row in _points(results).items()},
    "parse_share": partial(_by_method, name="parse_share"),
    "entropy": partial(_by_method, name="entropy"),
    "autoencoder_cer": lambda results: {
        str(row["calls"]): row["cer"] for row in results.get("autoencoder", ()) if row["block"] == row["length"]
    },
    "cpu_seconds_per_program": lambda results: {
        row["method"]: row["cpu_seconds"] for row in results.get("cpu-seconds", ())
    },
    "memorisation": lambda results: next((row["runs"] for row in results.get("memorisation", ())), {}),
}
