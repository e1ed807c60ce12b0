"""What a run will take before it is started: parameters, tokens, memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from crocodil.models.demasker import Demasker
from crocodil.models.llada import Block, LLaDA, LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.sampling.cost import num_parameters
from crocodil.training.adapting import LoRA
from crocodil.training.loop import LoopConfig
from crocodil.training.run import Run

_TRAINED_BYTES = 4 + 4 + 8 + 4  # weight, gradient, two moments, average
_FROZEN_BYTES = 4
_ADAPTED_BYTES = 2  # a backbone under adapters rests in half precision
_BYTES_PER_ACTIVATION = 34  # a block keeps about this many for each of its width x positions in bf16
_BYTES_PER_RECOMPUTED = 2  # only what enters the block is kept
_BYTES_PER_LOGIT = 10  # in bf16, in float32, and the gradient


@dataclass(frozen=True)
class Estimate:
    stage: str
    trained: int  # parameters
    frozen: int
    steps: int
    batch: int
    tokens: int  # to be seen, filling included
    gigabytes: float  # on each device


def estimates(run: Run, *, num_devices: int = 1) -> list[Estimate]:
    """One for each stage that trains, on devices that share everything evenly."""
    with torch.device("meta"):
        base, demasker = LLaDA(run.demasker.backbone), Demasker(run.demasker)
        encoder = RegisterEncoder(run.encoder)
        prior, conditional = RegisterDenoiser(run.prior), RegisterDenoiser(run.conditional)
        adapters = 0 if run.lora is None else num_adapter_parameters(run.demasker.backbone, run.lora)
    count = num_parameters
    resting = count(base) if adapters else 0
    guided = count(encoder) + count(demasker) - resting + adapters
    wide, narrow = run.demasker.backbone, run.encoder
    length, prefix = max(run.lengths), run.demasker.num_registers + 2
    text = Activity(length, wide.num_layers * wide.width, wide.width, length / 2 * wide.vocab_size)
    beside = Activity(length + prefix, wide.num_layers * wide.width, wide.width, 0.625 * length * wide.vocab_size)
    reading = Activity(length + prefix, narrow.num_layers * narrow.width, narrow.width)
    bank = Activity(run.num_prior_registers, run.prior.num_layers * run.prior.width, run.prior.width)
    learning = run.condition_encoder_learns
    return [
        _estimate("base", run.base_loop, num_devices, [text], trained=count(base)),
        _estimate(
            "guided", run.guided_loop, num_devices, [beside, reading], trained=guided, frozen=resting,
            frozen_bytes=_ADAPTED_BYTES,
        ),
        _estimate("prior", run.prior_loop, num_devices, [bank], trained=count(prior)),
        _estimate(
            "conditional", run.conditional_loop, num_devices, [bank, reading] if learning else [bank],
            trained=count(conditional) + learning * count(encoder), frozen=(not learning) * count(encoder),
        ),
    ]  # fmt: skip


@dataclass(frozen=True)
class Activity:
    """What one sample leaves in memory until the backward pass."""

    positions: int
    depth: int  # layers x width
    width: int
    logits: float = 0.0

    def bytes(self, *, recomputed: bool) -> float:
        kept = self.depth * _BYTES_PER_ACTIVATION
        if recomputed:
            kept = self.depth * _BYTES_PER_RECOMPUTED + self.width * _BYTES_PER_ACTIVATION  # and one block at work
        return self.positions * kept + self.logits * _BYTES_PER_LOGIT


def _estimate(
    stage: str,
    loop: LoopConfig,
    num_devices: int,
    activities: Sequence[Activity],
    *,
    trained: int,
    frozen: int = 0,
    frozen_bytes: int = _FROZEN_BYTES,
) -> Estimate:
    micro_batch = loop.batch_size / loop.num_accumulated / num_devices
    active = micro_batch * sum(one.bytes(recomputed=loop.recompute_blocks) for one in activities)
    memory = (trained * _TRAINED_BYTES + frozen * frozen_bytes) / num_devices + active
    tokens = loop.num_steps * loop.batch_size * activities[0].positions
    return Estimate(stage, trained, frozen, loop.num_steps, loop.batch_size, tokens, memory / 1e9)


def num_adapter_parameters(config: LLaDAConfig, lora: LoRA) -> int:
    """Of the low-rank pairs: rank x (inputs + outputs) for each adapted projection."""
    block = Block(config)
    return config.num_layers * lora.rank * sum(sum(getattr(block, name).weight.shape) for name in lora.targets)
