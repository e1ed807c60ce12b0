"""The trained stages of the paper: base, guided, prior and conditional prior. The training loop is in `loop.py`.

A stage holds its networks and its data, and computes the loss of a step. Indices are positions within the step's
batch: the programs and all random draws follow from the seed, the step and the index.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor, nn

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import (
    AlignBy,
    DemaskerObjective,
    GuidedStep,
    PriorObjective,
    RateObjective,
    aligned_base_loss,
    base_loss,
    causal_states,
    conditional_prior_loss,
    guided_step,
    mask_condition,
    prior_loss,
    register_rate,
    taught_loss,
)
from crocodil.processes.masking import bare_canvas
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.adapting import trainable_parameters
from crocodil.training.data import CachedRegisters, Data
from crocodil.training.loop import Phase, compile_each
from crocodil.training.teacher_texts import TeacherData
from crocodil.training.validation import demasking_metrics, mask_half, prior_metrics
from crocodil.training.work import Work, base_flops, conditional_flops, guided_flops, prior_flops, rate_flops


@dataclass(frozen=True)
class Alignment:
    """The frozen causal model that the base began as, and how the states of both are aligned."""

    model: LLaDA  # on the device of the stage; not part of the state, so it is neither saved nor sharded
    layers: Sequence[int]  # those that the base has
    weight: float
    by: AlignBy


@dataclass
class BaseStage:
    """Plain masked diffusion: the baseline of all comparisons, and the starting point of the guided demasker."""

    demasker: LLaDA
    data: Data
    alignment: Alignment | None = None
    draft_rate: float = 0.0  # decision D62
    name: str = "base"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"demasker": self.demasker}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {"demasker": [parameter for parameter in self.demasker.parameters() if parameter.requires_grad]}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset({"demasker"})),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return list(self.demasker.blocks)

    def compile(self) -> None:
        compile_each(self.repeated_blocks())

    def work(self) -> Work:
        return self.data.mean_work(self._work_at)

    def length_share(self, step: int) -> float:
        return self.data.length_share(step)

    def _work_at(self, length: int) -> Work:
        teacher_layers = 0 if self.alignment is None else self.alignment.layers[-1] + 1
        flops = base_flops(
            self.demasker.config, length=length, teacher_layers=teacher_layers, draft_rate=self.draft_rate
        )
        return Work(length, flops)

    def loss(self, step: int, indices: range) -> Tensor | dict[str, Tensor]:
        tokens, streams = self.data.tokens(step, indices), self.data.streams(step, indices)
        time, mask_id = self.data.times(step, indices), self.demasker.config.mask_id
        if self.alignment is None:
            return base_loss(
                self.demasker, tokens, mask_id=mask_id, streams=streams, time=time, draft_rate=self.draft_rate
            )
        return aligned_base_loss(
            self.demasker,
            causal_states(self.alignment.model, tokens, self.alignment.layers),
            tokens,
            weight=self.alignment.weight,
            by=self.alignment.by,
            streams=streams,
            time=time,
        )

    def evaluate(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for batch in self.data.validation_batches():
            metrics |= demasking_metrics(
                lambda noisy, rows, _: self.demasker(noisy, rows=rows),
                batch.tokens,
                mask_id=self.demasker.config.mask_id,
                vocab_size=self.demasker.config.vocab_size,
                suffix=batch.suffix,
            )
        return metrics


@dataclass(frozen=True)
class JointPrior:
    """A conditional prior that stage guided trains too, and what the encoder learns from it (decision D71)."""

    denoiser: RegisterDenoiser
    objective: RateObjective
    prior_objective: PriorObjective


@dataclass
class GuidedStage:
    """Algorithm 1, with the encoder-only warm-up of App. C (decision D21).

    With teacher texts, the encoder is fixed: their registers stay those of its prior (decision D77).
    """

    encoder: RegisterEncoder
    demasker: Demasker
    data: Data
    objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    warmup_steps: int = 4000  # App. C
    retokenizer: Retokenizer | None = None  # for an encoder with its own vocabulary (decision D7)
    num_prior_registers: int = 0  # validation also uses the first registers, which a prior will model
    noise_from: int = 0  # the first step with register noise (decision D66)
    prior: JointPrior | None = None
    teacher: TeacherData | None = None
    name: str = "guided"

    def modules(self) -> Mapping[str, nn.Module]:
        prior = {} if self.prior is None else {"denoiser": self.prior.denoiser}
        return {"encoder": self.encoder, "demasker": self.demasker, **prior}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        encoder = {} if self.teacher is not None else {"encoder": list(self.encoder.parameters())}
        return {
            **encoder,
            "interface": self.demasker.interface(),
            "demasker": trainable_parameters(self.demasker.backbone),
            **({} if self.prior is None else {"prior": list(self.prior.denoiser.parameters())}),
        }

    def phases(self) -> Sequence[Phase]:
        warmup = frozenset(self.groups()) - {"demasker"}
        return (Phase(self.warmup_steps, warmup), Phase(math.inf, warmup | {"demasker"}))

    def repeated_blocks(self) -> Sequence[nn.Module]:
        prior = () if self.prior is None else self.prior.denoiser.blocks
        return [*self.demasker.backbone.blocks, *self.encoder.backbone.layers, *prior]

    def compile(self) -> None:
        prior = () if self.prior is None else (self.prior.denoiser,)
        compile_each([*self.demasker.backbone.blocks, *self.encoder.backbone.layers, *prior])

    def work(self) -> Work:
        return self.data.mean_work(self._work_at)

    def length_share(self, step: int) -> float:
        return self.data.length_share(step)

    def _work_at(self, length: int) -> Work:
        adapted = len(self.groups()["demasker"]) < len(list(self.demasker.backbone.parameters()))
        flops = guided_flops(
            self.demasker.config,
            self.encoder.config,
            length=length,
            all_mask_rate=self.objective.all_mask_rate,
            adapted=adapted,
            draft_rate=self.objective.draft_rate,
            teacher_rate=None if self.teacher is None else self.teacher.share(length),
        )
        if self.prior is not None:
            flops += rate_flops(
                self.prior.denoiser.config, self.encoder.config, objective=self.prior.objective, length=length
            )
        return Work(length, flops)

    def encode(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(self.teacher is None and torch.is_grad_enabled()):
            return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def loss(self, step: int, indices: range) -> Tensor | dict[str, Tensor]:
        if self.teacher is not None:
            return self._loss_with_teacher(self.teacher, step, indices)
        tokens, streams = self.data.tokens(step, indices), self.data.streams(step, indices)
        result = self._guided_step(step, indices)
        if self.prior is None:
            return result.loss
        nats = register_rate(
            self.prior.denoiser,
            result.registers[:, : self.prior.denoiser.config.num_registers],
            self._condition(self.prior, tokens, streams),
            objective=self.prior.objective.at(step),
            prior_objective=self.prior.prior_objective,
            streams=streams.at("rate"),
        )
        # A prior models registers of whole texts; their share is known, so the mean does not depend on how a batch
        # is split. Both losses are in nats per token.
        share = 1 - self.objective.partial_rate
        return {"demasking": result.loss, "rate": (nats * result.of_whole_text).mean() / share / tokens.shape[1]}

    def _guided_step(self, step: int, indices: range) -> GuidedStep:
        return guided_step(
            self.encode,
            self.demasker,
            self.data.tokens(step, indices),
            objective=self.objective_at(step),
            mask_id=self.demasker.config.backbone.mask_id,
            streams=self.data.streams(step, indices),
            time=self.data.times(step, indices),
        )

    def _loss_with_teacher(self, teacher: TeacherData, step: int, indices: range) -> dict[str, Tensor]:
        """Learn from programs of the corpus and, at the end of the batch, from teacher texts (decision D77)."""
        length, batch_size = self.data.length(step), self.data.batch_size
        num_taught = teacher.count(length, len(indices))
        own, taught = indices[: len(indices) - num_taught], indices[len(indices) - num_taught :]
        share = num_taught / len(indices)
        losses = {"demasking": (1 - share) * self._guided_step(step, own).loss}
        if num_taught:
            losses["taught"] = share * taught_loss(
                self.demasker,
                *teacher.batch(length, step, taught, batch_size=batch_size),
                objective=self.objective_at(step),
                mask_id=self.demasker.config.backbone.mask_id,
                streams=self.data.streams(step, taught),
                time=self.data.times(step, taught),
            )
        return losses

    @torch.no_grad()
    def _bare_condition(self, tokens: Tensor) -> Tensor:
        return self.encode(*bare_canvas(tokens, mask_id=self.demasker.config.backbone.mask_id))

    @torch.no_grad()
    def _condition(self, prior: JointPrior, tokens: Tensor, streams: Streams) -> Tensor:
        """Encode what the prior sees: a bare canvas, or for a share of the texts one with visible tokens."""
        if not prior.objective.visible_rate:
            return self._bare_condition(tokens)
        mask_id, streams = self.demasker.config.backbone.mask_id, streams.at("condition")
        masked = mask_condition(tokens, prior.prior_objective, mask_id, streams)
        bare = bare_canvas(tokens, mask_id=mask_id)
        sees = (streams.at("sees").uniform() < prior.objective.visible_rate)[:, None]
        return self.encode(*(torch.where(sees, *pair) for pair in zip(masked, bare, strict=True)))

    def objective_at(self, step: int) -> DemaskerObjective:
        return self.objective if step >= self.noise_from else replace(self.objective, register_cosine=1.0)

    def evaluate(self) -> dict[str, float]:
        """Validate with all registers, with those that a prior will model, and with none."""
        backbone = self.demasker.config.backbone
        metrics: dict[str, float] = {}
        for batch in self.data.validation_batches():
            registers = self.encode(batch.tokens)
            counts = {"": registers.shape[1], " without registers": 0}
            if self.num_prior_registers:
                counts[f" with {self.num_prior_registers} registers"] = self.num_prior_registers
            for label, count in counts.items():
                metrics |= demasking_metrics(
                    partial(self._demask, registers[:, :count]),
                    batch.tokens,
                    mask_id=backbone.mask_id,
                    vocab_size=backbone.vocab_size,
                    suffix=label + batch.suffix,
                )
            if self.prior is not None:
                metrics |= prior_metrics(
                    self.prior.denoiser,
                    registers[:, : self.prior.denoiser.config.num_registers],
                    replace(self.prior.prior_objective, largest_offset=0.0),  # the rate has no offsets
                    condition=self._bare_condition(batch.tokens),
                    suffix=batch.suffix,
                )
        return metrics

    def _demask(self, registers: Tensor, noisy_tokens: Tensor, rows: Tensor, samples: slice) -> Tensor:
        return self.demasker(noisy_tokens, registers[samples], rows=rows)


@dataclass
class PriorStage:
    """Algorithm 5, on cached registers."""

    denoiser: RegisterDenoiser
    registers: Sequence[CachedRegisters]  # one per length
    valid_registers: Sequence[CachedRegisters]
    data: Data
    objective: PriorObjective = field(default_factory=PriorObjective)
    loss_function: Callable[..., Tensor] = prior_loss  # or the same, compiled
    name: str = "prior"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"denoiser": self.denoiser}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {"denoiser": list(self.denoiser.parameters())}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset({"denoiser"})),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return list(self.denoiser.blocks)

    def compile(self) -> None:
        """Compile the whole loss: so small a network runs faster on a GPU than the host calls its blocks."""
        self.loss_function = torch.compile(prior_loss, dynamic=False)

    def work(self) -> Work:
        return Work(self.denoiser.config.num_registers, prior_flops(self.denoiser.config))

    def length_share(self, step: int) -> float:
        return 1.0  # every text has the same number of registers

    def loss(self, step: int, indices: range) -> Tensor:
        program_ids = self.data.program_ids(step, indices)
        registers = self.registers[self.data.turn(step)].batch(program_ids, self.data.device)
        streams = self.data.streams(step, indices)
        return self.loss_function(self.denoiser, registers, objective=self.objective, streams=streams)

    def evaluate(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for batch in self.data.validation_batches():
            registers = self.valid_registers[batch.turn].batch(batch.program_ids, self.data.device)
            metrics |= prior_metrics(self.denoiser, registers, self.objective, suffix=batch.suffix)
        return metrics


@dataclass
class ConditionalPriorStage:
    """Algorithm 4: the condition is the encoding of the visible tokens.

    The encoder is the frozen one of stage guided, or a copy that is trained too (Sec. 4.3.2, comment iii).
    Registers are cached, or encoded in every step: then each text has `live_draws` noisy banks (decision D73).
    """

    denoiser: RegisterDenoiser
    encoder: RegisterEncoder
    registers: Sequence[CachedRegisters]  # one per length; none if they are encoded in every step
    valid_registers: Sequence[CachedRegisters]
    data: Data
    mask_id: int
    objective: PriorObjective = field(default_factory=PriorObjective)
    encoder_learns: bool = False
    retokenizer: Retokenizer | None = None
    live_draws: int = 0
    name: str = "conditional"

    def modules(self) -> Mapping[str, nn.Module]:
        trained_encoder = {"condition_encoder": self.encoder} if self.encoder_learns else {}
        return {"denoiser": self.denoiser, **trained_encoder}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {name: list(module.parameters()) for name, module in self.modules().items()}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset(self.modules())),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return [*self.denoiser.blocks, *self.encoder.backbone.layers]

    def compile(self) -> None:
        compile_each([self.denoiser, *self.encoder.backbone.layers])

    def work(self) -> Work:
        return self.data.mean_work(self._work_at)

    def length_share(self, step: int) -> float:
        return self.data.length_share(step)

    def _work_at(self, length: int) -> Work:
        flops = conditional_flops(
            self.denoiser.config,
            self.encoder.config,
            length=length,
            bare_rate=self.objective.bare_rate,
            encoder_learns=self.encoder_learns,
            live_draws=self.live_draws,
        )
        return Work(length, flops)

    def loss(self, step: int, indices: range) -> Tensor:
        num_bare = min(round(self.objective.bare_rate * len(indices)), len(indices) - 1)
        tokens, registers = self._batch(step, indices, num_bare)
        return conditional_prior_loss(
            self.denoiser,
            self.encode,
            tokens,
            registers,
            objective=self.objective,
            mask_id=self.mask_id,
            streams=self.data.streams(step, indices),
            num_draws=self.live_draws or 1,
        )

    def _batch(self, step: int, indices: range, num_bare: int) -> tuple[Int[Tensor, "V N"], RegisterBank]:
        """Return the tokens of all texts but the first `num_bare`, and the registers of all texts."""
        if self.live_draws:
            tokens = self.data.tokens(step, indices)
            return tokens[num_bare:], self._encode_targets(tokens)
        program_ids = self.data.program_ids(step, indices)
        registers = self.registers[self.data.turn(step)].batch(program_ids, self.data.device)
        return self.data.tokens(step, indices[num_bare:]), registers

    def _encode_targets(self, tokens: TokenIds) -> RegisterBank:
        return self.encode(tokens, None)[:, : self.denoiser.config.num_registers].float()

    def encode(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(self.encoder_learns and torch.is_grad_enabled()):
            return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def evaluate(self) -> dict[str, float]:
        """Validate given a bare canvas, and given one with half of the tokens visible."""
        metrics: dict[str, float] = {}
        for batch in self.data.validation_batches():
            registers = (
                self._encode_targets(batch.tokens)
                if self.live_draws
                else self.valid_registers[batch.turn].batch(batch.program_ids, self.data.device)
            )
            views = {
                "": bare_canvas(batch.tokens, mask_id=self.mask_id),
                ", half visible": mask_half(batch.tokens, mask_id=self.mask_id),
            }
            for label, (noisy, hidden) in views.items():
                condition, suffix = self.encode(noisy, hidden), label + batch.suffix
                metrics |= prior_metrics(
                    self.denoiser, registers, self.objective, condition=condition, suffix=suffix
                )
        return metrics
