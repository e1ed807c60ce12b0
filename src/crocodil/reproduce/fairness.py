"""Was the base given its due? Compute of training, from the records of runs."""

from collections.abc import Mapping
from statistics import fmean

from crocodil.cost import num_parameters
from crocodil.pipeline import Crocodil
from crocodil.reproduce.lab import Lab
from crocodil.reproduce.rows import Job, Row

FLOPS_A_WEIGHT = 6  # forward and backward, for each position


def compute(lab: Lab) -> list[Row]:
    """What the model is, and how the training of its base compares with that of its guided demasker."""
    about = _about(lab.pipe, lab.training, lab.base)
    return lab.store.compute("model", [Job(about, dict)])  # all of it is the question: a base's run may come later


def _about(pipe: Crocodil, training: Mapping[str, Row], base: str) -> Row:
    prior = pipe.conditional if pipe.prior is None else pipe.prior
    return {
        "demasker_parameters": num_parameters(pipe.demasker),
        "encoder_parameters": num_parameters(pipe.encoder),
        "prior_parameters": num_parameters(pipe.prior),
        "conditional_parameters": num_parameters(pipe.conditional),
        "registers": pipe.encoder.config.num_registers,
        "register_width": pipe.encoder.config.register_width,
        "prior_steps": pipe.settings.prior_steps,
        "refresh_steps": pipe.settings.refresh_steps,
        "eta": pipe.settings.eta,
        "coherence": pipe.settings.coherence,
        "prior_registers": 0 if prior is None else prior.config.num_registers,
        "guiding_registers": 0 if prior is None else pipe.settings.num_registers or prior.config.num_registers,
        "base": None if pipe.base is None else base,
        "base_compute_share": base_compute_share(pipe, training),
    }


def base_compute_share(pipe: Crocodil, training: Mapping[str, Row]) -> float | None:
    """Compute spent on the base over that spent on demasker and encoder, the base they started from included.

    `training` holds the record of the model's run, and of the base's where it has one of its own. None: not known.
    """
    if "run" not in training or pipe.base is None:
        return None
    run, base_run = training["run"], training.get("base", training["run"])
    backbone, guided = num_parameters(pipe.base), num_parameters(pipe.demasker) + num_parameters(pipe.encoder)
    spent_on_base = _flops(base_run, "base_loop", backbone)
    return spent_on_base / (_flops(run, "base_loop", backbone) + _flops(run, "guided_loop", guided))


def _flops(record: Row, loop: str, num_weights: int) -> float:
    own = record[loop]
    return FLOPS_A_WEIGHT * num_weights * float(own["num_steps"]) * own["batch_size"] * fmean(record["lengths"])
