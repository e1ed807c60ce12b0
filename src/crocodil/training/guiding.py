"""Stage guided: train encoder and demasker together (Algorithm 1).

It can also train a prior (decision D71), learn from teacher texts (D77), or train the demasker alone (D81).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from crocodil.models.demasker import Demasker
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import (
    DemaskerObjective,
    GuidedStep,
    PriorObjective,
    RateObjective,
    guided_step,
    mask_condition,
    register_rate,
    taught_loss,
)
from crocodil.processes.masking import bare_canvas
from crocodil.seeding import Streams
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.adapting import trainable_parameters
from crocodil.training.data import Data
from crocodil.training.loop import Phase, compile_each
from crocodil.training.teacher_texts import TeacherData
from crocodil.training.validation import demasking_metrics, prior_metrics
from crocodil.training.work import Work, guided_flops, rate_flops


@dataclass(frozen=True)
class JointPrior:
    """A conditional prior that stage guided trains too, and what the encoder learns from it (decision D71)."""

    denoiser: RegisterDenoiser
    objective: RateObjective
    prior_objective: PriorObjective


@dataclass
class GuidedStage:
    """Algorithm 1, with the encoder-only warm-up of App. C (decision D21).

    If the encoder is fixed, a prior that was trained on its registers still fits (decisions D77 and D81).
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
    encoder_learns: bool = True
    name: str = "guided"

    def modules(self) -> Mapping[str, nn.Module]:
        prior = {} if self.prior is None else {"denoiser": self.prior.denoiser}
        return {"encoder": self.encoder, "demasker": self.demasker, **prior}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        encoder = {"encoder": list(self.encoder.parameters())} if self.encoder_learns else {}
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
        prior = () if self.prior is None else self.prior.denoiser.repeated_blocks
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
            encoder_learns=self.encoder_learns,
            teacher_rate=0.0 if self.teacher is None else self.teacher.share(length),
        )
        if self.prior is not None:
            flops += rate_flops(
                self.prior.denoiser.config,
                self.encoder.config,
                objective=self.prior.objective,
                length=length,
                self_condition_rate=self.prior.prior_objective.self_condition_rate,
            )
        return Work(length, flops)

    def encode(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(self.encoder_learns and torch.is_grad_enabled()):
            return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def loss(self, step: int, indices: range) -> Tensor | dict[str, Tensor]:
        if self.teacher is not None:
            return self._loss_with_teacher(self.teacher, step, indices)
        result = self._guided_step(step, indices)
        if self.prior is None:
            return result.loss
        tokens, streams = self.data.tokens(step, indices), self.data.streams(step, indices)
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
