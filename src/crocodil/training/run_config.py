"""The configuration of a run: the shapes of all networks and the settings of all stages, saved as run.json."""

import json
from dataclasses import asdict, field, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from crocodil.checkpoints.hub import recorded_name
from crocodil.models.demasker import DemaskerConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.objectives import (
    DemaskerObjective,
    DistilObjective,
    HeadObjective,
    PriorObjective,
    PromptedObjective,
)
from crocodil.runtime.atomic import locked, remove_unfinished, whole_file
from crocodil.runtime.config import (
    Amount,
    Count,
    Folder,
    Lengths,
    Positive,
    Share,
    config,
    read_as,
    read_json,
)
from crocodil.training.adapting import LoRA
from crocodil.training.loop import LoopConfig

RUN_FILE = "run.json"
Known = TypeVar("Known")


@config
class Pretrained:
    """Folders of public checkpoints, each with its tokenizer.json; without them training starts from scratch."""

    llada: Path | None = None
    qwen: Path | None = None


@config
class CausalStart:
    """The causal language model that the base begins as (decision D39)."""

    directory: Path  # config.json, tokenizer.json and safetensors
    layers: tuple[Amount, ...] | None = None  # layers of the causal model to keep; None: all
    shifted: bool = False  # the state at a position predicts the next token, as in the causal model
    muon_rate: Positive | None = None  # Muon's learning rate, fitted to the weights; None: that of SmolLM2


# Pairs of fields that must have the same value.
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
    lengths: Lengths  # of the programs, in tokens; several lengths take turns (decision D27)
    demasker: DemaskerConfig
    encoder: RegisterEncoderConfig
    prior: RegisterDenoiserConfig
    conditional: RegisterDenoiserConfig
    base_loop: LoopConfig
    guided_loop: LoopConfig
    prior_loop: LoopConfig
    conditional_loop: LoopConfig
    distilled_loop: LoopConfig
    prompted_loop: LoopConfig
    head_loop: LoopConfig
    base_draft_rate: Share = 0.0  # share of a batch where the base corrects its own proposals (decision D62)
    guided_objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    prior_objective: PriorObjective = field(default_factory=PriorObjective)
    distil_objective: DistilObjective = field(default_factory=DistilObjective)
    prompted_objective: PromptedObjective = field(default_factory=PromptedObjective)
    head_objective: HeadObjective = field(default_factory=HeadObjective)
    encoder_warmup_steps: Amount = 4000  # App. C
    register_noise_from: Amount = 0  # first step of stage guided with register noise; 0: Alg. 1 (decision D66)
    encoder_begins_as_base: bool = False  # initialise the encoder from the first blocks of the base (decision D28)
    condition_encoder_learns: bool = False  # Sec. 4.3.2, comment iii
    denoiser_begins_as_demasker: bool = False  # the conditional prior starts from the demasker (decision D79)
    live_draws: Amount = (
        0  # in stage conditional: encode each text in every step, for so many noisy banks (D73); 0: use the cache
    )
    encode_batch: Count = 256  # programs per batch in stage registers
    pretrained: Pretrained = field(default_factory=Pretrained)
    lora: LoRA | None = None  # in stage guided: train adapters on a frozen demasker
    causal: CausalStart | None = None  # in stage base: begin as a causal language model
    base_start: Folder | None = None  # in stage base: go on from `model` of a stage base or guided (decision D86)
    guided_start: Folder | None = None  # in stage guided: go on from the folder `model` of another stage guided
    encoder_learns: bool = True  # in stage guided; false: it stays that of guided_start (decision D81)
    conditional_start: Folder | None = None  # in stage conditional: go on from `model` of another one
    head_of: Folder | None = None  # in stage head: the model to train a head for; None: that of stage guided
    distilled_start: Folder | None = None  # in stage distilled: go on with the students of `model` of another one
    weak_prior: Folder | None = None  # in stage distilled: the folder of a less trained prior, for autoguidance
    pairs: Folder | None = None  # in stage prompted: a folder of prompts and answers (`crocodil corpus pairs`)

    def __post_init__(self) -> None:
        for first, second in _SAME:
            values = attrgetter(first, second)(self)
            if values[0] != values[1]:
                raise ValueError(f"{first} is {values[0]} and {second} is {values[1]}: they must be equal")
        if self.prior.condition_width is not None:
            raise ValueError("prior.condition_width is set: only conditional has a condition")
        if self.prior.prompt_width is not None or self.conditional.prompt_width is not None:
            raise ValueError("prompt_width is set: stage prompted adds a prompt to the conditional prior")
        if self.prior.is_distilled or self.conditional.is_distilled:
            raise ValueError("flow_map or fresh_noise is set: stage distilled sets it, in its student of a prior")
        if (self.weak_prior is None) != (self.distil_objective.autoguidance == 1):
            raise ValueError("autoguidance of the teacher needs both weak_prior and distil_objective.autoguidance")
        if self.causal is not None and self.pretrained.llada is not None:
            raise ValueError("causal and pretrained.llada are both set: a base begins as one of them")
        if self.live_draws and self.condition_encoder_learns:
            raise ValueError("live_draws and condition_encoder_learns are both set: choose one of them")
        if self.live_draws and self.conditional.standardised:
            raise ValueError("conditional.standardised needs cached registers: set live_draws=0")
        if self.prior_objective.smallest_noise and (self.prior.standardised or self.conditional.standardised):
            raise ValueError(
                "prior_objective.smallest_noise is in units of registers: set prior.standardised=false and "
                "conditional.standardised=false"
            )
        if self.distil_objective.by_matching:
            self._check_matching()
        if self.guided_start is not None and self.lora is not None:
            raise ValueError("guided_start and lora are both set: choose one of them")
        if not self.encoder_learns and self.guided_start is None:
            raise ValueError("encoder_learns=false needs guided_start: the model with the encoder that is kept")
        self.conditional_shape  # noqa: B018 (checks it)
        available = self.encoder.num_registers
        if self.prior.num_registers > available:
            wanted = self.prior.num_registers
            raise ValueError(f"prior.num_registers is {wanted}: the encoder has only {available}")
        if max(self.guided_objective.prefix_lengths, default=0) > available:
            raise ValueError(f"guided_objective.prefix_lengths: the encoder has only {available} registers")

    def _check_matching(self) -> None:
        if self.prior.standardised or self.conditional.standardised:
            raise ValueError(
                "distil_objective.stop_noise is in units of registers: set prior.standardised=false and "
                "conditional.standardised=false"
            )
        smallest = self.prior_objective.smallest_noise
        if self.distil_objective.stop_noise < smallest:
            raise ValueError(
                f"the prior is trained at noise {smallest} and above (prior_objective.smallest_noise): set "
                f"distil_objective.stop_noise to {smallest} or more"
            )

    @property
    def num_prior_registers(self) -> int:
        return self.prior.num_registers

    @property
    def conditional_shape(self) -> RegisterDenoiserConfig:
        """The shape of the conditional prior: `conditional`, or with the blocks of the demasker."""
        if not self.denoiser_begins_as_demasker:
            return self.conditional
        return blocks_of(self.demasker, self.conditional, text_length=min(self.lengths))


def blocks_of(
    demasker: DemaskerConfig, denoiser: RegisterDenoiserConfig, *, text_length: int
) -> RegisterDenoiserConfig:
    """Return the shape of a denoiser that has the blocks of the demasker (decision D79)."""
    size = {name: getattr(demasker.backbone, name) for name in ("width", "num_layers", "num_heads")}
    return replace(denoiser, body=demasker, text_length=text_length, **size)


# ---------------------------------------------------------------- run.json


def write_run_file(run: Run, out: Path) -> None:
    """Write run.json. Each stage that starts writes it again, so it shows the settings of the newest stage."""
    with locked(out, wait_s=60):  # other stages may be starting at the same time
        remove_unfinished(out)
        with whole_file(out / RUN_FILE) as unfinished:
            unfinished.write_text(json.dumps(asdict(run), default=_to_text, indent=2) + "\n")


def _to_text(value: object) -> str:
    return recorded_name(value) if isinstance(value, Path) else str(value)


def read_run_file(directory: Path) -> dict[str, Any]:
    """Read run.json as it is; files of older versions may have other fields."""
    if not (directory / RUN_FILE).is_file():
        raise ValueError(f"{directory} holds no run: {RUN_FILE} is missing")
    return read_json(directory / RUN_FILE)


def read_causal_start(directory: Path) -> CausalStart | None:
    """Return the causal model that the base of a run began as; None if it did not, or if there is no run yet."""
    values = read_run_file(directory).get("causal") if (directory / RUN_FILE).is_file() else None
    return None if values is None else _read_known(CausalStart, values, directory)


@config
class RunSummary:
    """The settings of a run that its model needs."""

    lengths: Lengths
    prior_objective: PriorObjective
    pretrained: Pretrained
    distil_objective: DistilObjective = field(default_factory=DistilObjective)  # older runs did not distil


def summary_of(values: dict[str, Any], directory: Path) -> RunSummary:
    """Return the summary of a run whose settings are `values`."""
    return _read_known(RunSummary, values, directory)


def _read_known(kind: type[Known], values: dict[str, Any], directory: Path) -> Known:
    """Read a config from the fields that it has; run.json files of older versions have others, too."""
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    known = {name: values[name] for name in names if name in values}
    return read_as(kind, known, directory / RUN_FILE)
