"""A complete run: the shapes of all networks, the settings of all stages, and how one stage feeds the next.

    RUN/base  ->  RUN/guided  ->  RUN/registers  ->  RUN/prior and RUN/conditional

Each stage finds what it starts from in the run's own directory, or in another run's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from crocodil.checkpoints import load_model, save_model
from crocodil.corpus.shards import Corpus
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.objectives import DemaskerObjective, PriorObjective
from crocodil.seeding import generator_for
from crocodil.training.loop import LoopConfig, Stage, averaged_weights, train
from crocodil.training.stages import (
    BaseStage,
    CachedRegisters,
    ConditionalPriorStage,
    Data,
    GuidedStage,
    PriorStage,
    cache_registers,
)


@dataclass(frozen=True, kw_only=True)
class Run:
    length: int  # of the programs, in tokens
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
    encoder_warmup_steps: int = 4000  # App. C
    condition_encoder_learns: bool = False  # Sec. 4.3.2, comment iii
    encode_batch: int = 256  # programs at a time when registers are cached

    @property
    def num_prior_registers(self) -> int:
        return self.prior.num_registers


@dataclass(frozen=True)
class Place:
    """Where a stage reads and writes."""

    corpus: Corpus
    out: Path  # of the run
    source: Path  # the run whose earlier stages are built upon; usually `out` itself
    device: str = "cpu"

    def data(self, run: Run, loop: LoopConfig) -> Data:
        vocab_size = self.corpus.description["tokenizer"]["vocab_size"]
        if run.demasker.backbone.vocab_size != vocab_size:
            raise ValueError(
                f"the corpus has a vocabulary of {vocab_size}, the run one of {run.demasker.backbone.vocab_size}"
            )
        train_split, valid_split = (self.corpus.programs(name, length=run.length) for name in ("train", "valid"))
        return Data(
            train=train_split, valid=valid_split, batch_size=loop.batch_size, seed=loop.seed, device=self.device
        )

    def trained(self, stage: str, module: str) -> nn.Module:
        """A network that an earlier stage finished."""
        directory = self.source / stage / "model" / module
        if not directory.exists():
            raise ValueError(f"{directory} is missing: train stage {stage} first")
        return load_model(directory, device=self.device)

    def registers(self, split: str) -> CachedRegisters:
        directory = self.source / "registers" / split
        if not directory.exists():
            raise ValueError(f"{directory} is missing: run stage registers first")
        return CachedRegisters(directory)


def base_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    demasker = LLaDA(run.demasker.backbone).init_weights(generator_for("base", run.base_loop.seed))
    return BaseStage(demasker.to(place.device), place.data(run, run.base_loop)), run.base_loop


def guided_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    loop = run.guided_loop
    base = place.trained("base", "demasker")
    assert isinstance(base, LLaDA)
    demasker = Demasker.around(base.cpu(), run.demasker, generator_for("interface", loop.seed))
    encoder = RegisterEncoder(run.encoder).init_weights(generator_for("encoder", loop.seed))
    stage = GuidedStage(
        encoder.to(place.device),
        demasker.to(place.device),
        place.data(run, loop),
        run.guided_objective,
        run.encoder_warmup_steps,
    )
    return stage, loop


def prior_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    loop = run.prior_loop
    denoiser = RegisterDenoiser(run.prior).init_weights(generator_for("prior", loop.seed)).to(place.device)
    stage = PriorStage(
        denoiser,
        place.registers("train"),
        place.registers("valid"),
        place.data(run, loop),
        run.prior_objective,
    )
    return stage, loop


def conditional_stage(run: Run, place: Place) -> tuple[Stage, LoopConfig]:
    loop = run.conditional_loop
    denoiser = RegisterDenoiser(run.conditional).init_weights(generator_for("conditional", loop.seed))
    encoder = place.trained("guided", "encoder")
    assert isinstance(encoder, RegisterEncoder)
    stage = ConditionalPriorStage(
        denoiser.to(place.device),
        encoder.requires_grad_(run.condition_encoder_learns),
        place.registers("train"),
        place.registers("valid"),
        place.data(run, loop),
        run.demasker.backbone.mask_id,
        run.prior_objective,
        run.condition_encoder_learns,
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
    if (out / "model").exists():
        raise ValueError(f"{out / 'model'} exists: this stage is finished, choose another directory")
    stage, loop = TRAINED[name](run, place)
    state = train(stage, loop, out, resume=resume, max_minutes=max_minutes)
    if state.step < loop.num_steps:
        return False
    with averaged_weights(state):
        for module_name, module in stage.modules().items():
            save_model(module, out / "model" / module_name)  # type: ignore[arg-type]
    return True


def _cache(run: Run, place: Place, out: Path) -> None:
    encoder = place.trained("guided", "encoder")
    assert isinstance(encoder, RegisterEncoder)
    encoder.eval()
    for split in ("train", "valid"):
        cache_registers(
            encoder,
            place.corpus.programs(split, length=run.length),
            out / split,
            num_registers=run.num_prior_registers,
            batch_size=run.encode_batch,
            device=place.device,
        )


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
