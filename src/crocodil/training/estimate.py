"""Estimate parameters, tokens, memory and operations of a run before it starts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from torch import nn

from crocodil.checkpoints.tensors import without_values
from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.models.demasker import Demasker
from crocodil.models.llada import Block, LLaDA, LLaDAConfig
from crocodil.models.register_critic import RegisterCritic
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.sampling.cost import num_parameters
from crocodil.training.adapting import LoRA
from crocodil.training.data import NUM_VALID
from crocodil.training.loop import LoopConfig
from crocodil.training.run_config import Run
from crocodil.training.validation import MOST_LOGITS
from crocodil.training.work import (
    base_flops,
    conditional_flops,
    distilled_flops,
    guided_flops,
    head_flops,
    prior_flops,
    prompted_flops,
)

_TRAINED_BYTES = 4 + 4 + 8 + 4  # weight, gradient, two moments, average
_FROZEN_BYTES = 4
_ADAPTED_BYTES = 2  # a frozen backbone with adapters is kept in bfloat16
_EVALUATED_BYTES = _TRAINED_BYTES + 4  # while averages are evaluated, the weights are kept beside them
_BYTES_PER_ACTIVATION = 34  # a block keeps about this many bytes per channel and position, in bfloat16
_BYTES_WITHOUT_MLP = 17.5  # the part outside the MLP; the rest is 3 activations of a gated MLP of 2.75 x width
_BYTES_PER_RECOMPUTED = 2  # only the input of the block is kept
_BYTES_PER_LOGIT = 10  # bfloat16, float32, and the gradient


@dataclass(frozen=True)
class Estimate:
    stage: str
    trained: int  # parameters
    frozen: int
    steps: int
    batch: int
    tokens: int  # in all steps, padding included
    flops: float  # operations in all steps, as training/work.py counts them
    gigabytes: float  # per device


def estimates(run: Run, *, num_devices: int = 1) -> list[Estimate]:
    """Return an estimate for each trained stage, with all states sharded evenly over the devices."""
    with without_values():
        base, demasker = LLaDA(run.demasker.backbone), Demasker(run.demasker)
        encoder = RegisterEncoder(run.encoder)
        prior, conditional = RegisterDenoiser(run.prior), RegisterDenoiser(run.conditional_shape)
        teachers = [{"prior": prior, "conditional": conditional}[name] for name in run.distil_objective.teachers]
        students = _students(run, teachers)
        prompting = run.prompted_objective
        prompted = RegisterDenoiser(_prompted(run))
        head = CausalHead(CausalHeadConfig(backbone=run.demasker.backbone))
        adapters = 0 if run.lora is None else num_adapter_parameters(run.demasker.backbone, run.lora)
    count = num_parameters
    frozen = count(base) if adapters else (not run.encoder_learns) * count(encoder)  # there are no adapters then
    guided = count(encoder) + count(demasker) - frozen + adapters
    base_activations, guided_activations, encoding, denoising, conditional_denoising = _activations(run)
    trains_encoder = run.condition_encoder_learns
    flops = step_flops(run)
    return [
        _estimate(
            "base", run.base_loop, flops, num_devices, [base_activations], trained=count(base),
        ),
        _estimate(
            "guided", run.guided_loop, flops, num_devices,
            [guided_activations, *([encoding] if run.encoder_learns else [])],
            trained=guided, frozen=frozen,
            frozen_bytes=_ADAPTED_BYTES if adapters else _FROZEN_BYTES,
        ),
        _estimate("prior", run.prior_loop, flops, num_devices, [denoising], trained=count(prior)),
        _estimate(
            "conditional", run.conditional_loop, flops, num_devices,
            [*[conditional_denoising] * (run.live_draws or 1), *([encoding] if trains_encoder else [])],
            trained=count(conditional) + trains_encoder * count(encoder),
            frozen=(not trains_encoder) * count(encoder),
        ),
        _estimate(
            "distilled", run.distilled_loop, flops, num_devices,
            [conditional_denoising if teacher is conditional else denoising for teacher in teachers],
            trained=sum(map(count, students)),
            frozen=sum(map(count, teachers)) + (conditional in teachers) * count(encoder),
        ),
        _estimate(
            "prompted", run.prompted_loop, flops, num_devices,
            [*[guided_activations] * prompting.demasker_learns, conditional_denoising],
            trained=count(prompted) + prompting.own_encoder * count(encoder)
            + prompting.demasker_learns * count(demasker),
            frozen=count(encoder),
        ),
        _estimate(
            "head", run.head_loop, flops, num_devices, [_head_activations(run)], trained=count(head),
            frozen=count(encoder) + count(demasker),
        ),
    ]  # fmt: skip


def _students(run: Run, teachers: list[RegisterDenoiser]) -> list[nn.Module]:
    """Return the networks that stage distilled trains."""
    shapes = [replace(teacher.config, self_conditioned=False) for teacher in teachers]
    if run.distil_objective.by_matching:
        students = [RegisterDenoiser(shape) for shape in shapes]
        return [*students, *map(RegisterCritic, students)]
    return [RegisterDenoiser(replace(shape, flow_map=True)) for shape in shapes]


def step_flops(run: Run) -> dict[str, float]:
    """Return the operations of one step of each stage, as the mean over the lengths that take turns."""
    shapes = {"prior": run.prior, "conditional": run.conditional_shape}
    guessed = run.prior_objective.self_condition_rate
    samples = {
        "base": [
            base_flops(
                run.demasker.backbone, length=length, draft_rate=run.base_draft_rate
            )
            for length in run.lengths
        ],
        "guided": [
            guided_flops(
                run.demasker, run.encoder, length=length, all_mask_rate=run.guided_objective.all_mask_rate,
                adapted=run.lora is not None, draft_rate=run.guided_objective.draft_rate,
                encoder_learns=run.encoder_learns,
            )
            for length in run.lengths
        ],
        "prior": [prior_flops(run.prior, self_condition_rate=guessed)],
        "conditional": [
            conditional_flops(
                run.conditional_shape, run.encoder, length=length, bare_rate=run.prior_objective.bare_rate,
                self_condition_rate=guessed, encoder_learns=run.condition_encoder_learns,
                live_draws=run.live_draws,
            )
            for length in run.lengths
        ],
        "distilled": [
            distilled_flops(
                {name: shapes[name] for name in run.distil_objective.teachers}, run.encoder, length=length,
                objective=run.distil_objective, bare_rate=run.prior_objective.bare_rate,
            )
            for length in run.lengths
        ],
        "prompted": [
            prompted_flops(
                _prompted(run), run.encoder, run.demasker if run.prompted_objective.demasker_learns else None,
                objective=run.prompted_objective, text_length=max(run.lengths), self_condition_rate=guessed,
                draft_rate=run.guided_objective.draft_rate, all_mask_rate=run.guided_objective.all_mask_rate,
            )
        ],
        "head": [
            head_flops(
                run.demasker, run.encoder, length=length, objective=run.head_objective,
                all_mask_rate=run.guided_objective.all_mask_rate, draft_rate=run.guided_objective.draft_rate,
            )
            for length in run.lengths
        ],
    }  # fmt: skip
    return {stage: getattr(run, f"{stage}_loop").batch_size * fmean(flops) for stage, flops in samples.items()}


def _prompted(run: Run) -> RegisterDenoiserConfig:
    """Return the shape of the prior of stage prompted. Its length head is too small to count."""
    encoder = run.encoder
    return replace(run.conditional_shape, prompt_width=encoder.register_width, prompt_length=encoder.num_registers)


@dataclass(frozen=True)
class Activations:
    """What one sample keeps in memory until the backward pass."""

    positions: int
    num_layers: int
    width: int
    mlp_width: int | None = None  # of a gated MLP; None: of the usual size
    logits: float = 0.0

    def bytes(self, *, recomputed: bool) -> float:
        block: float = self.width * _BYTES_PER_ACTIVATION
        if self.mlp_width is not None:
            block = self.width * _BYTES_WITHOUT_MLP + 6 * self.mlp_width
        per_position = self.num_layers * block
        if recomputed:  # the inputs of all blocks, and the activations of the block that is recomputed
            per_position = self.num_layers * self.width * _BYTES_PER_RECOMPUTED + block
        return self.positions * per_position + self.logits * _BYTES_PER_LOGIT


def _activations(run: Run) -> tuple[Activations, Activations, Activations, Activations, Activations]:
    """Return the activations of the base, the guided demasker, the encoder and both denoisers."""
    demasker, encoder, prior, conditional = run.demasker.backbone, run.encoder, run.prior, run.conditional_shape
    mlp_width = None if conditional.body is None else conditional.body.backbone.mlp_width
    length = max(run.lengths)
    with_registers = length + run.demasker.num_registers + 2
    shape = (demasker.num_layers, demasker.width, demasker.mlp_width)
    hidden, guided_hidden = length / 2, 0.625 * length  # with a quarter of the samples fully masked
    return (
        Activations(length, *shape, hidden * demasker.vocab_size),
        Activations(with_registers, *shape, guided_hidden * demasker.vocab_size),
        Activations(with_registers, encoder.num_layers, encoder.width, encoder.mlp_width),
        Activations(run.num_prior_registers, prior.num_layers, prior.width),
        Activations(conditional.num_positions, conditional.num_layers, conditional.width, mlp_width),
    )


def _head_activations(run: Run) -> Activations:
    """Return the activations of the causal head: those of frozen networks are not kept."""
    backbone, length = run.demasker.backbone, max(run.lengths)
    predicted = run.head_objective.predicted_share(run.guided_objective.all_mask_rate)
    return Activations(length, 1, backbone.width, backbone.mlp_width, predicted * length * backbone.vocab_size)


def _estimate(
    stage: str,
    loop: LoopConfig,
    flops: dict[str, float],
    num_devices: int,
    activations: Sequence[Activations],
    *,
    trained: int,
    frozen: int = 0,
    frozen_bytes: int = _FROZEN_BYTES,
) -> Estimate:
    micro_batch = loop.batch_size / loop.num_accumulated / num_devices
    kept = micro_batch * sum(network.bytes(recomputed=loop.recompute_blocks) for network in activations)
    training = trained * _TRAINED_BYTES / num_devices + kept
    evaluated_logits = min(2 * NUM_VALID * activations[0].logits, MOST_LOGITS)
    evaluating = trained * _EVALUATED_BYTES / num_devices + evaluated_logits * _BYTES_PER_LOGIT
    memory = max(training, evaluating) + frozen * frozen_bytes / num_devices
    tokens = loop.num_steps * loop.batch_size * activations[0].positions
    return Estimate(
        stage,
        trained,
        frozen,
        loop.num_steps,
        loop.batch_size,
        tokens,
        loop.num_steps * flops[stage],
        memory / 1e9,
    )


def num_adapter_parameters(config: LLaDAConfig, lora: LoRA) -> int:
    """Return the number of LoRA parameters: rank x (inputs + outputs) for each adapted projection."""
    block = Block(config)
    return config.num_layers * lora.rank * sum(sum(getattr(block, name).weight.shape) for name in lora.targets)
