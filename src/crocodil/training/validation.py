"""What a stage reports about held-out programs: always the same ones, under the same masks and noise."""

import torch

from crocodil.metrics.likelihood import Demask, demasking_accuracy
from crocodil.metrics.register_quality import prdc_per_register, psnr, squared_error_by_time
from crocodil.processes.gaussian import Denoise
from crocodil.processes.masking import Masked, mask_tokens
from crocodil.sampling.algorithms import draw_registers
from crocodil.sampling.configs import Drawing
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds

MASK_PROBS = (0.1, 0.5, 0.9, 1.0)
TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
NUM_DRAW_STEPS = 32
NEAREST = 5  # neighbours, of PRDC


def accuracy_by_mask_prob(demask: Demask, tokens: TokenIds, *, mask_id: int, suffix: str = "") -> dict[str, float]:
    """Cross-entropy and top-1 at the hidden positions."""
    found = {}
    for prob in MASK_PROBS:
        accuracy = demasking_accuracy(demask, tokens, prob, mask_id=mask_id, streams=_streams(tokens))
        found[f"valid cross-entropy at mask {prob}{suffix}"] = accuracy.cross_entropy
        found[f"valid top-1 at mask {prob}{suffix}"] = accuracy.top1
    return found


def half_hidden(tokens: TokenIds, *, mask_id: int) -> Masked:
    mask_prob = torch.full((len(tokens),), 0.5, device=tokens.device)
    return mask_tokens(tokens, mask_prob, mask_id=mask_id, streams=_streams(tokens).at("half"))


def denoising_by_time(denoise: Denoise, registers: RegisterBank, *, suffix: str = "") -> dict[str, float]:
    """How well noisy registers are seen through (App. E): squared error, and PSNR in decibel."""
    found = {}
    for time, error in squared_error_by_time(denoise, registers, TIMES, streams=_streams(registers)).items():
        found[f"valid mse at time {time}{suffix}"] = error
        found[f"valid psnr at time {time}{suffix}"] = psnr(error)
    return found


def gap_of_drawn(
    denoise: Denoise, registers: RegisterBank, drawing: Drawing, *, self_conditioned: bool, suffix: str = ""
) -> dict[str, float]:
    """How far drawn registers are from encoded ones: PRDC, register by register (App. E).

    All would be near 1 if the prior were perfect; coverage shows first that it is not.
    """
    if len(registers) <= NEAREST:
        return {}
    drawn, _ = draw_registers(
        denoise,
        drawing,
        shape=(registers.shape[1], registers.shape[2]),
        num_steps=NUM_DRAW_STEPS,
        self_conditioned=self_conditioned,
        streams=_streams(registers).at("draw"),
    )
    found = prdc_per_register(registers, drawn, nearest=NEAREST).mean._asdict()
    return {f"valid {name} of drawn registers{suffix}": value for name, value in found.items()}


def _streams(batch: torch.Tensor) -> Streams:
    return Streams.of("valid", samples=range(len(batch)), device=batch.device)
