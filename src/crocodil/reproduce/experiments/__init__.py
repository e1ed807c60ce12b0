"""All experiments by name. `compute_all` computes their rows, `read_all` reads them from the files."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TypeAlias

from crocodil.reproduce.context import Context
from crocodil.reproduce.experiments import (
    ablations,
    autoencoder,
    base_bound,
    completions,
    copies,
    demasker_curves,
    generation,
    interpolation,
    register_priors,
    timing,
    training_compute,
    two_sentences,
)
from crocodil.reproduce.fixed_protocol import check_same_protocol
from crocodil.reproduce.store import Row, Store, read_stores, write_conditions
from crocodil.reproduce.sweep import SWEEP

Results: TypeAlias = Mapping[str, Sequence[Row]]  # rows by the name of their experiment

# In the order of the paper. Every name is also the name of a file of rows. All sweeps have one file.
EXPERIMENTS: Mapping[str, Callable[[Context], list[Row]]] = {
    "model": training_compute.compute,
    "reference": generation.compute_reference,
    "anchor": generation.compute_anchor,
    base_bound.NAME: base_bound.compute,
    "demasker": demasker_curves.compute_curves,
    "autoencoder": autoencoder.compute,
    SWEEP: generation.compute_sweep,
    "generation": generation.compute,
    "memorisation": copies.compute,
    "seconds": timing.compute_seconds,
    "batch-seconds": timing.compute_batch_seconds,
    "cpu-seconds": timing.compute_cpu_seconds,
    "noise": demasker_curves.compute_noise,
    "interpolation": interpolation.compute,
    "psnr": register_priors.compute_psnr,
    "prdc": register_priors.compute_prdc,
    "register-count": ablations.compute_register_count,
    "refresh": ablations.compute_refresh,
    "variants": ablations.compute_variants,
    "variant-autoencoders": ablations.compute_variant_autoencoders,
    completions.NAME: completions.compute,
}
ALWAYS = ("model", "reference")  # every report needs these
TWO_SENTENCES = "two-sentences"
NAMES = (*EXPERIMENTS, TWO_SENTENCES)


def compute_all(
    contexts: Sequence[Context], wanted: Sequence[str], *, say: Callable[[str], object] = lambda line: None
) -> dict[str, list[Row]]:
    """Return the rows of the wanted experiments for all models; rows that are in the files are not recomputed."""
    if unknown := [name for name in wanted if name not in NAMES]:
        raise ValueError(f"there is no experiment {unknown[0]!r}: choose all, or some of {', '.join(NAMES)}")
    if len({context.length for context in contexts}) < len(contexts):
        raise ValueError("two models have the same length: results are stored by length, give only one of them")
    for context in contexts:
        check_same_protocol(context.store, EXPERIMENTS)
    write_conditions(contexts[0].store.directory, [context.store.conditions for context in contexts])
    names = [name for name in EXPERIMENTS if name in wanted or name in ALWAYS]
    results: dict[str, list[Row]] = {name: [] for name in names}
    for number, (name, context) in enumerate(product(names, contexts), start=1):
        say(f"{number}/{len(names) * len(contexts)} {name}, length {context.length}")
        results[name] += EXPERIMENTS[name](context)
    if TWO_SENTENCES in wanted:
        store = Store(contexts[0].store.directory, {})
        results[TWO_SENTENCES] = two_sentences.compute(store, contexts[0].protocol.two_sentences_steps)
    results[SWEEP] = [row for context in contexts for row in context.store.rows(SWEEP)]
    return results


def read_all(directory: Path) -> dict[str, list[Row]]:
    """Return the rows of the last run, from the files alone."""
    stores = read_stores(directory)
    results = {name: [row for store in stores for row in store.rows(name)] for name in EXPERIMENTS}
    results["model"] = [row for store in stores for row in store.rows("model")[-1:]]  # the last description
    toy_examples = Store(directory, {}).rows(TWO_SENTENCES)
    results[TWO_SENTENCES] = toy_examples[-1]["samplers"] if toy_examples else []
    if missing := [name for name in ALWAYS if not results[name]]:
        raise ValueError(f"{directory} has no rows of {' and '.join(missing)}: compute them with `reproduce`")
    return {name: rows for name, rows in results.items() if rows}
