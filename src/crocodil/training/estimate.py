"""What a run will take before it is started: parameters, tokens, memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.training.loop import LoopConfig
from crocodil.training.run import Run

_TRAINED_BYTES = 4 + 4 + 8 + 4  # weight, gradient, two moments, average
_BYTES_PER_ACTIVATION = 34  # a block keeps about this many bytes for each of its width x positions in bf16


@dataclass(frozen=True)
class Estimate:
    stage: str
    trained: int  # parameters
    frozen: int
    steps: int
    batch: int
    tokens: int  # to be seen, filling included
    gigabytes: float


def estimates(run: Run) -> list[Estimate]:
    """One for each stage that trains."""
    with torch.device("meta"):
        base, demasker = LLaDA(run.demasker.backbone), Demasker(run.demasker)
        encoder = RegisterEncoder(run.encoder)
        prior, conditional = RegisterDenoiser(run.prior), RegisterDenoiser(run.conditional)
    registers = run.num_prior_registers
    prefix = run.demasker.num_registers + 2
    wide, narrow = run.demasker.backbone, run.encoder
    at_base = run.length * wide.num_layers * wide.width
    at_demasker = (run.length + prefix) * wide.num_layers * wide.width
    at_encoder = (run.length + prefix) * narrow.num_layers * narrow.width
    at_prior = registers * run.prior.num_layers * run.prior.width
    learning: list[nn.Module] = [conditional, encoder] if run.condition_encoder_learns else [conditional]
    resting = [] if run.condition_encoder_learns else [encoder]
    return [
        _estimate("base", [base], [], run.base_loop, run.length, at_base),
        _estimate("guided", [demasker, encoder], [], run.guided_loop, run.length, at_demasker + at_encoder),
        _estimate("prior", [prior], [], run.prior_loop, registers, at_prior),
        _estimate("conditional", learning, resting, run.conditional_loop, registers, at_prior),
    ]


def _estimate(
    stage: str,
    trained: Sequence[nn.Module],
    frozen: Sequence[nn.Module],
    loop: LoopConfig,
    positions: int,
    activations: int,
) -> Estimate:
    num_trained, num_frozen = (sum(num_parameters(module) for module in group) for group in (trained, frozen))
    micro_batch = loop.batch_size // loop.num_accumulated
    memory = num_trained * _TRAINED_BYTES + num_frozen * 4 + micro_batch * activations * _BYTES_PER_ACTIVATION
    tokens = loop.num_steps * loop.batch_size * positions
    return Estimate(stage, num_trained, num_frozen, loop.num_steps, loop.batch_size, tokens, memory / 1e9)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
