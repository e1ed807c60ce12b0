"""Stage prompted: train P(x | c), the model of App. H (decision D57).

Three networks learn from pairs of a prompt and its answer: the prior of the answer's registers given h_phi(x_t)
and h_kappa(c), a head for the length of the answer, and the demasker, which reads the prompt as visible text.
h_kappa is the encoder itself, or a copy that is trained too. h_phi is frozen.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import (
    DemaskerObjective,
    PriorObjective,
    PromptedBatch,
    PromptedObjective,
    prompted_demasking_loss,
    prompted_prior_loss,
)
from crocodil.processes.masking import Masked
from crocodil.seeding import Streams
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.adapting import trainable_parameters
from crocodil.training.loop import Phase, compile_each
from crocodil.training.pair_data import PairData
from crocodil.training.validation import prior_metrics
from crocodil.training.work import Work, prompted_flops


@dataclass
class PromptedStage:
    """App. H: the prior, the length head, the demasker, and h_kappa unless it is the encoder."""

    denoiser: RegisterDenoiser
    length_head: LengthHead
    demasker: Demasker | None  # None: it does not learn
    encoder: RegisterEncoder  # h_phi
    prompt_encoder: RegisterEncoder | None  # h_kappa; None: the encoder
    data: PairData
    mask_id: int
    objective: PromptedObjective = field(default_factory=PromptedObjective)
    prior_objective: PriorObjective = field(default_factory=PriorObjective)
    guided_objective: DemaskerObjective = field(default_factory=DemaskerObjective)
    retokenizer: Retokenizer | None = None
    name: str = "prompted"

    def modules(self) -> Mapping[str, nn.Module]:
        modules: dict[str, nn.Module] = {"denoiser": self.denoiser, "length_head": self.length_head}
        if self.prompt_encoder is not None:
            modules["prompt_encoder"] = self.prompt_encoder
        return modules if self.demasker is None else {**modules, "demasker": self.demasker}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {name: trainable_parameters(module) for name, module in self.modules().items()}

    def phases(self) -> Sequence[Phase]:
        return (Phase(math.inf, frozenset(self.modules())),)

    def repeated_blocks(self) -> Sequence[nn.Module]:
        encoders = [self.encoder] if self.prompt_encoder is None else [self.encoder, self.prompt_encoder]
        layers = [layer for encoder in encoders for layer in encoder.backbone.layers]
        demasking = [] if self.demasker is None else list(self.demasker.backbone.blocks)
        return [*self.denoiser.repeated_blocks, *demasking, *layers]

    def compile(self) -> None:
        compile_each(self.repeated_blocks())

    def length_share(self, step: int) -> float:
        return 1.0  # all canvases have one length

    def work(self) -> Work:
        flops = prompted_flops(
            self.denoiser.config,
            self.encoder.config,
            None if self.demasker is None else self.demasker.config,
            objective=self.objective,
            text_length=self.data.text_length,
            self_condition_rate=self.prior_objective.self_condition_rate,
            draft_rate=self.guided_objective.draft_rate,
            all_mask_rate=self.guided_objective.all_mask_rate,
        )
        return Work(self.data.text_length, flops)

    def loss(self, step: int, indices: range) -> dict[str, Tensor]:
        return self._losses(self.data.batch(step, indices), self.data.streams(step, indices))

    def _losses(self, batch: PromptedBatch, streams: Streams) -> dict[str, Tensor]:
        prompt = self.encode_prompt(batch.prompts)
        losses = {
            "prior_loss": prompted_prior_loss(
                self.denoiser,
                self.encode,
                prompt,
                batch.answers,
                objective=self.objective,
                prior_objective=self.prior_objective,
                mask_id=self.mask_id,
                streams=streams.at("prior"),
            ),
            "length_loss": self.objective.length_weight * self._length_loss(prompt, batch),
        }
        if self.demasker is not None:
            losses["demasking_loss"] = prompted_demasking_loss(
                self.encode,
                self.demasker,
                batch,
                objective=self.guided_objective,
                mask_id=self.mask_id,
                streams=streams.at("demasker"),
            )
        return losses

    def _length_loss(self, prompt: Tensor, batch: PromptedBatch) -> Tensor:
        return F.cross_entropy(self.length_head(prompt).float(), batch.is_answer.sum(dim=1) - 1)

    @torch.no_grad()
    def encode(self, tokens: Tensor, hidden: Tensor | None) -> Tensor:
        return encode_tokens(self.encoder, tokens, hidden, retokenizer=self.retokenizer)

    def encode_prompt(self, prompts: Masked) -> Tensor:
        """Return h_kappa(c), with a gradient if it is trained."""
        if self.prompt_encoder is None:
            return self.encode(*prompts)
        return encode_tokens(self.prompt_encoder, *prompts, retokenizer=self.retokenizer)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Validate the losses, and the prior with and without the prompt, both without a condition."""
        batch = self.data.validation_batch()
        streams = Streams.of("valid", samples=range(len(batch.answers)), device=self.data.device)
        metrics = {f"valid {name}": loss.item() for name, loss in self._losses(batch, streams).items()}
        registers = self.encode(batch.answers, None)[:, : self.denoiser.config.num_registers]
        prompt = self.encode_prompt(batch.prompts)
        metrics["valid nats of the length"] = self._length_loss(prompt, batch).item()
        metrics |= prior_metrics(self.denoiser, registers, self.prior_objective, prompt=prompt, suffix="")
        return metrics | prior_metrics(self.denoiser, registers, self.prior_objective, suffix=", without prompt")
