"""The stages of the paper: base, guided, cached registers, prior, conditional prior. They know no loop.

A stage holds its networks and its data, and turns a step and some places of its batch into a loss. Which programs
these are, and every random draw, follow from the seed, the step and the place alone.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from crocodil.corpus.order import Order
from crocodil.corpus.shards import Programs
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import (
    DemaskerObjective,
    PriorObjective,
    base_loss,
    conditional_prior_loss,
    guided_loss,
    prior_loss,
)
from crocodil.processes.gaussian import Denoise
from crocodil.processes.masking import bare_canvas, stratified_times
from crocodil.sampling.configs import Drawing
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.adapting import learned_parameters
from crocodil.training.cached_registers import CachedRegisters, to_device
from crocodil.training.loop import Phase
from crocodil.training.validation import (
    accuracy_by_mask_prob,
    denoising_by_time,
    gap_of_drawn,
    half_hidden,
)
from crocodil.training.work import Work, base_flops, conditional_flops, guided_flops, prior_flops


@dataclass(frozen=True, kw_only=True)
class Data:
    """Programs of train and valid at every length, and the key under which they are drawn.

    Lengths take turns, a step each, so that every batch has one shape; one that is there twice has two turns.
    """

    train: Sequence[Programs]
    valid: Sequence[Programs]
    batch_size: int
    seed: int = 0
    num_valid: int = 128
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, views in (("train", self.train), ("valid", self.valid)):
            for programs in views:
                if not len(programs):
                    raise ValueError(f"the {name} split holds no program of at most {programs.length} tokens")

    @property
    def lengths(self) -> list[int]:
        return [programs.length for programs in self.train]

    @cached_property
    def orders(self) -> list[Order]:
        return [Order(len(programs), f"train {self.seed} turn {turn}") for turn, programs in enumerate(self.train)]

    def turn(self, step: int) -> int:
        """Whose turn it is: the place of a length among all."""
        return step % len(self.train)

    def numbers(self, step: int, places: range) -> np.ndarray:
        """Which programs of their length stand at these places of a step's batch."""
        first = step // len(self.train) * self.batch_size
        return self.orders[self.turn(step)].at(np.arange(first + places.start, first + places.stop))

    def tokens(self, step: int, places: range) -> Tensor:
        programs = self.train[self.turn(step)]
        return to_device(programs.batch(self.numbers(step, places)), self.device)

    def streams(self, step: int, places: range) -> Streams:
        return Streams.of("train", self.seed, step, samples=places, device=self.device)

    def times(self, step: int, places: range) -> Tensor:
        """Stratified over the whole batch."""
        shift = Streams.of("times", self.seed, samples=[step]).uniform().item()
        index = torch.arange(places.start, places.stop, device=self.device)
        return stratified_times(index, batch_size=self.batch_size, shift=shift)

    def mean_work(self, work: Callable[[int], Work]) -> Work:
        """Of a sample, over all lengths."""
        works = [work(length) for length in self.lengths]
        return Work(fmean(one.tokens for one in works), fmean(one.flops for one in works))

    def held_out(self) -> Iterator["HeldOut"]:
        """The programs that validation looks at, always the same, for every length."""
        turns = {programs.length: turn for turn, programs in enumerate(self.valid)}
        for turn in turns.values():
            programs = self.valid[turn]
            count = min(self.num_valid, len(programs))
            numbers = Order(len(programs), "valid").at(np.arange(count))
            tokens = torch.from_numpy(programs.batch(numbers)).to(self.device)
            suffix = f", length {programs.length}" if len(turns) > 1 else ""
            yield HeldOut(turn, numbers, tokens, suffix)


class HeldOut(NamedTuple):
    """Validation programs of one length."""

    turn: int
    numbers: np.ndarray
    tokens: Tensor
    suffix: str  # of the names of what is measured on them


@dataclass
class BaseStage:
    """Plain masked diffusion: the baseline of every comparison, and what the guided demasker starts from."""

    demasker: LLaDA
    data: Data
    name: str = "base"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"demasker": self.demasker}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {"demasker": list(self.demasker.parameters())}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset({"demasker"})),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return list(self.demasker.blocks)

    def work(self) -> Work:
        return self.data.mean_work(self._work)

    def _work(self, length: int) -> Work:
        return Work(length, base_flops(self.demasker.config, length=length))

    def loss(self, step: int, places: range) -> Tensor:
        return base_loss(
            self.demasker,
            self.data.tokens(step, places),
            mask_id=self.demasker.config.mask_id,
            streams=self.data.streams(step, places),
            time=self.data.times(step, places),
        )

    def evaluate(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for held_out in self.data.held_out():
            found |= accuracy_by_mask_prob(
                lambda noisy, rows: self.demasker(noisy, rows=rows),
                held_out.tokens,
                mask_id=self.demasker.config.mask_id,
                suffix=held_out.suffix,
            )
        return found


@dataclass
class GuidedStage:
    """Algorithm 1, with the encoder-only warm-up of App. C (decision D21)."""

    encoder: RegisterEncoder
    demasker: Demasker
    data: Data
    objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    warmup_steps: int = 4000  # App. C
    retokenizer: Retokenizer | None = None  # for an encoder with a vocabulary of its own (decision D7)
    num_modelled: int = 0  # registers that a prior will model: what validation looks at besides all and none
    name: str = "guided"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"encoder": self.encoder, "demasker": self.demasker}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {
            "encoder": list(self.encoder.parameters()),
            "interface": self.demasker.interface(),
            "demasker": learned_parameters(self.demasker.backbone),
        }

    def phases(self) -> Sequence[Phase]:
        warm_up = frozenset({"encoder", "interface"})
        return (Phase(self.warmup_steps, warm_up), Phase(math.inf, warm_up | {"demasker"}))

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return [*self.demasker.backbone.blocks, *self.encoder.backbone.layers]

    def work(self) -> Work:
        return self.data.mean_work(self._work)

    def _work(self, length: int) -> Work:
        adapted = len(self.groups()["demasker"]) < len(list(self.demasker.backbone.parameters()))
        flops = guided_flops(
            self.demasker.config,
            self.encoder.config,
            length=length,
            all_mask_rate=self.objective.all_mask_rate,
            adapted=adapted,
        )
        return Work(length, flops)

    def encode(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def loss(self, step: int, places: range) -> Tensor:
        return guided_loss(
            self.encode,
            self.demasker,
            self.data.tokens(step, places),
            objective=self.objective,
            mask_id=self.demasker.config.backbone.mask_id,
            streams=self.data.streams(step, places),
            time=self.data.times(step, places),
        )

    def evaluate(self) -> dict[str, float]:
        """With all registers, with those that a prior will model, and with none."""
        mask_id = self.demasker.config.backbone.mask_id
        found: dict[str, float] = {}
        for held_out in self.data.held_out():
            registers = self.encode(held_out.tokens)
            counts = {"": registers.shape[1], " without registers": 0}
            if self.num_modelled:
                counts[f" with {self.num_modelled} registers"] = self.num_modelled
            for kind, count in counts.items():
                demask, suffix = partial(self._demask, registers[:, :count]), kind + held_out.suffix
                found |= accuracy_by_mask_prob(demask, held_out.tokens, mask_id=mask_id, suffix=suffix)
        return found

    def _demask(self, registers: Tensor, noisy_tokens: Tensor, rows: Tensor) -> Tensor:
        return self.demasker(noisy_tokens, registers, rows=rows)


@dataclass
class PriorStage:
    """Algorithm 5, on registers that were encoded once."""

    denoiser: RegisterDenoiser
    registers: Sequence[CachedRegisters]  # of every length
    valid_registers: Sequence[CachedRegisters]
    data: Data
    objective: PriorObjective = field(default_factory=PriorObjective)
    name: str = "prior"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"denoiser": self.denoiser}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {"denoiser": list(self.denoiser.parameters())}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset({"denoiser"})),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return list(self.denoiser.blocks)

    def work(self) -> Work:
        return Work(self.denoiser.config.num_registers, prior_flops(self.denoiser.config))

    def loss(self, step: int, places: range) -> Tensor:
        return self.loss_of(*self.inputs(step, places))

    def inputs(self, step: int, places: range) -> tuple[Tensor, Tensor]:
        """Registers, and the keys of their random streams."""
        numbers = self.data.numbers(step, places)
        registers = self.registers[self.data.turn(step)].batch(numbers, self.data.device)
        return registers, self.data.streams(step, places).keys

    def loss_of(self, registers: Tensor, keys: Tensor) -> Tensor:
        return prior_loss(self.denoiser, registers, objective=self.objective, streams=Streams(keys))

    def evaluate(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for held_out in self.data.held_out():
            registers = self.valid_registers[held_out.turn].batch(held_out.numbers, self.data.device)
            found |= judged_prior(self.denoiser, registers, self.denoiser.config, self.objective, held_out.suffix)
        return found


@dataclass
class ConditionalPriorStage:
    """Algorithm 4: the condition is the encoding of what is visible.

    The encoder is the one of stage 2, held fixed, or one of its own that learns along (Sec. 4.3.2, comment iii).
    """

    denoiser: RegisterDenoiser
    encoder: RegisterEncoder
    registers: Sequence[CachedRegisters]  # of every length
    valid_registers: Sequence[CachedRegisters]
    data: Data
    mask_id: int
    objective: PriorObjective = field(default_factory=PriorObjective)
    encoder_learns: bool = False
    retokenizer: Retokenizer | None = None
    name: str = "conditional"

    def modules(self) -> Mapping[str, nn.Module]:
        learning = {"condition_encoder": self.encoder} if self.encoder_learns else {}
        return {"denoiser": self.denoiser, **learning}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {name: list(module.parameters()) for name, module in self.modules().items()}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset(self.modules())),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return [*self.denoiser.blocks, *self.encoder.backbone.layers]

    def work(self) -> Work:
        return self.data.mean_work(self._work)

    def _work(self, length: int) -> Work:
        flops = conditional_flops(
            self.denoiser.config,
            self.encoder.config,
            length=length,
            bare_rate=self.objective.bare_rate,
            encoder_learns=self.encoder_learns,
        )
        return Work(length, flops)

    def loss(self, step: int, places: range) -> Tensor:
        return self.loss_of(*self.inputs(step, places))

    def inputs(self, step: int, places: range) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens of those that see some, registers, and the keys of their random streams."""
        num_bare = min(round(self.objective.bare_rate * len(places)), len(places) - 1)
        tokens = self.data.tokens(step, places[num_bare:])
        numbers = self.data.numbers(step, places)
        registers = self.registers[self.data.turn(step)].batch(numbers, self.data.device)
        return tokens, registers, self.data.streams(step, places).keys

    def loss_of(self, tokens: Tensor, registers: Tensor, keys: Tensor) -> Tensor:
        return conditional_prior_loss(
            self.denoiser,
            self.encode,
            tokens,
            registers,
            objective=self.objective,
            mask_id=self.mask_id,
            streams=Streams(keys),
        )

    def encode(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(self.encoder_learns and torch.is_grad_enabled()):
            return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def evaluate(self) -> dict[str, float]:
        """Of a bare canvas, and of one with half of its tokens visible."""
        found: dict[str, float] = {}
        for held_out in self.data.held_out():
            registers = self.valid_registers[held_out.turn].batch(held_out.numbers, self.data.device)
            views = {
                "": bare_canvas(held_out.tokens, mask_id=self.mask_id),
                ", half visible": half_hidden(held_out.tokens, mask_id=self.mask_id),
            }
            for kind, (noisy, hidden) in views.items():
                denoise = partial(self.denoiser, condition=self.encode(noisy, hidden))
                suffix = kind + held_out.suffix
                found |= judged_prior(denoise, registers, self.denoiser.config, self.objective, suffix)
        return found


def judged_prior(
    denoise: Denoise,
    registers: RegisterBank,
    config: RegisterDenoiserConfig,
    objective: PriorObjective,
    suffix: str,
) -> dict[str, float]:
    """How well registers are denoised, and how far drawn ones are from encoded ones."""
    drawing = Drawing(largest_offset=objective.largest_offset, time_shift=objective.time_shift)
    return denoising_by_time(denoise, registers, suffix=suffix) | gap_of_drawn(
        denoise, registers, drawing, self_conditioned=config.self_conditioned, suffix=suffix
    )
