"""Losses of the priors: Algorithm 5 without a condition, Algorithm 4 with one."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives.demasking import Encode, Loss
from crocodil.processes.gaussian import (
    Offsets,
    add_noise,
    block_offsets,
    effective_time,
    last_base_time,
    sample_base_time,
)
from crocodil.processes.masking import Masked, bare_canvas, mask_tokens, sample_given
from crocodil.processes.registers import block_index
from crocodil.runtime.config import Positive, Share, Weight, config
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, RegisterTime, TokenIds


@config
class PriorObjective:
    """Options of Algorithms 4 and 5."""

    largest_offset: Share = 0.1  # largest block offset (decision D4); 0 trains without offsets (App. G)
    time_shift: Positive = 1.0  # above 1: more noisy diffusion times, below 1: fewer (`shifted_time`)
    smallest_noise: Weight = 0.0  # train at this register noise and above, where draws stop early (D78); 0: at any
    condition_drop_rate: Share = 0.1  # how often a text has the null condition (D15); bare canvases never do
    given_rate: Share = 0.25  # how often only a prefix, suffix or both are visible (D24); 0 in the paper
    bare_rate: Share = 0.0  # share of a batch with a fully masked canvas, for one denoiser as both priors (D15)
    self_condition_rate: Share = 0.5  # share of a batch that is given a guess, if self-conditioned (D25)


def prior_loss(
    denoiser: RegisterDenoiser, registers: RegisterBank, *, objective: PriorObjective, streams: Streams
) -> Loss:
    """Algorithm 5: return the loss of the unconditional prior on registers of the frozen encoder (line 3)."""
    registers = denoiser.standardise(registers)
    noisy_registers, time = diffuse(registers, objective, streams)  # lines 2 and 4
    return F.mse_loss(denoise(denoiser, noisy_registers, time, objective), registers)  # line 5


def conditional_prior_loss(
    denoiser: RegisterDenoiser,
    encode_condition: Encode,
    tokens: Int[Tensor, "V N"],
    registers: RegisterBank,
    *,
    objective: PriorObjective,
    mask_id: int,
    streams: Streams,
    num_draws: int = 1,
) -> Loss:
    """Algorithm 4: return the loss of the conditional prior on registers of the frozen encoder (line 2).

    `encode_condition` is h_phi, kept fixed by the caller, or a second encoder h_mu that is trained too
    (Sec. 4.3.2, comment iii). `tokens` belong to the last samples of the batch. The other samples are conditioned
    on the fully masked canvas with which generation starts; it is encoded once for all of them. Each sample is
    noised `num_draws` times, with one condition for all its draws.
    """
    num_bare = num_draws * (len(registers) - len(tokens))
    registers = denoiser.standardise(registers).repeat_interleave(num_draws, dim=0)
    noisy_registers, time = diffuse(registers, objective, repeated(streams, num_draws))  # lines 3-4
    condition_streams = Streams(streams.keys[-len(tokens) :])
    condition = encode_condition(*mask_condition(tokens, objective, mask_id, condition_streams))  # lines 5-6
    condition = condition.repeat_interleave(num_draws, dim=0)
    keep = condition_streams.at("keep condition").uniform() >= objective.condition_drop_rate
    keep = keep.repeat_interleave(num_draws)
    predicted = denoise(denoiser, noisy_registers[num_bare:], time[num_bare:], objective, condition, keep)
    if num_bare:
        bare = encode_condition(*bare_canvas(tokens, mask_id=mask_id))
        predicted_bare = denoise(denoiser, noisy_registers[:num_bare], time[:num_bare], objective, bare)
        predicted = torch.cat([predicted_bare, predicted])
    return F.mse_loss(predicted, registers)  # line 7


def repeated(streams: Streams, count: int) -> Streams:
    """Return one stream per draw, for `count` consecutive draws of each sample."""
    if count == 1:
        return streams
    keys = streams.keys.repeat_interleave(count)
    return Streams(keys).at(torch.arange(len(keys), device=keys.device) % count)


def mask_condition(tokens: TokenIds, objective: PriorObjective, mask_id: int, streams: Streams) -> Masked:
    """Mask the tokens that the condition is computed from."""
    given = sample_given(tokens.shape[1], objective.given_rate, streams=streams.at("given"))
    # If tokens are given, all others are hidden: decoding with given tokens starts like this.
    mask_prob = streams.at("mask time").uniform().masked_fill(given.any(dim=1), 1.0)
    return mask_tokens(tokens, mask_prob, mask_id=mask_id, streams=streams.at("mask"), given=given)


def diffuse(
    registers: RegisterBank, objective: PriorObjective, streams: Streams
) -> tuple[RegisterBank, Float[Tensor, "B K"]]:
    """Return z_s and the effective time of every register."""
    offsets = offsets_of(registers, objective)
    first = None
    if objective.smallest_noise:
        first = last_time(registers.shape[1], objective, objective.smallest_noise)
    base_time = sample_base_time(offsets, first=first, streams=streams.at("time"))
    time = effective_time(base_time, offsets, shift=objective.time_shift)
    noise = streams.at("noise").normal(*registers.shape[1:])
    return add_noise(registers, time, noise), time


def last_time(num_registers: int, objective: PriorObjective, noise_std: float) -> float:
    """Return the base time of this noise in the last block. No tensor is read: that would wait for the device."""
    largest = objective.largest_offset if num_registers > 1 else 0.0
    return last_base_time(largest, noise_std=noise_std, shift=objective.time_shift)


def offsets_of(registers: RegisterBank, objective: PriorObjective) -> Offsets:
    return block_offsets(block_index(registers.shape[1], registers.device), largest=objective.largest_offset)


def denoise(
    denoiser: RegisterDenoiser,
    noisy_registers: RegisterBank,
    time: RegisterTime,
    objective: PriorObjective,
    condition: Float[Tensor, "_ C E"] | None = None,
    keep: Bool[Tensor, "B"] | None = None,
    prompt: Float[Tensor, "_ P F"] | None = None,
    keep_prompt: Bool[Tensor, "B"] | None = None,
) -> RegisterBank:
    """Predict the clean bank; part of the batch sees a first prediction as its guess (decision D25)."""
    prompted: dict[str, Any] = {} if prompt is None else {"prompt": prompt, "keep_prompt": keep_prompt}
    if not denoiser.config.self_conditioned:
        return denoiser(noisy_registers, time, condition=condition, keep_condition=keep, **prompted)
    guess, num_guessed = torch.zeros_like(noisy_registers), round(objective.self_condition_rate * len(time))
    if num_guessed:
        with torch.no_grad():
            guess[:num_guessed] = denoiser(
                noisy_registers[:num_guessed],
                time[:num_guessed],
                condition=None
                if condition is None
                else condition[:num_guessed],  # a shared condition keeps one row
                keep_condition=None if keep is None else keep[:num_guessed],
                **{name: None if value is None else value[:num_guessed] for name, value in prompted.items()},
            )
    return denoiser(noisy_registers, time, guess=guess, condition=condition, keep_condition=keep, **prompted)
