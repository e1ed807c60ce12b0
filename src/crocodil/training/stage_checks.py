"""Refuse what cannot work, before a network is built or a file is written."""

import json
from hashlib import sha256
from pathlib import Path

from crocodil.checkpoints.causal import read_causal_config
from crocodil.checkpoints.format import model_config
from crocodil.corpus.shards import TOKENIZER_FILE, Corpus
from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.adapting import check_encoder_fits_base, check_peft_installed
from crocodil.training.loop import check_ranks
from crocodil.training.record import STAGE_FILE, read_checksummed
from crocodil.training.run_config import CausalStart, Run, read_run_file
from crocodil.training.stage_setup import (
    STAGES,
    TRAINED_STAGES,
    check_shape,
    denoiser_folder,
    head_networks,
    pair_source,
    started_base,
)
from crocodil.training.workspace import Workspace


def check_stage(name: str, run: Run, workspace: Workspace) -> None:
    """Refuse what cannot work, before a network is built or a file is written."""
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}: the stages are {', '.join(STAGES)}")
    if workspace.has_other_source:
        read_run_file(workspace.source)
    distils_conditional = name == "distilled" and "conditional" in run.distil_objective.teachers
    uses_encoder = name in ("guided", "registers", "conditional", "prompted", "head") or distils_conditional
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
        _check_start("conditional_start", denoiser_folder(run.conditional_start), stages="conditional")
    if name == "distilled":
        _check_distilled(run, workspace)
        student_folders(run)
    if name == "head":
        _check_head(run, workspace)
    if name == "prompted":
        for stage, network in (("guided", "encoder"), ("guided", "demasker"), ("conditional", "denoiser")):
            workspace.finished(stage, network)
        pair_source(run, workspace).check()
    if name in ("prior", "distilled") or (name == "conditional" and not run.live_draws):
        workspace.registers(run, "train")
        workspace.registers(run, "valid")


def _check_shares(name: str, run: Run, workspace: Workspace) -> None:
    """Refuse a share of a micro-batch that is less than half a sample: it would be left out in every step."""
    drafts = {"guided_objective.draft_rate": run.guided_objective.draft_rate}
    guesses = {"prior_objective.self_condition_rate": run.prior_objective.self_condition_rate}
    rates = {
        "base": {"base_draft_rate": run.base_draft_rate},
        "guided": drafts,
        "prior": guesses if run.prior.self_conditioned else {},
        "conditional": guesses if run.conditional.self_conditioned else {},
        "prompted": drafts if run.prompted_objective.demasker_learns else {},
        "head": drafts,
    }
    loop = getattr(run, f"{name}_loop")
    size = loop.batch_size // loop.num_accumulated // workspace.ranks.count
    for field, rate in rates.get(name, {}).items():
        if rate and not round(rate * size):
            raise ValueError(
                f"{field}={rate} is no sample of a micro-batch of {size}, so it would do nothing: raise it, or "
                "the size of micro-batches"
            )


def _check_distilled(run: Run, workspace: Workspace) -> None:
    objective, smallest = run.distil_objective, run.prior_objective.smallest_noise
    if smallest and not objective.by_matching:
        raise ValueError(
            f"the prior is trained at noise {smallest} and above (prior_objective.smallest_noise), and a flow map "
            "draws clean registers: set distil_objective.by_matching=true"
        )
    for path, folder in teacher_folders(run, workspace).items():
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


def _check_head(run: Run, workspace: Workspace) -> None:
    shapes = {"encoder": run.encoder, "demasker": run.demasker}
    for name, folder in head_networks(run, workspace).items():
        _check_start("head_of", folder, stages="guided")
        check_shape(model_config(folder), shapes[name], folder)


def _check_start(setting: str, folder: Path, *, stages: str) -> None:
    """Refuse a setting that names a folder without the network to go on from."""
    if not folder.exists():
        raise ValueError(
            f"{folder} is missing: {setting} is the folder model of a finished stage {stages}, or an exported "
            "model"
        )


def student_folders(run: Run) -> dict[str, Path]:
    """Return the folders of the students that stage distilled goes on with, by the names of their teachers."""
    if (start := run.distilled_start) is None:
        return {}
    folders: dict[str, Path] = {name: start / name for name in run.distil_objective.teachers}
    for folder in folders.values():
        _check_start("distilled_start", folder, stages="distilled")
    return folders


def teacher_folders(run: Run, workspace: Workspace) -> dict[str, Path]:
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
    check_recorded_tokens(workspace.corpus, workspace.source)
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


def tokens_digest(corpus: Corpus) -> str:
    """Return a digest of the tokens of a corpus and their ids."""
    ids = Tokenizer.load(corpus.directory / TOKENIZER_FILE).with_mask().ids
    return sha256(json.dumps(sorted(ids.items())).encode()).hexdigest()


def check_recorded_tokens(corpus: Corpus, directory: Path) -> None:
    """Refuse a corpus whose tokens differ from those of the run, even if there are equally many."""
    used = tokens_digest(corpus)
    for stage in ("base", "guided"):
        if _recorded_tokens(directory / stage / STAGE_FILE) not in (None, used):
            raise ValueError(f"{directory / stage} was trained with other tokens than the corpus has: {_REBUILD}")


def _recorded_tokens(file: Path) -> str | None:
    """Return the digest in a stage.json; None if it is older, or damaged (then resuming the stage says so)."""
    try:
        return read_checksummed(file).get("tokens") if file.exists() else None
    except ValueError:
        return None


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


def _check_base_start(run: Run, folder: Path) -> None:
    _check_start("base_start", folder, stages="base or guided")
    found = model_config(folder)
    check_shape(found.backbone if isinstance(found, DemaskerConfig) else found, run.demasker.backbone, folder)


def check_guided_steps(run: Run) -> None:
    """Refuse a stage guided that ends before the demasker is trained, or before registers are noised."""
    num_steps = run.guided_loop.num_steps
    if run.encoder_warmup_steps and run.encoder_warmup_steps >= num_steps:
        raise ValueError(
            f"encoder_warmup_steps is {run.encoder_warmup_steps} and guided_loop.num_steps {num_steps}: "
            "the demasker would never be trained, set encoder_warmup_steps to less"
        )
    if run.register_noise_from and run.register_noise_from >= num_steps:
        raise ValueError(
            f"register_noise_from is {run.register_noise_from} and guided_loop.num_steps {num_steps}: "
            "registers would never be noised, set register_noise_from to less"
        )


def _check_guided(run: Run, workspace: Workspace) -> None:
    check_guided_steps(run)
    if run.lora is not None:
        check_peft_installed()
        if workspace.ranks.count > 1:
            raise ValueError(
                "LoRA runs in one process: for several devices use a preset without LoRA, such as paper"
            )
    if run.guided_start is not None:
        guided_start_folders(run.guided_start)
        return
    if run.encoder_begins_as_base and run.pretrained.qwen is None:
        check_encoder_fits_base(run.encoder, run.demasker.backbone)
    if run.pretrained.llada is None:
        workspace.finished("base", "demasker")


def guided_start_folders(start: Path) -> dict[str, Path]:
    """Return the folders of the networks that stage guided goes on from."""
    folders = {name: start / name for name in ("demasker", "encoder")}
    for folder in folders.values():
        _check_start("guided_start", folder, stages="guided")
    return folders
