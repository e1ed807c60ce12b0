"""Training compute of the base and of the guided model, from the records of their runs."""

from collections.abc import Mapping

from crocodil.pipeline import Crocodil
from crocodil.reproduce.context import Context
from crocodil.reproduce.store import Job, Row
from crocodil.sampling.cost import num_parameters
from crocodil.training.spent import Shapes, flops_of_run, flops_up_to


def compute(context: Context) -> list[Row]:
    """Describe the model, and compare the training compute of its base with that of its guided demasker."""
    description = describe(context.pipe, context.training, context.base)
    # The whole description is the key of the row: the run of a base may be given later.
    return context.store.compute("model", [Job(description, dict)])


def describe(pipe: Crocodil, training: Mapping[str, Row], base: str) -> Row:
    prior, drawing = pipe.first_prior, pipe.settings.drawing
    return {
        "demasker_parameters": num_parameters(pipe.demasker),
        "encoder_parameters": num_parameters(pipe.encoder),
        "prior_parameters": num_parameters(pipe.prior),
        "conditional_parameters": num_parameters(pipe.conditional),
        "registers": pipe.encoder.config.num_registers,
        "register_width": pipe.encoder.config.register_width,
        "prior_steps": drawing.prior_steps,
        "refresh_steps": drawing.refresh_steps,
        "eta": drawing.eta,
        "pag_scale": drawing.pag_scale,
        "prior_registers": 0 if prior is None else prior.config.num_registers,
        "guiding_registers": 0 if prior is None else drawing.num_registers or prior.config.num_registers,
        "base": None if pipe.base is None else base,
        "base_compute_share": base_compute_share(pipe, training),
        "base_compute_share_with_priors": base_compute_share(pipe, training, with_priors=True),
    }


def base_compute_share(pipe: Crocodil, training: Mapping[str, Row], *, with_priors: bool = False) -> float | None:
    """Return the compute of the base divided by that of demasker and encoder, including the base they start from.

    `with_priors` adds the denoisers to the guided model. `training` holds the record of the model's run, and that
    of the base's run if it is another one (`training.spent.read_record`): a base that went on from another one has
    the compute of both (decision D67). The result is None if it is unknown, as for a base that others trained.
    """
    if "run" not in training or pipe.base is None:
        return None
    shapes = shapes_of(pipe)
    spent = flops_of_run(training["run"], shapes)
    on_base = spent["base"]
    if "base" in training or "base" in training["run"].get("work", {}):
        on_base = flops_up_to("base", training.get("base", training["run"]), shapes)["base"]
    stages = ["base", "guided", *(prior_stages(shapes) if with_priors else [])]
    counted = [spent.get(stage) for stage in stages]
    if on_base is None or None in counted:
        return None
    return on_base / sum(flops or 0.0 for flops in counted)


def shapes_of(pipe: Crocodil) -> Shapes:
    prior, conditional = (None if one is None else one.config for one in (pipe.prior, pipe.conditional))
    return Shapes(pipe.demasker.config, pipe.encoder.config, prior, conditional)


def prior_stages(shapes: Shapes) -> list[str]:
    """Return the stages that trained the priors of a model: a distilled one began as another prior."""
    priors = {"prior": shapes.prior, "conditional": shapes.conditional}
    trained = {stage: config for stage, config in priors.items() if config is not None}
    return [*trained, *(["distilled"] if any(config.is_distilled for config in trained.values()) else [])]
