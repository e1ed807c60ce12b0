"""Run one stage of a run: check it, write its record, train it or cache registers, and save its networks.

What a stage depends on is listed here as data. A stage that is resumed with other settings, another corpus or
other networks is refused.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path

from torch import Tensor, nn

from crocodil.checkpoints.format import save_model
from crocodil.corpus.pairs import PAIRS_FILE
from crocodil.models.demasker import Demasker
from crocodil.models.register_critic import RegisterCritic
from crocodil.runtime.atomic import remove_unfinished
from crocodil.runtime.distributed import full_tensor, locked_for_ranks, whole_directory_for_ranks
from crocodil.text.encode import encode_tokens
from crocodil.training.adapting import (
    merge_adapters,
)
from crocodil.training.checkpointing import TrainState
from crocodil.training.data import REGISTERS_FILE, cache_registers
from crocodil.training.loop import (
    LoopConfig,
    Stage,
    averaged_weights,
    check_minutes,
    check_num_steps,
    has_checkpoints,
    num_steps_done,
    train,
)
from crocodil.training.record import (
    STAGE_FILE,
    add_to_record,
    checksum_of,
    flatten_config,
    read_checksummed,
    select_fields,
    write_or_check_record,
)
from crocodil.training.run_config import Run, write_run_file
from crocodil.training.spent import CONTINUED_BASE, StageWork, inherited_flops
from crocodil.training.stage_checks import (
    check_stage,
    guided_start_folders,
    student_folders,
    teacher_folders,
    tokens_digest,
)
from crocodil.training.stage_setup import (
    TRAINED_STAGES,
    denoiser_folder,
    head_networks,
    retokenizer,
    started_base,
)
from crocodil.training.workspace import Workspace

# The fields of a run that each stage depends on.
_FIELDS = {
    "base": (
        "lengths", "demasker.backbone", "base_loop", "base_draft_rate", "pretrained.llada", "causal", "base_start",
    ),
    "guided": (
        "lengths", "demasker", "encoder", "guided_loop", "guided_objective", "encoder_warmup_steps",
        "register_noise_from", "encoder_begins_as_base", "pretrained", "lora", "guided_start",
        "encoder_learns",
    ),
    "registers": ("encoder", "prior.num_registers", "prior_loop.bf16", "pretrained.qwen"),
    "prior": ("lengths", "prior", "prior_loop", "prior_objective"),
    "conditional": (
        "lengths", "conditional", "conditional_loop", "prior_objective", "condition_encoder_learns", "live_draws",
        "pretrained.qwen", "conditional_start", "denoiser_begins_as_demasker",
    ),
    "distilled": (
        "lengths", "distilled_loop", "distil_objective", "prior_objective", "weak_prior", "pretrained.qwen",
        "distilled_start",
    ),
    "prompted": (
        "lengths", "prompted_loop", "prompted_objective", "prior_objective", "guided_objective", "pretrained.qwen",
    ),
    "head": ("lengths", "head_loop", "head_objective", "guided_objective", "pretrained.qwen", "head_of"),
}  # fmt: skip
# The files of earlier stages that each stage reads.
_SOURCES = {
    "base": (),
    "guided": ("base/model/demasker",),
    "registers": ("guided/model/encoder",),
    "prior": (f"registers/{STAGE_FILE}",),
    "conditional": ("guided/model/encoder",),  # and others: `_sources`
    "distilled": (f"registers/{STAGE_FILE}",),  # and the networks of the teachers
    "prompted": ("guided/model/encoder", "guided/model/demasker", "conditional/model/denoiser"),
    "head": ("guided/model/encoder", "guided/model/demasker"),
}


def run_stage(
    name: str,
    run: Run,
    workspace: Workspace,
    *,
    resume: bool = False,
    max_minutes: float | None = None,
    then: Callable[[], Run | None] = lambda: None,
) -> bool:
    """Run one stage; return True if it is finished, False if the time limit or a signal stopped it.

    The networks of a finished stage are saved with averaged weights in RUN/STAGE/model. When the stage is stopped,
    `then` may return the same run with another schedule, with which it goes on at once.
    """
    check_minutes(max_minutes)
    check_stage(name, run, workspace)
    out, ranks = workspace.out / name, workspace.ranks
    with locked_for_ranks(out, ranks):
        ranks.on_main(partial(_start, name, run, workspace, resume=resume))
        if name == "registers":
            _cache_registers(run, workspace, out)
            return True
        stage, loop = TRAINED_STAGES[name](run, workspace)
        ranks.on_main(partial(_write_work, name, run, workspace, stage, loop))
        state = train(stage, loop, out, ranks=ranks, resume=resume, max_minutes=max_minutes)
        if state.step < loop.num_steps and not state.was_stopped and (rescheduled := then()):
            ranks.on_main(partial(_start, name, rescheduled, workspace, resume=True))
            loop = getattr(rescheduled, f"{name}_loop")
            ranks.on_main(partial(_write_work, name, rescheduled, workspace, stage, loop))
            state = train(stage, loop, out, ranks=ranks, state=state)
        if state.step < loop.num_steps:
            return False
        _save_models(run, stage, state, out / "model")
        return True


# ---------------------------------------------------------------- start or resume


def _start(name: str, run: Run, workspace: Workspace, *, resume: bool) -> None:
    """Remove what a killed process left, then write the stage's record, or check it if the stage has started."""
    out = workspace.out / name
    for directory in (out, out / "checkpoints"):
        remove_unfinished(directory)
    if (out / "model").exists():
        raise ValueError(f"{out / 'model'} exists: this stage is finished, choose another --out")
    started = has_checkpoints(out) or any(out.glob(f"*/{REGISTERS_FILE}"))
    if started and not resume and name in TRAINED_STAGES:
        raise ValueError(f"{out} already holds a run: continue it with --resume, or choose another --out")
    if f"registers/{STAGE_FILE}" in _sources(name, run):
        _check_registers(workspace)
    settings = select_fields(flatten_config(run), _FIELDS[name])
    sources = _source_checksums(_sources(name, run), workspace)
    if name == "base" and (folder := started_base(run, workspace)) is not None:
        sources[CONTINUED_BASE] = checksum_of(folder)
    elif name == "base" and run.causal is not None:
        sources["causal model"] = checksum_of(run.causal.directory)
    if name == "guided" and run.guided_start is not None:
        folders = guided_start_folders(run.guided_start)
        sources |= {f"{network} to go on from": checksum_of(folder) for network, folder in folders.items()}
    if name == "conditional" and run.conditional_start is not None:
        sources["denoiser to go on from"] = checksum_of(denoiser_folder(run.conditional_start))
    if name == "distilled":
        sources |= {path: checksum_of(folder) for path, folder in teacher_folders(run, workspace).items()}
        students = student_folders(run)
        sources |= {f"student {prior} to go on from": checksum_of(folder) for prior, folder in students.items()}
    if name == "head" and run.head_of is not None:
        folders = head_networks(run, workspace)
        sources |= {f"{network} of the model": checksum_of(folder) for network, folder in folders.items()}
    if name == "prompted" and run.pairs is not None:
        sources["pairs"] = checksum_of(run.pairs / PAIRS_FILE)
    num_done = num_steps_done(out)
    if name in TRAINED_STAGES:
        check_num_steps(getattr(run, f"{name}_loop"), num_done, out)
    write_or_check_record(out, settings, sources, started=started, num_done=num_done)
    if not started:
        add_to_record(out, "tokens", tokens_digest(workspace.corpus))
    if name in TRAINED_STAGES:
        write_run_file(run, workspace.out)


def _write_work(name: str, run: Run, workspace: Workspace, stage: Stage, loop: LoopConfig) -> None:
    """Write the operations of all steps of the stage, and those of the stages that it builds on."""
    own = loop.num_steps * loop.batch_size * stage.work().flops
    work = StageWork(flops=own, inherited=inherited_flops(name, run, workspace))
    add_to_record(workspace.out / name, "work", asdict(work))


def _check_registers(workspace: Workspace) -> None:
    """Refuse cached registers of another corpus or encoder."""
    file = workspace.source / "registers" / STAGE_FILE
    if not file.exists():
        return  # older versions did not write it
    recorded = read_checksummed(file).get("sources", {})
    for name, checksum in _source_checksums(_SOURCES["registers"], workspace).items():
        if recorded.get(name) != checksum:
            raise ValueError(f"{file.parent} was made with another {name}: run stage registers with another --out")


def _sources(name: str, run: Run) -> tuple[str, ...]:
    """Return the files of earlier stages that a stage reads."""
    if name == "head" and run.head_of is not None:
        return ()
    if name != "conditional":
        return _SOURCES[name]
    cached = () if run.live_draws else (f"registers/{STAGE_FILE}",)
    begun = ("guided/model/demasker",) if run.denoiser_begins_as_demasker else ()
    return (*_SOURCES[name], *begun, *cached)


def _source_checksums(paths: Iterable[str], workspace: Workspace) -> dict[str, str]:
    """Return checksums of the corpus and of files of earlier stages."""
    description = workspace.corpus.description
    corpus = json.dumps([description["splits"], description["sha256"]], sort_keys=True)
    files = {path: workspace.source / path for path in paths}
    return {
        "corpus": sha256(corpus.encode()).hexdigest(),
        **{path: checksum_of(file) for path, file in files.items() if file.exists()},
    }


# ---------------------------------------------------------------- results


def _save_models(run: Run, stage: Stage, state: TrainState, target: Path) -> None:
    """Save the networks of a stage, with averaged weights and merged adapters; they appear all at once."""
    is_main = state.ranks.is_main
    with averaged_weights(state), whole_directory_for_ranks(target, state.ranks) as unfinished:
        for name, module in stage.modules().items():
            if isinstance(module, RegisterCritic):
                continue  # it serves training only
            weights = _full_weights(module, keep=is_main)
            if not is_main:
                continue
            if run.lora is not None and isinstance(module, Demasker):
                weights = merge_adapters(weights, run.lora)
            save_model(module, unfinished / name, weights=weights)  # type: ignore[arg-type]


def _full_weights(module: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Gather weights to the CPU one tensor at a time, so that no device holds them all."""
    weights = {}
    for name, tensor in module.state_dict().items():
        gathered = full_tensor(tensor)
        if keep:
            weights[name] = gathered.cpu()
    return weights


def _cache_registers(run: Run, workspace: Workspace, out: Path) -> None:
    encoder, encoder_retokenizer = workspace.trained_encoder(), retokenizer(run, workspace)
    if run.prior_loop.compile_blocks:
        for layer in encoder.backbone.layers:
            layer.compile(dynamic=False)
    for split in ("train", "valid"):
        for programs in dict.fromkeys(workspace.programs(run, split)):
            cache_registers(
                lambda tokens: encode_tokens(encoder, tokens, retokenizer=encoder_retokenizer),
                programs,
                out / f"{split}-{programs.length}",
                shape=(run.num_prior_registers, run.prior.register_width),
                batch_size=run.encode_batch,
                ranks=workspace.ranks,
                bf16=run.prior_loop.bf16,
            )
