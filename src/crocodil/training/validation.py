"""Metrics on validation programs. Programs, masks and noise are the same at every evaluation."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch

from crocodil.metrics.likelihood import Accuracy, demasking_accuracy
from crocodil.metrics.register_quality import prdc_per_register, psnr, squared_error_by_time
from crocodil.models.register_denoiser import Condition, RegisterDenoiser
from crocodil.objectives import PriorObjective
from crocodil.processes.gaussian import Denoise
from crocodil.processes.masking import Masked, mask_tokens
from crocodil.sampling.configs import Drawing
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RegisterBank, RowLogits, TokenIds

# (noisy tokens, positions of the logits, which of the samples these are)
DemaskSamples: TypeAlias = Callable[[TokenIds, Positions, slice], RowLogits]

MASK_PROBS = (0.1, 0.5, 0.9, 1.0)
TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
NUM_DRAW_STEPS = 32
NUM_NEIGHBOURS = 5  # of PRDC
MOST_LOGITS = 1 << 28  # at once; with copies for the cross-entropy they take 2.7 GB


def demasking_metrics(
    demask: DemaskSamples, tokens: TokenIds, *, mask_id: int, vocab_size: int, suffix: str = ""
) -> dict[str, float]:
    """Return cross-entropy and top-1 accuracy at the hidden positions, for several mask probabilities.

    With a large vocabulary, fewer samples are demasked at a time.
    """
    parts = parts_for_logits(tokens, vocab_size)
    metrics = {}
    for prob in MASK_PROBS:
        accuracy = Accuracy()
        for part in parts:
            streams = Streams.of("valid", samples=range(part.start, part.stop), device=tokens.device)
            demask_part = partial(_demask_part, demask, part)
            accuracy += demasking_accuracy(demask_part, tokens[part], prob, mask_id=mask_id, streams=streams)
        metrics[f"valid cross-entropy at mask {prob}{suffix}"] = accuracy.cross_entropy
        metrics[f"valid top-1 at mask {prob}{suffix}"] = accuracy.top1
    return metrics


def parts_for_logits(tokens: TokenIds, vocab_size: int) -> list[slice]:
    """Split a batch so that the logits of all positions of a part fit into memory."""
    size = max(1, MOST_LOGITS // (tokens.shape[1] * vocab_size))
    return [slice(start, min(start + size, len(tokens))) for start in range(0, len(tokens), size)]


def _demask_part(demask: DemaskSamples, part: slice, noisy_tokens: TokenIds, rows: Positions) -> RowLogits:
    return demask(noisy_tokens, rows, part)


def mask_half(tokens: TokenIds, *, mask_id: int) -> Masked:
    """Hide each token with probability 0.5."""
    mask_prob = torch.full((len(tokens),), 0.5, device=tokens.device)
    return mask_tokens(tokens, mask_prob, mask_id=mask_id, streams=_streams(tokens).at("half"))


def hide(tokens: TokenIds, mask_prob: float, *, mask_id: int, given: Positions) -> Masked:
    """Hide each token that is not given with this probability, as `demasking_metrics` does."""
    probs = torch.full((len(tokens),), mask_prob, device=tokens.device)
    streams = _streams(tokens).at(f"{mask_prob}")
    return mask_tokens(tokens, probs, mask_id=mask_id, streams=streams, given=given)


def prior_metrics(
    denoiser: RegisterDenoiser,
    registers: RegisterBank,
    objective: PriorObjective,
    *,
    condition: Condition | None = None,
    prompt: Condition | None = None,
    suffix: str,
) -> dict[str, float]:
    """Return how well a prior denoises registers, and how close drawn registers are to encoded ones."""
    drawing = Drawing(largest_offset=objective.largest_offset, time_shift=objective.time_shift)
    given = {"condition": condition, "prompt": prompt}
    denoise = partial(denoiser, **{name: value for name, value in given.items() if value is not None})
    metrics = _denoising_metrics(denoise, denoiser.standardise(registers), suffix)
    if len(registers) > NUM_NEIGHBOURS:
        prior, streams = replace(Prior.of(denoiser), denoiser=denoise), _streams(registers).at("draw")
        drawn, _ = draw_registers(prior, drawing, num_steps=NUM_DRAW_STEPS, streams=streams)
        metrics |= _drawing_metrics(drawn, registers, suffix)
    return metrics


def _denoising_metrics(denoise: Denoise, registers: RegisterBank, suffix: str) -> dict[str, float]:
    """Return the squared error of denoised registers, and its PSNR in decibels, at several times (App. E)."""
    metrics = {}
    for time, error in squared_error_by_time(denoise, registers, TIMES, streams=_streams(registers)).items():
        metrics[f"valid mse at time {time}{suffix}"] = error
        metrics[f"valid psnr at time {time}{suffix}"] = psnr(error)
    return metrics


def _drawing_metrics(drawn: RegisterBank, registers: RegisterBank, suffix: str) -> dict[str, float]:
    """Return PRDC between drawn and encoded registers, averaged over the registers (App. E).

    A perfect prior has values near 1. Coverage is the first to drop.
    """
    prdc = prdc_per_register(registers, drawn, nearest=NUM_NEIGHBOURS).mean._asdict()
    return {f"valid {name} of drawn registers{suffix}": value for name, value in prdc.items()}


def _streams(batch: torch.Tensor) -> Streams:
    return Streams.of("valid", samples=range(len(batch)), device=batch.device)
