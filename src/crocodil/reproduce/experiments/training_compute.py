"""Training compute of the base and of the guided model, from the records of their runs."""

from collections.abc import Callable, Mapping
from statistics import fmean

from crocodil.objectives import DemaskerObjective, PriorObjective
from crocodil.pipeline import Crocodil
from crocodil.reproduce.context import Context
from crocodil.reproduce.store import Job, Row
from crocodil.sampling.cost import num_parameters
from crocodil.training.work import base_flops, conditional_flops, guided_flops, prior_flops


def compute(context: Context) -> list[Row]:
    """Describe the model, and compare the training compute of its base with that of its guided demasker."""
    description = describe(context.pipe, context.training, context.base)
    # The whole description is the key of the row: the run of a base may be given later.
    return context.store.compute("model", [Job(description, dict)])


def describe(pipe: Crocodil, training: Mapping[str, Row], base: str) -> Row:
    prior, drawing = pipe.conditional if pipe.prior is None else pipe.prior, pipe.settings.drawing
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
    of the base's run if it is another one. The result is None if it is unknown, as for a base that others trained.
    """
    if "run" not in training or pipe.base is None:
        return None
    run, base_run = training["run"], training.get("base", training["run"])
    if any((record.get("pretrained") or {}).get("llada") for record in (run, base_run)):
        return None
    spent = stage_flops(pipe, run)
    stages = ["base", "guided", *(["prior", "conditional"] if with_priors else [])]
    if any(spent[stage] is None for stage in stages):
        return None
    on_base = stage_flops(pipe, base_run)["base"]
    return None if on_base is None else on_base / sum(spent[stage] or 0.0 for stage in stages)


def stage_flops(pipe: Crocodil, record: Row) -> dict[str, float | None]:
    """Return the FLOPs of each stage of a run, counted as in `training.work`; None if the record lacks the stage.

    A stage whose network the model does not have counts as 0.
    """
    backbone = pipe.demasker.config.backbone
    guided = {**vars(DemaskerObjective()), **record.get("guided_objective", {})}
    prior = {**vars(PriorObjective()), **record.get("prior_objective", {})}
    samples: dict[str, Callable[[int], float] | None] = {
        "base": lambda length: base_flops(backbone, length=length, draft_rate=record.get("base_draft_rate", 0.0)),
        "guided": lambda length: guided_flops(
            pipe.demasker.config,
            pipe.encoder.config,
            length=length,
            all_mask_rate=guided["all_mask_rate"],
            adapted=record.get("lora") is not None,
            draft_rate=guided["draft_rate"],
        ),
        "prior": None if pipe.prior is None else _of_prior(pipe),
        "conditional": None if pipe.conditional is None else _of_conditional(pipe, record, prior["bare_rate"]),
    }
    return {stage: _spent(record, f"{stage}_loop", flops) for stage, flops in samples.items()}


def _of_prior(pipe: Crocodil) -> Callable[[int], float]:
    assert pipe.prior is not None
    flops = prior_flops(pipe.prior.config)
    return lambda length: flops


def _of_conditional(pipe: Crocodil, record: Row, bare_rate: float) -> Callable[[int], float]:
    assert pipe.conditional is not None
    denoiser, encoder = pipe.conditional.config, (pipe.condition_encoder or pipe.encoder).config
    learns = bool(record.get("condition_encoder_learns"))
    return lambda length: conditional_flops(
        denoiser, encoder, length=length, bare_rate=bare_rate, encoder_learns=learns
    )


def _spent(record: Row, loop: str, flops: Callable[[int], float] | None) -> float | None:
    if flops is None:
        return 0.0
    if loop not in record:
        return None
    num_samples = record[loop]["num_steps"] * record[loop]["batch_size"]
    return num_samples * fmean(map(flops, record["lengths"]))
