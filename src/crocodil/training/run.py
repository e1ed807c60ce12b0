"""A complete run: the shapes of all networks, the settings of all stages, and how one stage feeds the next.

    RUN/base  ->  RUN/guided  ->  RUN/registers  ->  RUN/prior and RUN/conditional

Each stage finds what it starts from in the run's own directory, or in another run's.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from crocodil.atomic import whole_file
from crocodil.checkpoints import load_llada, load_model, load_qwen3_embedding, save_model
from crocodil.config import Amount, Count, Lengths, config
from crocodil.corpus.shards import TOKENIZER_FILE, Corpus, Programs
from crocodil.distributed import Ranks, whole
from crocodil.encoding import encode_tokens
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.objectives import DemaskerObjective, PriorObjective
from crocodil.seeding import generator_for
from crocodil.tokenization import Retokenizer, Tokenizer
from crocodil.training.cached_registers import CachedRegisters, cache_registers
from crocodil.training.checkpointing import TrainState
from crocodil.training.loop import LoopConfig, Stage, averaged_weights, train
from crocodil.training.lora import LoRA, add_adapters, merged
from crocodil.training.stages import BaseStage, ConditionalPriorStage, Data, GuidedStage, PriorStage
from crocodil.training.warm_start import begin_as_base

RUN_FILE = "run.json"
Network = TypeVar("Network", bound=nn.Module)


@config
class Pretrained:
    """Folders of public checkpoints, each with its tokenizer.json, that a run adapts; without, it starts fresh."""

    llada: Path | None = None
    qwen: Path | None = None


@config
class Run:
    # Of the programs in tokens; several take turns (decision D27), the first is the usual one.
    lengths: Lengths
    demasker: DemaskerConfig
    encoder: RegisterEncoderConfig
    prior: RegisterDenoiserConfig
    conditional: RegisterDenoiserConfig
    base_loop: LoopConfig
    guided_loop: LoopConfig
    prior_loop: LoopConfig
    conditional_loop: LoopConfig
    guided_objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    prior_objective: PriorObjective = field(default_factory=PriorObjective)
    encoder_warmup_steps: Amount = 4000  # App. C
    encoder_begins_as_base: bool = False  # a fresh encoder takes over the base's first blocks (decision D28)
    condition_encoder_learns: bool = False  # Sec. 4.3.2, comment iii
    encode_batch: Count = 256  # programs at a time when registers are cached
    pretrained: Pretrained = field(default_factory=Pretrained)
    lora: LoRA | None = None  # in stage guided: adapters on a frozen demasker

    @property
    def num_prior_registers(self) -> int:
        return self.prior.num_registers


@dataclass(frozen=True)
class Place:
    """Where a stage reads and writes."""

    corpus: Corpus
    out: Path  # of the run
    source: Path  # the run whose earlier stages are built upon; usually `out` itself
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def device(self) -> str:
        return self.ranks.device

    def put(self, network: Network) -> Network:
        """On its device; what will be sharded moves there a block at a time instead."""
        return network if self.ranks.count > 1 else network.to(self.device)

    def data(self, run: Run, loop: LoopConfig) -> Data:
        vocab_size = self.corpus.description["tokenizer"]["vocab_size"]
        if run.demasker.backbone.vocab_size != vocab_size:
            raise ValueError(
                f"the corpus has a vocabulary of {vocab_size}, the run one of {run.demasker.backbone.vocab_size}"
            )
        return Data(
            train=self.programs(run, "train"),
            valid=self.programs(run, "valid"),
            batch_size=loop.batch_size,
            seed=loop.seed,
            device=self.device,
        )

    def programs(self, run: Run, split: str) -> list[Programs]:
        """Of every turn."""
        views = {length: self.corpus.programs(split, length=length) for length in run.lengths}
        return [views[length] for length in run.lengths]

    def finished(self, stage: str, module: str) -> Path:
        """Where an earlier stage left a network."""
        directory = self.source / stage / "model" / module
        if not directory.exists():
            raise ValueError(f"{directory} is missing: train stage {stage} first")
        return directory

    def trained_encoder(self) -> RegisterEncoder:
        encoder = load_model(self.finished("guided", "encoder"), device=self.device)
        assert isinstance(encoder, RegisterEncoder)
        return encoder.eval()

    def registers(self, run: Run, split: str) -> list[CachedRegisters]:
        """Of every turn."""
        directories = [self.source / "registers" / f"{split}-{length}" for length in run.lengths]
        for directory in directories:
            if not directory.exists():
                raise ValueError(f"{directory} is missing: run stage registers first")
        return [CachedRegisters(directory) for directory in directories]


def base_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    if run.pretrained.llada is None:
        demasker = LLaDA(run.demasker.backbone).init_weights(generator_for("base", run.base_loop.seed))
    else:
        demasker = load_llada(run.pretrained.llada, dtype=torch.float32)
    return BaseStage(place.put(demasker), place.data(run, run.base_loop)), run.base_loop


def guided_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    loop = run.guided_loop
    if run.lora is not None and place.ranks.count > 1:
        raise ValueError("LoRA runs in one process; on several devices train the whole demasker, which is sharded")
    demasker = _demasker(run, place)
    stage = GuidedStage(
        place.put(_encoder(run, demasker.backbone)),
        place.put(demasker),
        place.data(run, loop),
        run.guided_objective,
        run.encoder_warmup_steps,
        _retokenizer(run, place),
        run.num_prior_registers,
    )
    return stage, loop


def _demasker(run: Run, place: Place) -> Demasker:
    """Around the base of this run, or around the public LLaDA where none was trained."""
    trained = place.source / "base" / "model"
    if run.pretrained.llada is not None and not trained.exists():
        base = load_llada(run.pretrained.llada, dtype=torch.float32)
    else:
        found = load_model(place.finished("base", "demasker"))
        assert isinstance(found, LLaDA)
        base = found
    demasker = Demasker.around(base, run.demasker, generator_for("interface", run.guided_loop.seed))
    if run.lora is not None:
        if run.guided_loop.bf16:
            demasker.backbone.to(torch.bfloat16)  # it rests, so no float32 copy is kept
        add_adapters(demasker.backbone, run.lora, generator_for("adapters", run.guided_loop.seed))
    return demasker


def _encoder(run: Run, base: LLaDA) -> RegisterEncoder:
    generator = generator_for("encoder", run.guided_loop.seed)
    if run.pretrained.qwen is None:
        fresh = RegisterEncoder(run.encoder).init_weights(generator)
        return begin_as_base(fresh, base, generator) if run.encoder_begins_as_base else fresh
    return load_qwen3_embedding(
        run.pretrained.qwen,
        num_registers=run.encoder.num_registers,
        register_width=run.encoder.register_width,
        end_id=run.encoder.end_id,
        generator=generator,
        dtype=torch.float32,
    )


def _retokenizer(run: Run, place: Place) -> Retokenizer | None:
    if run.pretrained.qwen is None:
        return None
    source = Tokenizer.load(place.corpus.directory / TOKENIZER_FILE)
    return Retokenizer(source, Tokenizer.load(run.pretrained.qwen / TOKENIZER_FILE))


def prior_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    loop = run.prior_loop
    denoiser = RegisterDenoiser(run.prior).init_weights(generator_for("prior", loop.seed))
    stage = PriorStage(
        place.put(denoiser),
        place.registers(run, "train"),
        place.registers(run, "valid"),
        place.data(run, loop),
        run.prior_objective,
    )
    return stage, loop


def conditional_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    loop = run.conditional_loop
    denoiser = RegisterDenoiser(run.conditional).init_weights(generator_for("conditional", loop.seed))
    encoder = place.trained_encoder()
    stage = ConditionalPriorStage(
        place.put(denoiser),
        encoder.requires_grad_(run.condition_encoder_learns),
        place.registers(run, "train"),
        place.registers(run, "valid"),
        place.data(run, loop),
        run.demasker.backbone.mask_id,
        run.prior_objective,
        run.condition_encoder_learns,
        _retokenizer(run, place),
    )
    return stage, loop


TRAINED: dict[str, Callable[[Run, Place], tuple[Stage, LoopConfig]]] = {
    "base": base_stage,
    "guided": guided_stage,
    "prior": prior_stage,
    "conditional": conditional_stage,
}
STAGES = ("base", "guided", "registers", "prior", "conditional")


def run_stage(
    name: str, run: Run, place: Place, *, resume: bool = False, max_minutes: float | None = None
) -> bool:
    """Run one stage; True where it is finished, False where time or a signal stopped it first.

    What is finished is saved with averaged weights under RUN/STAGE/model.
    """
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}: the stages are {', '.join(STAGES)}")
    out = place.out / name
    if name == "registers":
        _cache(run, place, out)
        return True
    if place.ranks.any((out / "model").exists()):
        raise ValueError(f"{out / 'model'} exists: this stage is finished, choose another directory")
    stage, loop = TRAINED[name](run, place)
    _record(run, place)
    state = train(stage, loop, out, ranks=place.ranks, resume=resume, max_minutes=max_minutes)
    if state.step < loop.num_steps:
        return False
    _save_models(run, stage, state, out / "model")
    return True


def _record(run: Run, place: Place) -> None:
    """What the run is, in words, beside its stages: the newest stage speaks for all."""
    if place.ranks.speaks:
        place.out.mkdir(parents=True, exist_ok=True)
        with whole_file(place.out / RUN_FILE) as unfinished:
            unfinished.write_text(json.dumps(asdict(run), default=str, indent=2) + "\n")


def read_record(directory: Path) -> dict[str, Any]:
    if not (directory / RUN_FILE).is_file():
        raise ValueError(f"{directory} holds no run: {RUN_FILE} is missing")
    return json.loads((directory / RUN_FILE).read_text())


def _save_models(run: Run, stage: Stage, state: TrainState, out: Path) -> None:
    """Averaged, put together from all ranks, adapters merged."""
    with averaged_weights(state):
        for name, module in stage.modules().items():
            weights = _whole_weights(module, kept=state.ranks.speaks)
            if not state.ranks.speaks:
                continue
            if run.lora is not None and isinstance(module, Demasker):
                weights = merged(weights, run.lora)
            save_model(module, out / name, weights=weights)  # type: ignore[arg-type]
    state.ranks.wait()


def _whole_weights(module: nn.Module, *, kept: bool) -> dict[str, Tensor]:
    """One tensor at a time, so that no device ever holds them all."""
    weights = {}
    for name, tensor in module.state_dict().items():
        gathered = whole(tensor)
        if kept:
            weights[name] = gathered.cpu()
    return weights


def _cache(run: Run, place: Place, out: Path) -> None:
    encoder, retokenizer = place.trained_encoder(), _retokenizer(run, place)
    if run.prior_loop.compile_blocks:
        for layer in encoder.backbone.layers:
            layer.compile(dynamic=False)
    for split in ("train", "valid"):
        for programs in dict.fromkeys(place.programs(run, split)):
            cache_registers(
                lambda tokens: encode_tokens(encoder, tokens, retokenizer=retokenizer),
                programs,
                out / f"{split}-{programs.length}",
                shape=(run.num_prior_registers, run.prior.register_width),
                batch_size=run.encode_batch,
                ranks=place.ranks,
                bf16=run.prior_loop.bf16,
            )
