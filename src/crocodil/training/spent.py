"""The operations that trained the weights of a stage: in it, and in the stages it builds on (decision D67).

A stage writes them into its stage.json when it starts. For runs of older versions they are computed from run.json.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.objectives import DemaskerObjective, PriorObjective
from crocodil.runtime.config import config, read_as
from crocodil.training.history import recorded_run
from crocodil.training.record import STAGE_FILE, read_checksummed
from crocodil.training.run_config import RUN_FILE, Run, read_run_file
from crocodil.training.stage_setup import TRAINED_STAGES, started_base
from crocodil.training.work import base_flops, conditional_flops, guided_flops, prior_flops
from crocodil.training.workspace import Workspace

Flops: TypeAlias = dict[str, float | None]  # by stage; None: unknown
CONTINUED_BASE = "base to go on from"  # a source in stage.json


@config
class StageWork:
    """The operations of a stage, as in stage.json."""

    flops: float | None  # of its own steps
    inherited: Flops  # of the stages it builds on


_UNKNOWN = StageWork(flops=None, inherited={})
_ENDS = ("head", "prompted")  # no other stage starts from them, and they may build on the networks of another run


@dataclass(frozen=True)
class Shapes:
    """The networks whose training is counted. A network that is None took no operations."""

    demasker: DemaskerConfig
    encoder: RegisterEncoderConfig
    prior: RegisterDenoiserConfig | None
    conditional: RegisterDenoiserConfig | None

    @classmethod
    def of(cls, run: Run) -> "Shapes":
        return cls(run.demasker, run.encoder, run.prior, run.conditional_shape)


def inherited_flops(name: str, run: Run, workspace: Workspace) -> Flops:
    """Return the operations of all stages that a stage builds on, when it starts."""
    spent: Flops = {}
    if name == "base" and run.base_start is not None:
        return {"base": _flops_of_base_start(run.base_start, run, workspace)}
    if name == "base" and not workspace.has_other_source:
        return spent if run.pretrained.llada is None else {"base": None}  # others trained it
    if name == "guided" and run.guided_start is not None:
        return _flops_of_start("guided", run.guided_start, Shapes.of(run))
    if name == "head" and run.head_of is not None:
        return _flops_behind_head(run.head_of, run, workspace)
    if name == "guided" and not (workspace.source / "base" / "model").exists():
        return {"base": None}
    record = read_record(workspace.source)
    parents = {
        "base": ("base",),
        "guided": ("base",),
        "distilled": run.distil_objective.teachers,
        "prompted": ("guided", "conditional"),
    }
    for parent in parents.get(name, ("guided",)):
        spent |= flops_up_to(parent, record, Shapes.of(run))
    start = {"conditional": run.conditional_start, "distilled": run.distilled_start}.get(name)
    if start is not None:
        # The denoiser only: its encoder may come from networks that are counted already.
        spent[name] = _flops_of_start(name, start, Shapes.of(run))[name]
    return spent


def _flops_of_base_start(start: Path, run: Run, workspace: Workspace) -> float | None:
    """Return all operations spent on the network that a base goes on from, including those of an encoder.

    An exported model holds no record of its training: that of the other run, which the workspace reads, is used.
    """
    stage, shapes = start.absolute().parent.name, Shapes.of(run)
    if stage in ("base", "guided"):
        spent = _flops_of_start(stage, start, shapes)
    elif workspace.has_other_source:
        folder = started_base(run, workspace)
        trained = "base" if folder == start / "base" else "guided"
        spent = flops_up_to(trained, read_record(workspace.source), shapes)
    else:
        spent = {"base": None}
    known = [flops for flops in spent.values() if flops is not None]
    return sum(known) if len(known) == len(spent) else None


def _flops_behind_head(model: Path, run: Run, workspace: Workspace) -> Flops:
    """Return the operations behind the model that a causal head is trained for.

    An exported model holds no record of its training: that of the other run, which the workspace reads, is used.
    """
    stage = model.absolute().parent
    is_of_run = stage.name == "guided" and (stage.parent / RUN_FILE).is_file()
    if workspace.has_other_source and not is_of_run:
        return flops_up_to("guided", read_record(workspace.source), Shapes.of(run))
    return _flops_of_start("guided", model, Shapes.of(run))


def _flops_of_start(stage: str, start: Path, shapes: Shapes) -> Flops:
    """Return the operations behind the folder `model` of a stage; unknown outside of a run."""
    directory = start.absolute().parent.parent
    if not (directory / RUN_FILE).is_file():
        return dict.fromkeys(("base", "guided", stage))
    return flops_up_to(stage, read_record(directory), shapes)


def read_record(directory: Path) -> dict[str, Any]:
    """Return run.json with each stage's own settings, and as `work` the operations that each stage recorded."""
    try:
        record = recorded_run(directory)
    except ValueError:  # a stage.json is damaged: the operations of its stage are unknown, see below
        record = read_run_file(directory)
    written = read_as(dict[str, StageWork], record.get("work", {}), directory / RUN_FILE)  # by hand
    recorded = {name: _work_of(directory / name / STAGE_FILE) for name in TRAINED_STAGES}
    return {**record, "work": written | {name: work for name, work in recorded.items() if work is not None}}


def _work_of(file: Path) -> StageWork | None:
    if not file.exists():
        return None
    try:
        record = read_checksummed(file)
    except ValueError:
        return _UNKNOWN
    if "work" in record:
        return read_as(StageWork, record["work"], file)
    went_on = CONTINUED_BASE in record.get("sources", {})  # older versions did not record the work before
    return _UNKNOWN if went_on else None


def flops_up_to(stage: str, record: Mapping[str, Any], shapes: Shapes) -> Flops:
    """Return the operations of a stage and of those it builds on."""
    work = record.get("work", {}).get(stage)
    if work is not None:
        return _with_own(stage, work)
    spent = planned_flops(record, shapes)
    earlier = () if stage == "base" else ("base",) if stage == "guided" else ("base", "guided")
    for name in earlier:
        spent |= flops_up_to(name, record, shapes)
    return {name: spent.get(name) for name in (*earlier, stage)}


def flops_of_run(record: Mapping[str, Any], shapes: Shapes) -> Flops:
    """Return the operations behind the networks of a run. For its base, only those before stage guided count."""
    spent = planned_flops(record, shapes)
    work = record.get("work", {})
    for stage in TRAINED_STAGES:
        if stage in work and stage not in _ENDS:
            spent |= _with_own(stage, work[stage])
    return spent | {stage: _with_own(stage, work[stage])[stage] for stage in _ENDS if stage in work}


def _with_own(stage: str, work: StageWork) -> Flops:
    before = work.inherited.get(stage, 0.0)
    total = None if work.flops is None or before is None else before + work.flops
    return {**work.inherited, stage: total}


# ---------------------------------------------------------------- from run.json


def planned_flops(record: Mapping[str, Any], shapes: Shapes) -> Flops:
    """Return the operations of each stage of a run.json; None if it lacks the stage, or begins as LLaDA."""
    guided = {**vars(DemaskerObjective()), **record.get("guided_objective", {})}
    drafts = record.get("base_draft_rate", 0.0)
    spent: Flops = {
        "base": _planned(
            record, "base", lambda length: base_flops(shapes.demasker.backbone, length=length, draft_rate=drafts)
        ),
        "guided": _planned(
            record,
            "guided",
            lambda length: guided_flops(
                shapes.demasker,
                shapes.encoder,
                length=length,
                all_mask_rate=guided["all_mask_rate"],
                adapted=record.get("lora") is not None,
                draft_rate=guided["draft_rate"],
                encoder_learns=record.get("encoder_learns", True),
            ),
        ),
        "prior": _planned_prior(record, shapes),
        "conditional": _planned_conditional(record, shapes),
    }
    return {**spent, "base": None} if (record.get("pretrained") or {}).get("llada") else spent


def _planned_prior(record: Mapping[str, Any], shapes: Shapes) -> float | None:
    if shapes.prior is None:
        return 0.0
    flops = prior_flops(shapes.prior, self_condition_rate=_prior_objective(record)["self_condition_rate"])
    return _planned(record, "prior", lambda length: flops)


def _planned_conditional(record: Mapping[str, Any], shapes: Shapes) -> float | None:
    denoiser = shapes.conditional
    if denoiser is None:
        return 0.0
    objective = _prior_objective(record)
    learns, live_draws = bool(record.get("condition_encoder_learns")), record.get("live_draws", 0)
    return _planned(
        record,
        "conditional",
        lambda length: conditional_flops(
            denoiser,
            shapes.encoder,
            length=length,
            bare_rate=objective["bare_rate"],
            self_condition_rate=objective["self_condition_rate"],
            encoder_learns=learns,
            live_draws=live_draws,
        ),
    )


def _prior_objective(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objective of a run's priors; fields that are newer than the record have their defaults."""
    return {**vars(PriorObjective()), **record.get("prior_objective", {})}


def _planned(record: Mapping[str, Any], stage: str, flops: Callable[[int], float]) -> float | None:
    """Return the operations of all steps of a stage, given those of one sample by length."""
    loop = record.get(f"{stage}_loop")
    if loop is None:
        return None
    try:
        num_samples: int = loop["num_steps"] * loop["batch_size"]
        return num_samples * fmean(map(flops, record["lengths"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{RUN_FILE} is damaged: the steps of stage {stage} are unclear ({error!r})") from error
