"""All experiments by name: which rows each computes. `compute_all` is what `crocodil reproduce all` runs."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from crocodil.reproduce.context import Context
from crocodil.reproduce.experiments import (
    ablations,
    autoencoder,
    copies,
    demasker_curves,
    generation,
    interpolation,
    register_priors,
    training_compute,
    two_sentences,
)
from crocodil.reproduce.store import Row, Store, read_stores, write_conditions

# In the order of the paper; every name is a file of rows, beside which a sweep may lie.
EXPERIMENTS: Mapping[str, Callable[[Context], list[Row]]] = {
    "model": training_compute.compute,
    "reference": generation.compute_reference,
    "demasker": demasker_curves.compute_curves,
    "autoencoder": autoencoder.compute,
    "generation": generation.compute,
    "memorisation": copies.compute,
    "seconds": generation.compute_seconds,
    "cpu-seconds": generation.compute_cpu_seconds,
    "noise": demasker_curves.compute_noise,
    "interpolation": interpolation.compute,
    "psnr": register_priors.compute_psnr,
    "prdc": register_priors.compute_prdc,
    "register-count": ablations.compute_register_count,
    "refresh": ablations.compute_refresh,
    "variants": ablations.compute_variants,
    "variant-autoencoders": ablations.compute_variant_autoencoders,
}
ALWAYS = ("model", "reference")  # without which no other can be shown
TWO_SENTENCES = "two-sentences"
NAMES = (*EXPERIMENTS, TWO_SENTENCES)


def compute_all(
    contexts: Sequence[Context], wanted: Sequence[str], *, say: Callable[[str], object] = lambda line: None
) -> dict[str, list[Row]]:
    """The rows of the wanted experiments, of all models together; what is in the files is not computed again."""
    if unknown := [name for name in wanted if name not in NAMES]:
        raise ValueError(f"no experiment {unknown[0]!r}: take all, or some of {', '.join(NAMES)}")
    if len({context.length for context in contexts}) < len(contexts):
        raise ValueError("two models of one length: results are told apart by it, take one of them")
    write_conditions(contexts[0].store.directory, [context.store.conditions for context in contexts])
    names = [name for name in EXPERIMENTS if name in wanted or name in ALWAYS]
    found: dict[str, list[Row]] = {name: [] for name in names}
    for number, (name, context) in enumerate(product(names, contexts), start=1):
        say(f"{number}/{len(names) * len(contexts)} {name}, length {context.length}")
        found[name] += EXPERIMENTS[name](context)
    if TWO_SENTENCES in wanted:
        store = Store(contexts[0].store.directory, {})
        found[TWO_SENTENCES] = two_sentences.compute(store, contexts[0].protocol.two_sentences_steps)
    return found


def read_all(directory: Path) -> dict[str, list[Row]]:
    """What the last run left, from the files alone."""
    stores = read_stores(directory)
    found = {name: [row for store in stores for row in store.rows(name)] for name in EXPERIMENTS}
    worlds = Store(directory, {}).rows(TWO_SENTENCES)
    found["model"] = [row for store in stores for row in store.rows("model")[-1:]]  # as it was last described
    found[TWO_SENTENCES] = worlds[-1]["samplers"] if worlds else []
    if lacking := [name for name in ALWAYS if not found[name]]:
        raise ValueError(f"{directory} has no rows of {' and '.join(lacking)}: compute them with `reproduce`")
    return {name: rows for name, rows in found.items() if rows}
