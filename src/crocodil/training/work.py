"""Floating-point operations of training, and the matrix rate of a device: their ratio is the MFU."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from crocodil.models.demasker import DemaskerConfig
from crocodil.models.denoiser_blocks import TIME_FEATURES
from crocodil.models.llada import LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.objectives import DistilObjective, HeadObjective, PromptedObjective
from crocodil.seeding import generator_for

# Cost of a step in forward passes: weights trained; only gradients passed through (adapters); no gradients.
TRAINED, PASSED_THROUGH, FROZEN = 3, 2, 1


@dataclass(frozen=True)
class Work:
    """Tokens and operations of one sample in one training step."""

    tokens: float
    flops: float


def demasker_flops(config: LLaDAConfig, *, positions: int, rows: float) -> float:
    """Return the operations of one forward pass of one sample; the head reads `rows` positions of the text."""
    inner, kv_width = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
    block = 2 * config.width * (inner + kv_width) + 3 * config.width * config.mlp_width
    attention = 2 * positions * inner
    return 2 * config.num_layers * positions * (block + attention) + output_flops(config, rows=rows)


def output_flops(config: LLaDAConfig, *, rows: float) -> float:
    """Return the operations of the layer that predicts tokens from states."""
    return 2 * rows * config.width * config.vocab_size


def encoder_flops(config: RegisterEncoderConfig, *, positions: int) -> float:
    """Return the operations of one forward pass of one sample; causal attention counts in full."""
    inner, kv_width = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
    block = 2 * config.width * (inner + kv_width) + 3 * config.width * config.mlp_width
    return 2 * config.num_layers * positions * (block + 2 * positions * inner)


def denoiser_flops(config: RegisterDenoiserConfig) -> float:
    """Return the operations of one forward pass of one register bank, with its times and all that it reads.

    A self-conditioned denoiser reads a guess, a flow map a second time.
    """
    width = config.width
    maps = (2 + config.self_conditioned) * config.register_width * width
    timing = (1 + config.flow_map) * (TIME_FEATURES + width) * width
    modulation = (6 if config.body is None else 2) * width**2
    embedding = sum(length * (read + width) * width for length, read in _contexts(config))
    return _blocks_flops(config) + 2 * (config.num_registers * (maps + timing + modulation) + embedding)


def _contexts(config: RegisterDenoiserConfig) -> list[tuple[int, int]]:
    """Return the length and width of the condition and of the prompt; 0 if there is none."""
    condition = config.condition_length, config.condition_width or 0
    return [condition, (config.prompt_length, config.prompt_width or 0)]


def _blocks_flops(config: RegisterDenoiserConfig) -> float:
    """Return the operations of the blocks, including cross-attention."""
    if config.body is not None:
        return demasker_flops(config.body.backbone, positions=config.num_positions, rows=0)
    width, count, context = config.width, config.num_registers, config.condition_length + config.prompt_length
    block = (4 + 2 * config.mlp_ratio) * width**2 + 2 * count * width
    if context:
        block += 2 * width**2 + 2 * context * width
    return 2 * config.num_layers * (count * block + context * 2 * width**2)


def guess_flops(config: RegisterDenoiserConfig) -> float:
    """Return the operations of the first pass of a self-conditioned denoiser, which makes the guess (D25)."""
    return denoiser_flops(replace(config, self_conditioned=False)) if config.self_conditioned else 0.0


# ---------------------------------------------------------------- one sample in a training step of each stage


def base_flops(config: LLaDAConfig, *, length: int, draft_rate: float = 0.0) -> float:
    """Plain masked diffusion: half of the tokens are hidden on average; drafts are as in Algorithm 1."""
    trained = TRAINED * demasker_flops(config, positions=length, rows=(1 + draft_rate) / 2 * length)
    drafting = FROZEN * demasker_flops(config, positions=length, rows=length / 4)
    return trained + draft_rate * drafting


def guided_flops(
    demasker: DemaskerConfig,
    encoder: RegisterEncoderConfig,
    *,
    length: int,
    all_mask_rate: float,
    adapted: bool = False,
    draft_rate: float = 0.0,
    encoder_learns: bool = True,
) -> float:
    """Algorithm 1: the demasker reads START, registers, END and text; the encoder reads text and registers.

    Drafts take a second pass without gradients, which predicts half of the visible tokens; the loss then reads all
    rows.
    """
    positions = length + demasker.num_registers + 2
    hidden = all_mask_rate + (1 - all_mask_rate) / 2
    read = hidden + draft_rate * (1 - hidden)
    demasking = demasker_flops(demasker.backbone, positions=positions, rows=read * length)
    drafting = demasker_flops(demasker.backbone, positions=positions, rows=(1 - hidden) / 2 * length)
    encoding = encoder_flops(encoder, positions=length + encoder.num_registers)
    encoded = TRAINED if encoder_learns else FROZEN
    trained = (PASSED_THROUGH if adapted else TRAINED) * demasking + encoded * encoding
    return trained + draft_rate * FROZEN * drafting


def head_flops(
    demasker: DemaskerConfig,
    encoder: RegisterEncoderConfig,
    *,
    length: int,
    objective: HeadObjective,
    all_mask_rate: float,
    draft_rate: float = 0.0,
) -> float:
    """Stage head: encoder and demasker run as in Algorithm 1, without gradients, and predict the hidden tokens.

    The head reads the text only. Gradients pass through the output layer, which is the demasker's.
    """
    backbone, positions = demasker.backbone, length + demasker.num_registers + 2
    hidden = all_mask_rate + (1 - all_mask_rate) / 2
    frozen = encoder_flops(encoder, positions=length + encoder.num_registers)
    frozen += demasker_flops(backbone, positions=positions, rows=hidden * length)
    frozen += draft_rate * demasker_flops(backbone, positions=positions, rows=(1 - hidden) / 2 * length)
    trained = causal_head_flops(backbone, positions=length)
    predicted = objective.predicted_share(all_mask_rate) * length
    return FROZEN * frozen + TRAINED * trained + PASSED_THROUGH * output_flops(backbone, rows=predicted)


def causal_head_flops(backbone: LLaDAConfig, *, positions: int) -> float:
    """Return the operations of one forward pass of a causal head; causal attention counts in full."""
    maps = (2 + 1) * backbone.width**2  # of states and tokens together, and of the block's output
    block = demasker_flops(replace(backbone, num_layers=1), positions=positions, rows=0)
    return block + 2 * positions * maps


def prior_flops(config: RegisterDenoiserConfig, *, self_condition_rate: float) -> float:
    """Algorithm 5, on cached registers. A share of the samples has a guess, from a pass without gradients."""
    return TRAINED * denoiser_flops(config) + self_condition_rate * FROZEN * guess_flops(config)


def conditional_flops(
    denoiser: RegisterDenoiserConfig,
    encoder: RegisterEncoderConfig,
    *,
    length: int,
    bare_rate: float,
    self_condition_rate: float,
    encoder_learns: bool = False,
    live_draws: int = 0,
) -> float:
    """Algorithm 4: the encoder reads the text of all samples that do not have a bare canvas.

    If registers are not cached, it reads the text of all samples once more.
    """
    encoding = encoder_flops(encoder, positions=length + encoder.num_registers)
    condition = (TRAINED if encoder_learns else FROZEN) * encoding
    targets = FROZEN * encoding if live_draws else 0.0
    denoising = (live_draws or 1) * prior_flops(denoiser, self_condition_rate=self_condition_rate)
    return denoising + (1 - bare_rate) * condition + targets


def prompted_flops(
    denoiser: RegisterDenoiserConfig,
    encoder: RegisterEncoderConfig,
    demasker: DemaskerConfig | None,
    *,
    objective: PromptedObjective,
    text_length: int,
    self_condition_rate: float,
    draft_rate: float = 0.0,
    all_mask_rate: float = 0.0,
) -> float:
    """Stage prompted: the encoder reads the answer, the masked answer and the prompt. The length head is small.

    Half of an answer is hidden on average, and all of it in a share `all_mask_rate` of the samples. Drafts are as
    in Algorithm 1.
    """
    answer, prompt = (
        encoder_flops(encoder, positions=length + encoder.num_registers)
        for length in (objective.answer_length, objective.prompt_length)
    )
    encoding = (2 + (demasker is not None)) * FROZEN * answer
    encoding += (TRAINED if objective.own_encoder else FROZEN) * prompt
    demasking = 0.0
    if demasker is not None:
        positions = text_length + demasker.num_registers + 2
        hidden = all_mask_rate + (1 - all_mask_rate) / 2
        rows = (draft_rate + (1 - draft_rate) * hidden) * objective.answer_length
        demasking = TRAINED * demasker_flops(demasker.backbone, positions=positions, rows=rows)
        drafted = objective.answer_length / 4
        demasking += draft_rate * FROZEN * demasker_flops(demasker.backbone, positions=positions, rows=drafted)
    return prior_flops(denoiser, self_condition_rate=self_condition_rate) + encoding + demasking


def distilled_flops(
    teachers: Mapping[str, RegisterDenoiserConfig],
    encoder: RegisterEncoderConfig | None,
    *,
    length: int,
    objective: DistilObjective,
    bare_rate: float,
) -> float:
    """Stage distilled: the student is called for its jump, for the rest of the target, and to draw a start.

    Guidance and self-conditioning add calls to each step of the teacher. A weak prior counts like its teacher, and
    so does a critic: its classifier is small.

    In distribution matching, every text has a whole draw. Most steps train the critic, on drawn and on encoded
    registers. The others train the student, with a call of the teacher and one of the critic that also computes
    the gradient of its input.
    """
    flops = 0.0
    for name, config in teachers.items():
        matched = objective.by_matching
        student = replace(config, self_conditioned=False, flow_map=not matched, fresh_noise=matched)
        own_call = denoiser_flops(student)
        teacher_step = (1 + objective.guiding_calls) * denoiser_flops(config) + guess_flops(config)
        if matched:
            trained = (2 * objective.critic_steps + 1) * TRAINED * own_call
            all_turns = trained + FROZEN * (teacher_step + 2 * own_call)
            per_turn = FROZEN * own_call + all_turns / (objective.critic_steps + 1)
            flops += objective.draw_steps * per_turn
        else:
            own_calls = TRAINED + FROZEN * (1 + bool(objective.own_rate))
            flops += own_calls * own_call + FROZEN * objective.teacher_calls * teacher_step
        if name == "conditional" and encoder is not None:
            encoding = encoder_flops(encoder, positions=length + encoder.num_registers)
            flops += (1 - bare_rate) * FROZEN * encoding
    return flops


# ---------------------------------------------------------------- the device


def matrix_rate(device: str) -> float:
    """Measure the operations per second of a large matrix product: bfloat16 on a GPU, float32 on a CPU."""
    on_gpu = device.startswith("cuda")
    size, dtype = (8192, torch.bfloat16) if on_gpu else (512, torch.float32)
    matrix = torch.randn(size, size, device=device, dtype=dtype, generator=generator_for("matrix", device=device))
    _time_products(matrix, 3)  # warm up
    return 10 * 2 * size**3 / _time_products(matrix, 10)


def _time_products(matrix: Tensor, count: int) -> float:
    started_at = time.perf_counter()
    for _ in range(count):
        matrix @ matrix
    if matrix.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started_at
