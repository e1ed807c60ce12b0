"""Build the stages of a run: their networks and their data.

    RUN/base  ->  RUN/guided  ->  RUN/registers  ->  RUN/prior and RUN/conditional  ->  RUN/distilled, RUN/prompted
                             ->  RUN/head

Each stage starts from what earlier stages wrote to the same run, or to another one.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from crocodil.checkpoints.causal import load_causal
from crocodil.checkpoints.format import load_model
from crocodil.checkpoints.llada import load_llada
from crocodil.checkpoints.qwen3 import load_qwen3_embedding
from crocodil.checkpoints.tensors import CONFIG_FILE
from crocodil.corpus.shards import TOKENIZER_FILE
from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.models.demasker import Demasker
from crocodil.models.denoiser_starts import (
    begun_as_demasker,
    flow_map_of,
    fresh_noise_copy_of,
    plain_copy_of,
    prompted_from,
)
from crocodil.models.length_head import LengthHead, LengthHeadConfig
from crocodil.models.llada import LLaDA
from crocodil.models.register_critic import RegisterCritic
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.runtime.distributed import Ranks
from crocodil.seeding import generator_for
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.adapting import add_adapters, init_from_base
from crocodil.training.data import CachedRegisters, register_statistics
from crocodil.training.distilling import DistilledStage, Teacher
from crocodil.training.guiding import GuidedStage
from crocodil.training.head import HeadStage
from crocodil.training.loop import LoopConfig, Stage
from crocodil.training.matching import MatchedStage
from crocodil.training.pair_data import PairData, PairSource
from crocodil.training.prompting import PromptedStage
from crocodil.training.run_config import CausalStart, Run
from crocodil.training.stages import (
    BaseStage,
    ConditionalPriorStage,
    PriorStage,
)
from crocodil.training.workspace import Network, Workspace, loaded

# ---------------------------------------------------------------- stages


def base_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop = run.base_loop
    if (started := started_base(run, workspace)) is not None:
        demasker = _without_registers(started)
    elif run.causal is not None:
        demasker = _causal_base(run.causal)
    elif run.pretrained.llada is not None:
        demasker = load_llada(run.pretrained.llada, dtype=torch.float32)
    else:
        demasker = LLaDA(run.demasker.backbone).init_weights(generator_for("base", loop.seed))
    stage = BaseStage(workspace.to_device(demasker), workspace.data(run, loop), draft_rate=run.base_draft_rate)
    return stage, loop


def guided_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop = run.guided_loop
    if run.guided_start is None:
        demasker = _demasker(run, workspace)
        encoder = _encoder(run, demasker.backbone)
    else:
        demasker = _same_shape(run.guided_start / "demasker", run.demasker, Demasker)
        encoder = _same_shape(run.guided_start / "encoder", run.encoder, RegisterEncoder)
    stage = GuidedStage(
        workspace.to_device(encoder.requires_grad_(run.encoder_learns)),
        workspace.to_device(demasker),
        workspace.data(run, loop),
        run.guided_objective,
        run.encoder_warmup_steps,
        retokenizer(run, workspace),
        run.num_prior_registers,
        run.register_noise_from,
        encoder_learns=run.encoder_learns,
    )
    return stage, loop


def prior_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop = run.prior_loop
    registers = workspace.registers(run, "train")
    stage = PriorStage(
        workspace.to_device(_denoiser(run.prior, registers, generator_for("prior", loop.seed))),
        registers,
        workspace.registers(run, "valid"),
        workspace.data(run, loop),
        run.prior_objective,
    )
    return stage, loop


def conditional_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop = run.conditional_loop
    registers, valid_registers = (
        [] if run.live_draws else workspace.registers(run, split) for split in ("train", "valid")
    )
    encoder = workspace.trained_encoder()
    started = None if run.conditional_start is None else denoiser_folder(run.conditional_start)
    generator = generator_for("conditional", loop.seed)
    if started is not None:
        denoiser = plain_copy_of(loaded(started, RegisterDenoiser, "cpu"))
        check_shape(denoiser.config, run.conditional_shape, started)
    elif run.denoiser_begins_as_demasker:
        demasker = loaded(workspace.finished("guided", "demasker"), Demasker, "cpu")
        denoiser = begun_as_demasker(run.conditional_shape, demasker, generator)
    else:
        denoiser = _denoiser(run.conditional, registers, generator)
    stage = ConditionalPriorStage(
        workspace.to_device(denoiser),
        encoder.requires_grad_(run.condition_encoder_learns),
        registers,
        valid_registers,
        workspace.data(run, loop),
        run.demasker.backbone.mask_id,
        run.prior_objective,
        run.condition_encoder_learns,
        retokenizer(run, workspace),
        run.live_draws,
    )
    return stage, loop


def distilled_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop, objective = run.distilled_loop, run.distil_objective
    teachers: dict[str, Teacher] = {name: _teacher(name, run, workspace) for name in objective.teachers}
    student_of = fresh_noise_copy_of if objective.by_matching else flow_map_of
    copies = {
        name: student_of(teacher.denoiser, generator_for("distilled", name, loop.seed))
        for name, teacher in teachers.items()
    }
    students = {name: _student(run.distilled_start, name, copy) for name, copy in copies.items()}
    encoder = None
    if "conditional" in teachers:
        encoder = loaded(workspace.condition_encoder(), RegisterEncoder, workspace.device).requires_grad_(False)
    kind: Callable[..., DistilledStage] = DistilledStage
    data = workspace.data(run, loop)
    if objective.by_matching:
        # Critics and students must see all lengths, so a length keeps its turn until all of them were trained.
        data = replace(data, steps_per_turn=objective.critic_steps + 1)
        critics = {name: _critic(copy, name, loop.seed) for name, copy in copies.items()}
        kind = partial(MatchedStage, critics={name: workspace.to_device(one) for name, one in critics.items()})
    stage = kind(
        {name: workspace.to_device(student) for name, student in students.items()},
        teachers,
        workspace.registers(run, "train"),
        workspace.registers(run, "valid"),
        data,
        run.demasker.backbone.mask_id,
        encoder,
        objective,
        run.prior_objective,
        retokenizer(run, workspace),
    )
    return stage, loop


def prompted_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop, objective = run.prompted_loop, run.prompted_objective
    encoder = workspace.trained_encoder().requires_grad_(False)
    conditional = loaded(workspace.finished("conditional", "denoiser"), RegisterDenoiser, "cpu")
    demasker = None
    if objective.demasker_learns:
        demasker = workspace.to_device(loaded(workspace.finished("guided", "demasker"), Demasker, "cpu"))
    shape = run.encoder.num_registers, run.encoder.register_width
    own = workspace.to_device(workspace.trained_encoder()) if objective.own_encoder else None
    source = pair_source(run, workspace)
    lengths = {"answer_length": objective.answer_length, "prompt_length": objective.prompt_length}
    head = LengthHead(LengthHeadConfig(prompt_width=shape[1], max_length=source.room.answer, **lengths))
    stage = PromptedStage(
        workspace.to_device(prompted_from(conditional, *shape, generator_for("prompted", loop.seed))),
        workspace.to_device(head.init_weights(generator_for("length head", loop.seed))),
        demasker,
        encoder,
        own,
        pair_data(source, loop, workspace.ranks),
        run.demasker.backbone.mask_id,
        objective,
        run.prior_objective,
        run.guided_objective,
        retokenizer(run, workspace),
    )
    return stage, loop


def pair_source(run: Run, workspace: Workspace) -> PairSource:
    """Return the pairs of stage prompted, with the tokenizer of the run's corpus."""
    if run.pairs is None:
        raise ValueError("stage prompted needs --pairs: a folder that `crocodil corpus pairs` wrote")
    tokenizer_file = workspace.corpus.directory / TOKENIZER_FILE
    return PairSource(run.pairs, tokenizer_file, run.prompted_objective, max(run.lengths))


def pair_data(source: PairSource, loop: LoopConfig, ranks: Ranks) -> PairData:
    return PairData(
        train=source.tokens("train", ranks),
        valid=source.tokens("valid", ranks),
        special=Tokenizer.load(source.tokenizer_file).special,
        objective=source.objective,
        text_length=source.text_length,
        batch_size=loop.batch_size,
        seed=loop.seed,
        device=ranks.device,
    )


def head_stage(run: Run, workspace: Workspace) -> tuple[Stage, LoopConfig]:
    loop, device, folders = run.head_loop, workspace.device, head_networks(run, workspace)
    encoder = loaded(folders["encoder"], RegisterEncoder, device).requires_grad_(False)
    demasker = loaded(folders["demasker"], Demasker, device).requires_grad_(False)
    head = CausalHead(CausalHeadConfig(backbone=demasker.config.backbone))
    stage = HeadStage(
        workspace.to_device(head.init_weights(demasker.backbone, generator_for("head", loop.seed))),
        encoder,
        demasker,
        workspace.data(run, loop),
        run.head_objective,
        run.guided_objective,
        retokenizer(run, workspace),
        run.num_prior_registers,
    )
    return stage, loop


def head_networks(run: Run, workspace: Workspace) -> dict[str, Path]:
    """Return the folders of the frozen networks of stage head: of stage guided, or of the model `head_of`."""
    names = ("encoder", "demasker")
    if run.head_of is None:
        return {name: workspace.finished("guided", name) for name in names}
    return {name: run.head_of / name for name in names}


TRAINED_STAGES: dict[str, Callable[[Run, Workspace], tuple[Stage, LoopConfig]]] = {
    "base": base_stage,
    "guided": guided_stage,
    "prior": prior_stage,
    "conditional": conditional_stage,
    "distilled": distilled_stage,
    "prompted": prompted_stage,
    "head": head_stage,
}
STAGES_OF_PAPER = ("base", "guided", "registers", "prior", "conditional")
STAGES = (*STAGES_OF_PAPER, "distilled", "prompted", "head")


# ---------------------------------------------------------------- networks


def _causal_base(start: CausalStart) -> LLaDA:
    """Return the base as it begins: the causal model, read without its causal mask (decision D39)."""
    return load_causal(start.directory, layers=start.layers, shifted=start.shifted, dtype=torch.float32)


def _demasker(run: Run, workspace: Workspace) -> Demasker:
    """Build a demasker around the base of the run, or around the public LLaDA if no base was trained."""
    generator = generator_for("interface", run.guided_loop.seed)
    demasker = Demasker.around(_base(run, workspace), run.demasker, generator)
    if run.lora is not None:
        if run.guided_loop.bf16:
            demasker.backbone.to(torch.bfloat16)  # it is frozen, so it needs no float32 copy
        add_adapters(demasker.backbone, run.lora, generator_for("adapters", run.guided_loop.seed))
    return demasker


def started_base(run: Run, workspace: Workspace) -> Path | None:
    """Return the folder of the network that stage base goes on from: of `base_start`, or the base of another run.

    An exported model has a base of its own, or only a demasker.
    """
    if (start := run.base_start) is not None:
        own = start / "base"
        return own if (own / CONFIG_FILE).exists() else start / "demasker"
    return workspace.finished("base", "demasker") if workspace.has_other_source else None


def _without_registers(folder: Path) -> LLaDA:
    """Load a base, or a guided demasker without its map of registers, START and END (decision D86)."""
    network = load_model(folder, dtype=torch.float32)
    base = network.backbone if isinstance(network, Demasker) else network
    assert isinstance(base, LLaDA)  # its shape was checked
    return base.train()


def _base(run: Run, workspace: Workspace) -> LLaDA:
    if run.pretrained.llada is not None and not (workspace.source / "base" / "model").exists():
        return load_llada(run.pretrained.llada, dtype=torch.float32)
    return loaded(workspace.finished("base", "demasker"), LLaDA, "cpu")


def _encoder(run: Run, base: LLaDA) -> RegisterEncoder:
    generator = generator_for("encoder", run.guided_loop.seed)
    if run.pretrained.qwen is None:
        encoder = RegisterEncoder(run.encoder).init_weights(generator)
        return init_from_base(encoder, base, generator) if run.encoder_begins_as_base else encoder
    return load_qwen3_embedding(
        run.pretrained.qwen,
        num_registers=run.encoder.num_registers,
        register_width=run.encoder.register_width,
        end_id=run.encoder.end_id,
        generator=generator,
        dtype=torch.float32,
    )


def denoiser_folder(start: Path) -> Path:
    """Return the folder of the denoiser to go on from: in an exported model it is named after its stage."""
    exported = start / "conditional"
    return exported if (exported / CONFIG_FILE).exists() else start / "denoiser"


def _same_shape(folder: Path, shape: object, kind: type[Network]) -> Network:
    """Load a network to train it further."""
    network = loaded(folder, kind, "cpu")
    check_shape(network.config, shape, folder)
    return network.train()


def check_shape(found: object, shape: object, folder: Path) -> None:
    """Refuse a network of another shape than the run's."""
    if found != shape:
        raise ValueError(f"{folder} has another shape than the run: use the preset that it was trained with")


def _teacher(name: str, run: Run, workspace: Workspace) -> Teacher:
    """Load a finished prior and, if it is of the same kind, the weak prior that guides it."""
    folder, device = workspace.finished(name, "denoiser"), workspace.device
    denoiser = loaded(folder, RegisterDenoiser, device).requires_grad_(False)
    if run.distil_objective.self_cond_scale != 1 and not denoiser.config.self_conditioned:
        raise ValueError(
            f"distil_objective.self_cond_scale: stage {name} trained no self-conditioned prior, use 1"
        )
    weak = None
    if run.weak_prior is not None:
        weak = loaded(run.weak_prior, RegisterDenoiser, device).requires_grad_(False)
        weak = weak if weak.config.condition_width == denoiser.config.condition_width else None
    return Teacher(denoiser, run.distil_objective, weak)


def _student(start: Path | None, name: str, copy: RegisterDenoiser) -> RegisterDenoiser:
    """Return the student: a copy of its teacher, or the student of another run or model to go on from."""
    return copy if start is None else _same_shape(start / name, copy.config, RegisterDenoiser)


def _critic(copy: RegisterDenoiser, name: str, seed: int) -> RegisterCritic:
    """Return a critic that begins as a copy of the teacher."""
    return RegisterCritic(deepcopy(copy)).init_classifier(generator_for("critic", name, seed))


def _denoiser(
    config: RegisterDenoiserConfig, registers: list[CachedRegisters], generator: torch.Generator
) -> RegisterDenoiser:
    """Build a new denoiser, with the statistics of the training registers if it models standardised ones.

    They are not part of a checkpoint: a stage that resumes computes them again, from the same registers.
    """
    denoiser = RegisterDenoiser(config).init_weights(generator)
    if denoiser.statistics is not None:
        denoiser.statistics.copy_(register_statistics(registers))
    return denoiser


def retokenizer(run: Run, workspace: Workspace) -> Retokenizer | None:
    """Return the map from the corpus's tokens to the encoder's; None if they share a tokenizer (decision D7)."""
    if run.pretrained.qwen is None:
        return None
    source = Tokenizer.load(workspace.corpus.directory / TOKENIZER_FILE)
    return Retokenizer(source, Tokenizer.load(run.pretrained.qwen / TOKENIZER_FILE))
