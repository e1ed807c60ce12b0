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

from crocodil.checkpoints.causal import read_causal_config
from crocodil.checkpoints.format import model_config, save_model
from crocodil.corpus.pairs import PAIRS_FILE
from crocodil.corpus.shards import TOKENIZER_FILE, Corpus
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_critic import RegisterCritic
from crocodil.runtime.atomic import remove_unfinished
from crocodil.runtime.distributed import full_tensor, locked_for_ranks, whole_directory_for_ranks
from crocodil.text.encode import encode_tokens
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.adapting import (
    FrozenTable,
    check_encoder_fits_base,
    check_peft_installed,
    merge_adapters,
    merge_mask_row,
)
from crocodil.training.checkpointing import TrainState
from crocodil.training.data import REGISTERS_FILE, cache_registers
from crocodil.training.loop import (
    LoopConfig,
    Stage,
    averaged_weights,
    check_minutes,
    check_num_steps,
    check_ranks,
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
from crocodil.training.run_config import CausalStart, Run, read_run_file, write_run_file
from crocodil.training.spent import CONTINUED_BASE, StageWork, inherited_flops
from crocodil.training.stage_setup import (
    JOINT_PRIOR,
    TRAINED_STAGES,
    denoiser_folder,
    pair_source,
    retokenizer,
    started_base,
    teacher_data,
)
from crocodil.training.workspace import Workspace

STAGES = ("base", "guided", "registers", "prior", "conditional", "distilled", "prompted")

# The fields of a run that each stage depends on.
_FIELDS = {
    "base": (
        "lengths", "demasker.backbone", "base_loop", "base_draft_rate", "pretrained.llada", "causal", "base_start",
    ),
    "guided": (
        "lengths", "demasker", "encoder", "guided_loop", "guided_objective", "encoder_warmup_steps",
        "register_noise_from", "encoder_begins_as_base", "pretrained", "lora", "rate_objective", "guided_start",
        "encoder_learns", "teacher_texts", "teacher_rate",
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
}  # fmt: skip
# The files of earlier stages that each stage reads.
_SOURCES = {
    "base": (),
    "guided": ("base/model/demasker",),
    "registers": ("guided/model/encoder",),
    "prior": (f"registers/{STAGE_FILE}",),
    "conditional": ("guided/model/encoder", JOINT_PRIOR),  # and others: `_sources`
    "distilled": (f"registers/{STAGE_FILE}",),  # and the networks of the teachers
    "prompted": ("guided/model/encoder", "guided/model/demasker", "conditional/model/denoiser"),
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


# ---------------------------------------------------------------- checks


def check_stage(name: str, run: Run, workspace: Workspace) -> None:
    """Refuse what cannot work, before a network is built or a file is written."""
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}: the stages are {', '.join(STAGES)}")
    if workspace.has_other_source:
        read_run_file(workspace.source)
    distils_conditional = name == "distilled" and "conditional" in run.distil_objective.teachers
    uses_encoder = name in ("guided", "registers", "conditional", "prompted") or distils_conditional
    _check_corpus(run, workspace, uses_encoder=uses_encoder)
    if name in TRAINED_STAGES:
        check_ranks(getattr(run, f"{name}_loop"), workspace.ranks)
        _check_shares(name, run, workspace)
    if name == "base" and (folder := started_base(run, workspace)) is not None:
        _check_base_start(run, folder)
    elif name == "base" and run.causal is not None:
        _check_causal(run, run.causal)
    if name == "guided":
        _check_guided(run, workspace)
    if name in ("registers", "conditional"):
        workspace.finished("guided", "encoder")
    if name == "conditional" and run.conditional_start is not None:
        _check_conditional_start(run.conditional_start)
    if name == "distilled":
        _check_distilled(run, workspace)
        _student_folders(run)
    if name == "prompted":
        for stage, network in (("guided", "encoder"), ("guided", "demasker"), ("conditional", "denoiser")):
            workspace.finished(stage, network)
        pair_source(run, workspace).check()
    if name in ("prior", "distilled") or (name == "conditional" and not run.live_draws):
        workspace.registers(run, "train")
        workspace.registers(run, "valid")


def _check_shares(name: str, run: Run, workspace: Workspace) -> None:
    """Refuse a share of a micro-batch that is less than half a sample: it would be left out in every step."""
    rates = {
        "base": {"base_draft_rate": run.base_draft_rate},
        "guided": {"guided_objective.draft_rate": run.guided_objective.draft_rate},
    }
    loop = getattr(run, f"{name}_loop")
    size = loop.batch_size // loop.num_accumulated // workspace.ranks.count
    for field, rate in rates.get(name, {}).items():
        if rate and not round(rate * size):
            raise ValueError(
                f"{field}={rate} is no sample of a micro-batch of {size}: raise it, or the batch size"
            )


def _check_distilled(run: Run, workspace: Workspace) -> None:
    objective, smallest = run.distil_objective, run.prior_objective.smallest_noise
    if smallest and not objective.by_matching:
        raise ValueError(
            f"the prior is trained at noise {smallest} and above (prior_objective.smallest_noise), and a flow map "
            "draws clean registers: set distil_objective.by_matching=true"
        )
    for path, folder in _teacher_folders(run, workspace).items():
        if not folder.exists():
            raise ValueError(f"{folder} is missing: the {path} of stage distilled")
    teachers = [model_config(workspace.finished(name, "denoiser")) for name in objective.teachers]
    if objective.pag_scale and any(teacher.body is not None for teacher in teachers):
        raise ValueError(
            "distil_objective.pag_scale needs identity attention, which a denoiser with the blocks of a demasker "
            "does not have: set it to 0"
        )
    if run.weak_prior is not None:
        width = model_config(run.weak_prior).condition_width
        if width not in {teacher.condition_width for teacher in teachers}:
            raise ValueError(f"{run.weak_prior} guides none of the teachers: it has another condition than they")


def _check_conditional_start(start: Path) -> None:
    if not (folder := denoiser_folder(start)).exists():
        raise ValueError(
            f"{folder} is missing: conditional_start is the folder model of a finished stage conditional, or an "
            "exported model"
        )


def _student_folders(run: Run) -> dict[str, Path]:
    """Return the folders of the students that stage distilled goes on with, by the names of their teachers."""
    if (start := run.distilled_start) is None:
        return {}
    folders: dict[str, Path] = {name: start / name for name in run.distil_objective.teachers}
    for folder in folders.values():
        if not folder.exists():
            raise ValueError(
                f"{folder} is missing: distilled_start is the folder model of a finished stage distilled, or an "
                "exported model"
            )
    return folders


def _teacher_folders(run: Run, workspace: Workspace) -> dict[str, Path]:
    """Return the folders of the networks that stage distilled reads."""
    teachers = run.distil_objective.teachers
    folders = {f"{name}/model/denoiser": workspace.finished(name, "denoiser") for name in teachers}
    if "conditional" in teachers:
        folders["condition encoder"] = workspace.condition_encoder()
    return folders if run.weak_prior is None else {**folders, "weak prior": run.weak_prior}


def _check_corpus(run: Run, workspace: Workspace, *, uses_encoder: bool) -> None:
    from_scratch = run.causal is None and run.pretrained.llada is None
    check_vocabulary(workspace.corpus, run.demasker.backbone, exact=from_scratch)
    for folder in (run.pretrained.llada, None if run.causal is None else run.causal.directory):
        if folder is not None and (folder / TOKENIZER_FILE).exists():
            check_tokens(workspace.corpus, folder / TOKENIZER_FILE)
    vocab_size = workspace.corpus.description["tokenizer"]["vocab_size"]
    encoder_fits = fits(vocab_size, run.encoder.vocab_size, exact=from_scratch)
    if uses_encoder and run.pretrained.qwen is None and not encoder_fits:
        raise ValueError(
            f"the encoder has a vocabulary of {run.encoder.vocab_size}, the corpus one of {vocab_size}: "
            "give the folder of the encoder's tokenizer (--qwen)"
        )
    workspace.data(run, run.base_loop)  # refuses an empty split
    longest_texts = [shard.documents["length"].max(initial=0) for shard in workspace.corpus.shards("train")]
    longest = int(max(longest_texts, default=0)) + 2  # with BOS and EOS
    if max(run.lengths) > longest:
        raise ValueError(
            f"lengths: {max(run.lengths)} tokens, but the longest program of the corpus has {longest} "
            f"with BOS and EOS: set lengths to at most {longest}"
        )


def check_vocabulary(corpus: Corpus, base: LLaDAConfig, *, exact: bool = False) -> None:
    """Refuse a corpus with another vocabulary than the base; a pretrained base may have unused rows.

    Programs are filled up with EOS, so the padding token does not matter.
    """
    vocabulary = corpus.description["tokenizer"]
    if not fits(vocabulary["vocab_size"], base.vocab_size, exact=exact):
        sizes = f"the corpus has a vocabulary of {vocabulary['vocab_size']}, the run one of {base.vocab_size}"
        raise ValueError(f"{sizes}: {_REBUILD}")
    for name in ("mask", "eos"):
        token, expected = vocabulary["special"][name], getattr(base, f"{name}_id")
        if token != expected:
            raise ValueError(f"the {name} token has id {token} in the corpus, {expected} in the base: {_REBUILD}")


def check_tokens(corpus: Corpus, file: Path) -> None:
    """Refuse a corpus whose tokens differ from those of a checkpoint's tokenizer.json."""
    known, used = (Tokenizer.load(path).with_mask().ids for path in (file, corpus.directory / TOKENIZER_FILE))
    if differ := used.items() - known.items():
        token, index = min(differ, key=lambda pair: pair[1])
        raise ValueError(f"token {index} of the corpus is {token!r}, which is another one in {file}: {_REBUILD}")


def fits(num_tokens: int, num_rows: int, *, exact: bool) -> bool:
    """Whether an embedding of `num_rows` rows fits this many tokens; with `exact`, no row may be unused."""
    return num_tokens == num_rows if exact else num_tokens <= num_rows


_REBUILD = "build the corpus with the base's own tokenizer (`crocodil corpus build --tokenizer`)"


def _check_causal(run: Run, start: CausalStart) -> None:
    shape = read_causal_config(start.directory, layers=start.layers, shifted=start.shifted)
    if run.demasker.backbone != shape:
        raise ValueError(
            f"demasker.backbone is not the shape of {start.directory}: choose layers with --layers or "
            "--keep-layers and the shift with --shift, not with --set"
        )
    if start.align_weight and run.base_draft_rate:
        raise ValueError("base_draft_rate and --align are both set: choose one of them")


def _check_base_start(run: Run, folder: Path) -> None:
    if not folder.exists():
        raise ValueError(
            f"{folder} is missing: base_start is the folder model of a finished stage base or guided, or an "
            "exported model"
        )
    shape = model_config(folder)
    if (shape.backbone if isinstance(shape, DemaskerConfig) else shape) != run.demasker.backbone:
        raise ValueError(f"{folder} has another shape than the run: use the preset that it was trained with")


def _check_guided(run: Run, workspace: Workspace) -> None:
    if run.encoder_warmup_steps and run.encoder_warmup_steps >= run.guided_loop.num_steps:
        raise ValueError(
            f"encoder_warmup_steps is {run.encoder_warmup_steps} and guided_loop.num_steps "
            f"{run.guided_loop.num_steps}: the demasker would never be trained, set encoder_warmup_steps to less"
        )
    if run.register_noise_from and run.register_noise_from >= run.guided_loop.num_steps:
        raise ValueError(
            f"register_noise_from is {run.register_noise_from} and guided_loop.num_steps "
            f"{run.guided_loop.num_steps}: registers would never be noised, set register_noise_from to less"
        )
    if run.lora is not None:
        check_peft_installed()
        if workspace.ranks.count > 1:
            raise ValueError(
                "LoRA runs in one process: for several devices use a preset without LoRA, such as paper"
            )
    if run.guided_start is not None:
        _guided_start_folders(run.guided_start)
        if run.teacher_texts:
            teacher_data(run, workspace, run.guided_loop)
        return
    if run.encoder_begins_as_base and run.pretrained.qwen is None:
        check_encoder_fits_base(run.encoder, run.demasker.backbone)
    if run.pretrained.llada is None:
        workspace.finished("base", "demasker")


def _guided_start_folders(start: Path) -> dict[str, Path]:
    """Return the folders of the networks that stage guided goes on from; a denoiser may be among them."""
    folders = {name: start / name for name in ("demasker", "encoder")}
    for folder in folders.values():
        if not folder.exists():
            raise ValueError(
                f"{folder} is missing: guided_start is the folder model of a finished stage guided, or an "
                "exported model"
            )
    denoiser = denoiser_folder(start)
    return {**folders, "denoiser": denoiser} if denoiser.exists() else folders


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
        folders = _guided_start_folders(run.guided_start)
        sources |= {f"{network} to go on from": checksum_of(folder) for network, folder in folders.items()}
    if name == "guided":
        sources |= {f"teacher texts {n}": checksum_of(folder) for n, folder in enumerate(run.teacher_texts, 1)}
    if name == "conditional" and run.conditional_start is not None:
        sources["denoiser to go on from"] = checksum_of(denoiser_folder(run.conditional_start))
    if name == "distilled":
        sources |= {path: checksum_of(folder) for path, folder in _teacher_folders(run, workspace).items()}
        students = _student_folders(run)
        sources |= {f"student {prior} to go on from": checksum_of(folder) for prior, folder in students.items()}
    if name == "prompted" and run.pairs is not None:
        sources["pairs"] = checksum_of(run.pairs / PAIRS_FILE)
    num_done = num_steps_done(out)
    if name in TRAINED_STAGES:
        check_num_steps(getattr(run, f"{name}_loop"), num_done, out)
    write_or_check_record(out, settings, sources, started=started, num_done=num_done)
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
            if isinstance(module, LLaDA) and isinstance(module.embed, FrozenTable):
                weights = merge_mask_row(weights, module.config.mask_id)
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
