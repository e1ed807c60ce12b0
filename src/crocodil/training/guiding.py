"""Stage guided: train encoder and demasker together (Algorithm 1).

It can also train the demasker alone (decision D81).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from crocodil.models.demasker import Demasker
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import (
    DemaskerObjective,
    guided_step,
)
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.adapting import trainable_parameters
from crocodil.training.data import Data
from crocodil.training.loop import Phase, compile_each
from crocodil.training.validation import demasking_metrics
from crocodil.training.work import Work, guided_flops


@dataclass
class GuidedStage:
    """Algorithm 1, with the encoder-only warm-up of App. C (decision D21).

    If the encoder is fixed, a prior that was trained on its registers still fits (decision D81).
    """

    encoder: RegisterEncoder
    demasker: Demasker
    data: Data
    objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    warmup_steps: int = 4000  # App. C
    retokenizer: Retokenizer | None = None  # for an encoder with its own vocabulary (decision D7)
    num_prior_registers: int = 0  # validation also uses the first registers, which a prior will model
    noise_from: int = 0  # the first step with register noise (decision D66)
    encoder_learns: bool = True
    name: str = "guided"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"encoder": self.encoder, "demasker": self.demasker}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        encoder = {"encoder": list(self.encoder.parameters())} if self.encoder_learns else {}
        return {
            **encoder,
            "interface": self.demasker.interface(),
            "demasker": trainable_parameters(self.demasker.backbone),
        }

    def phases(self) -> Sequence[Phase]:
        warmup = frozenset(self.groups()) - {"demasker"}
        return (Phase(self.warmup_steps, warmup), Phase(math.inf, warmup | {"demasker"}))

    def repeated_blocks(self) -> Sequence[nn.Module]:
        return [*self.demasker.backbone.blocks, *self.encoder.backbone.layers]

    def compile(self) -> None:
        compile_each(self.repeated_blocks())

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
        )
        return Work(length, flops)

    def encode(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        with torch.set_grad_enabled(self.encoder_learns and torch.is_grad_enabled()):
            return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def loss(self, step: int, indices: range) -> Tensor:
        return guided_step(
            self.encode,
            self.demasker,
            self.data.tokens(step, indices),
            objective=self.objective_at(step),
            mask_id=self.demasker.config.backbone.mask_id,
            streams=self.data.streams(step, indices),
            time=self.data.times(step, indices),
        )

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
        return metrics

    def _demask(self, registers: Tensor, noisy_tokens: Tensor, rows: Tensor, samples: slice) -> Tensor:
        return self.demasker(noisy_tokens, registers[samples], rows=rows)
