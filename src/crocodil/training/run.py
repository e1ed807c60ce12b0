"""A complete run: the shapes of all networks, the settings of all stages, and how one stage feeds the next.

    RUN/base  ->  RUN/guided  ->  RUN/registers  ->  RUN/prior and RUN/conditional

Each stage finds what it starts from in the run's own directory, or in another run's.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from crocodil.checkpoints.format import load_model, save_model
from crocodil.checkpoints.llada import load_llada
from crocodil.checkpoints.qwen3 import load_qwen3_embedding
from crocodil.corpus.shards import TOKENIZER_FILE, Corpus, Programs
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.objectives import DemaskerObjective, PriorObjective
from crocodil.runtime.atomic import locked, remove_unfinished, whole_file
from crocodil.runtime.config import Amount, Count, Lengths, config, read_as, read_json
from crocodil.runtime.distributed import Ranks, locked_by_all, whole, whole_directory_of_all
from crocodil.seeding import generator_for
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer
from crocodil.training.adapting import LoRA, add_adapters, begin_as_base, check_alike, check_installed, merged
from crocodil.training.cached_registers import CachedRegisters, cache_registers
from crocodil.training.checkpointing import TrainState
from crocodil.training.loop import (
    LoopConfig,
    Stage,
    averaged_weights,
    check_minutes,
    check_ranks,
    has_begun,
    train,
)
from crocodil.training.record import STAGE_FILE, checksum_of, flattened, keep_to_record, read_sealed, selected
from crocodil.training.stages import BaseStage, ConditionalPriorStage, Data, GuidedStage, PriorStage

RUN_FILE = "run.json"
Network = TypeVar("Network", bound=nn.Module)


@config
class Pretrained:
    """Folders of public checkpoints, each with its tokenizer.json, that a run adapts; without, it starts fresh."""

    llada: Path | None = None
    qwen: Path | None = None


# Fields of a run that mean the same thing.
_SAME = (
    ("demasker.register_width", "encoder.register_width"),
    ("prior.register_width", "encoder.register_width"),
    ("conditional.register_width", "encoder.register_width"),
    ("conditional.condition_width", "encoder.register_width"),
    ("demasker.num_registers", "encoder.num_registers"),
    ("conditional.condition_length", "encoder.num_registers"),
    ("conditional.num_registers", "prior.num_registers"),
)


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

    def __post_init__(self) -> None:
        for one, other in _SAME:
            values = attrgetter(one, other)(self)
            if values[0] != values[1]:
                raise ValueError(f"{one} is {values[0]} and {other} {values[1]}: they must be the same")
        if self.prior.condition_width is not None:
            raise ValueError("prior.condition_width is set: only conditional has a condition")
        most = self.encoder.num_registers
        if self.prior.num_registers > most:
            raise ValueError(f"prior.num_registers is {self.prior.num_registers}: the encoder has only {most}")
        if max(self.guided_objective.prefix_lengths, default=0) > most:
            raise ValueError(f"guided_objective.prefix_lengths go beyond the {most} registers of the encoder")

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
        found = []
        for programs in self.programs(run, split):
            directory = self.source / "registers" / f"{split}-{programs.length}"
            if not directory.exists():
                raise ValueError(f"{directory} is missing: run stage registers first")
            found.append(CachedRegisters(directory))
            found[-1].check((len(programs), run.num_prior_registers, run.prior.register_width))
        return found


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

# The fields of a run that a stage depends on: what it began with it goes on with.
_FIELDS = {
    "base": ("lengths", "demasker.backbone", "base_loop", "pretrained.llada"),
    "guided": (
        "lengths", "demasker", "encoder", "guided_loop", "guided_objective", "encoder_warmup_steps",
        "encoder_begins_as_base", "pretrained", "lora",
    ),
    "registers": ("encoder", "prior.num_registers", "prior_loop.bf16", "pretrained.qwen"),
    "prior": ("lengths", "prior", "prior_loop", "prior_objective"),
    "conditional": (
        "lengths", "conditional", "conditional_loop", "prior_objective", "condition_encoder_learns",
        "pretrained.qwen",
    ),
}  # fmt: skip
# And what it reads of earlier stages.
_SOURCES = {
    "base": (),
    "guided": ("base/model/demasker",),
    "registers": ("guided/model/encoder",),
    "prior": (f"registers/{STAGE_FILE}",),
    "conditional": ("guided/model/encoder", f"registers/{STAGE_FILE}"),
}


def run_stage(
    name: str, run: Run, place: Place, *, resume: bool = False, max_minutes: float | None = None
) -> bool:
    """Run one stage; True where it is finished, False where time or a signal stopped it first.

    What is finished is saved with averaged weights under RUN/STAGE/model.
    """
    check_minutes(max_minutes)
    check_stage(name, run, place)
    out = place.out / name
    with locked_by_all(out, place.ranks):
        place.ranks.once(partial(_begin, name, run, place, resume=resume))
        if name == "registers":
            _cache(run, place, out)
            return True
        stage, loop = TRAINED[name](run, place)
        state = train(stage, loop, out, ranks=place.ranks, resume=resume, max_minutes=max_minutes)
        if state.step < loop.num_steps:
            return False
        _save_models(run, stage, state, out / "model")
        return True


def check_stage(name: str, run: Run, place: Place) -> None:
    """What can be known to be wrong before a network is built or a file is written."""
    if name not in STAGES:
        raise ValueError(f"no stage {name!r}: the stages are {', '.join(STAGES)}")
    if place.source != place.out:
        read_record(place.source)
    _check_corpus(run, place, reads=name in ("guided", "registers", "conditional"))
    if name in TRAINED:
        check_ranks(getattr(run, f"{name}_loop"), place.ranks)
    if name == "guided":
        _check_guided(run, place)
    if name in ("registers", "conditional"):
        place.finished("guided", "encoder")
    if name in ("prior", "conditional"):
        place.registers(run, "train")
        place.registers(run, "valid")


def _check_corpus(run: Run, place: Place, *, reads: bool) -> None:
    """`reads`: whether the stage has an encoder that reads programs."""
    vocab_size = place.corpus.description["tokenizer"]["vocab_size"]
    if run.demasker.backbone.vocab_size != vocab_size:
        raise ValueError(
            f"the corpus has a vocabulary of {vocab_size}, the run one of {run.demasker.backbone.vocab_size}"
        )
    if reads and run.pretrained.qwen is None and run.encoder.vocab_size != vocab_size:
        raise ValueError(
            f"the encoder has a vocabulary of {run.encoder.vocab_size}, the corpus one of {vocab_size}: "
            "give the folder of the encoder's own tokenizer (--qwen)"
        )
    place.data(run, run.base_loop)  # which looks whether there are any programs
    texts = [shard.documents["length"].max(initial=0) for shard in place.corpus.shards("train")]
    longest = int(max(texts, default=0)) + 2  # beginning and end
    if max(run.lengths) > longest:
        raise ValueError(
            f"lengths: {max(run.lengths)} tokens, and the longest program of the corpus has {longest} "
            f"with its beginning and end: set lengths to at most {longest}"
        )


def _check_guided(run: Run, place: Place) -> None:
    if run.encoder_warmup_steps > run.guided_loop.num_steps:
        raise ValueError(
            f"encoder_warmup_steps is {run.encoder_warmup_steps} and guided_loop.num_steps "
            f"{run.guided_loop.num_steps}: the demasker would never learn, set encoder_warmup_steps to less"
        )
    if run.lora is not None:
        check_installed()
    if run.encoder_begins_as_base and run.pretrained.qwen is None:
        check_alike(run.encoder, run.demasker.backbone)
    if run.pretrained.llada is None:
        place.finished("base", "demasker")


def _begin(name: str, run: Run, place: Place, *, resume: bool) -> None:
    """Clear away what a killed process left, and write down what the stage begins with, or compare with it."""
    out = place.out / name
    for directory in (out, out / "checkpoints"):
        remove_unfinished(directory)
    if (out / "model").exists():
        raise ValueError(f"{out / 'model'} exists: this stage is finished, choose another directory")
    begun = has_begun(out) or any(out.glob("*/registers.npy"))
    if begun and not resume and name in TRAINED:
        raise ValueError(f"{out} holds a run already: go on with --resume, or choose another --out")
    if f"registers/{STAGE_FILE}" in _SOURCES[name]:
        _check_registers(place)
    keep_to_record(out, selected(flattened(run), _FIELDS[name]), _sources(name, place), begun=begun)
    if name in TRAINED:
        _record(run, place.out)


def _check_registers(place: Place) -> None:
    """Registers of another corpus or encoder would pass for those of these programs."""
    file = place.source / "registers" / STAGE_FILE
    if not file.exists():
        return  # an older version made them
    used = read_sealed(file).get("sources", {})
    for name, checksum in _sources("registers", place).items():
        if used.get(name) != checksum:
            raise ValueError(f"{file.parent} was made with another {name}: run stage registers with another --out")


def _sources(name: str, place: Place) -> dict[str, str]:
    """Checksums of the corpus and of what earlier stages left."""
    description = place.corpus.description
    files = json.dumps([description["splits"], description["sha256"]], sort_keys=True)
    found = {"corpus": sha256(files.encode()).hexdigest()}
    earlier = {path: place.source / path for path in _SOURCES[name]}
    return found | {path: checksum_of(file) for path, file in earlier.items() if file.exists()}


def _record(run: Run, out: Path) -> None:
    """What the run is, in words, beside its stages: the newest stage is_main for all."""
    with locked(out, wait_s=60):  # other stages may begin just now
        remove_unfinished(out)
        with whole_file(out / RUN_FILE) as unfinished:
            unfinished.write_text(json.dumps(asdict(run), default=str, indent=2) + "\n")


def read_record(directory: Path) -> dict[str, Any]:
    if not (directory / RUN_FILE).is_file():
        raise ValueError(f"{directory} holds no run: {RUN_FILE} is missing")
    return read_json(directory / RUN_FILE)


@config
class Recorded:
    """What a model has to know of the run that made it."""

    lengths: Lengths
    prior_objective: PriorObjective
    pretrained: Pretrained


def read_recorded(directory: Path) -> Recorded:
    record = read_record(directory)
    wanted = {name: record[name] for name in ("lengths", "prior_objective", "pretrained") if name in record}
    return read_as(Recorded, wanted, directory / RUN_FILE)


def _save_models(run: Run, stage: Stage, state: TrainState, target: Path) -> None:
    """Averaged, put together from all ranks, adapters merged; all networks appear at once or none."""
    with averaged_weights(state), whole_directory_of_all(target, state.ranks) as unfinished:
        for name, module in stage.modules().items():
            weights = _whole_weights(module, kept=state.ranks.is_main)
            if not state.ranks.is_main:
                continue
            if run.lora is not None and isinstance(module, Demasker):
                weights = merged(weights, run.lora)
            save_model(module, unfinished / name, weights=weights)  # type: ignore[arg-type]


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
