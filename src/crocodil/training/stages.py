"""The stages base, prior and conditional of the paper. Stage guided is in `guiding.py`, the loop in `loop.py`.

A stage holds its networks and its data, and computes the loss of a step. Indices are positions within the step's
batch: the programs and all random draws follow from the seed, the step and the index.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor, nn

from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import (
    PriorObjective,
    base_loss,
    conditional_prior_loss,
    prior_loss,
)
from crocodil.processes.masking import bare_canvas
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_tokens
from crocodil.text.retokenizer import Retokenizer
from crocodil.training.data import CachedRegisters, Data
from crocodil.training.loop import Phase, compile_each
from crocodil.training.validation import demasking_metrics, mask_half, prior_metrics
from crocodil.training.work import Work, base_flops, conditional_flops, prior_flops


@dataclass
class BaseStage:
    """Plain masked diffusion: the baseline of all comparisons, and the starting point of the guided demasker."""

    demasker: LLaDA
    data: Data
    draft_rate: float = 0.0  # decision D62
    name: str = "base"

    def modules(self) -> Mapping[str, nn.Module]:
        return {"demasker": self.demasker}

    def groups(self) -> Mapping[str, Sequence[nn.Parameter]]:
        return {"demasker": list(self.demasker.parameters())}

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
        flops = base_flops(self.demasker.config, length=length, draft_rate=self.draft_rate)
        return Work(length, flops)

    def loss(self, step: int, indices: range) -> Tensor:
        tokens, streams = self.data.tokens(step, indices), self.data.streams(step, indices)
        time, mask_id = self.data.times(step, indices), self.demasker.config.mask_id
        return base_loss(
            self.demasker, tokens, mask_id=mask_id, streams=streams, time=time, draft_rate=self.draft_rate
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
        return list(self.denoiser.repeated_blocks)

    def compile(self) -> None:
        """Compile the whole loss: so small a network runs faster on a GPU than the host calls its blocks."""
        self.loss_function = torch.compile(prior_loss, dynamic=False)

    def work(self) -> Work:
        flops = prior_flops(self.denoiser.config, self_condition_rate=self.objective.self_condition_rate)
        return Work(self.denoiser.config.num_registers, flops)

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
        return [*self.denoiser.repeated_blocks, *self.encoder.backbone.layers]

    def compile(self) -> None:
        compile_each([*self.denoiser.parts_to_compile, *self.encoder.backbone.layers])

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
            self_condition_rate=self.objective.self_condition_rate,
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
