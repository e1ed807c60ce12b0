"""The losses of a prior that is distilled by distribution matching (decision D80).

A student draws registers in a few steps. A step reads noisy registers and predicts clean ones; then fresh noise is
added, as much as the next step reads. So the predictions of a step never appear without noise, and it is enough
that they have the density of encoded registers *with the noise of the next step, or more*.

Two networks compare these densities. The teacher is the finished prior. The critic denoises like the teacher, but
learns from drawn registers. The difference of their predictions is a gradient of the KL divergence from drawn to
encoded registers (Yin et al., 2024, arXiv:2311.18828). The critic also learns to tell drawn from encoded ones,
which corrects errors of the teacher (Yin et al., 2024, arXiv:2405.14867).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from crocodil.objectives.demasking import Loss
from crocodil.objectives.distilled import DistilObjective
from crocodil.objectives.priors import PriorObjective, last_time, offsets_of
from crocodil.processes.gaussian import Denoise, add_noise, ddim_times, effective_time
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, RegisterBank, RegisterTime

_LATEST = 0.985  # later times are almost pure noise, and all registers look the same
_TOWARDS_LESS_NOISE = 1.5  # above 1: more of the compared times are close to the next step's
_CLASSIFIER_WEIGHT = 0.3
_SMALLEST = 1e-8


class Judged(NamedTuple):
    """The output of a critic."""

    prediction: RegisterBank  # of the clean registers, if these were drawn
    logits: PerSample  # above 0: encoded rather than drawn


Critic: TypeAlias = Callable[[RegisterBank, RegisterTime], Judged]


class DrawnSteps(NamedTuple):
    """All steps of a batch of draws: first the rows of the first step, then those of the second, and so on."""

    inputs: RegisterBank  # z_s that a step reads
    times: RegisterTime
    predictions: RegisterBank  # clean registers
    next_times: RegisterTime  # of the noise that is added to them


def match_times(
    registers: RegisterBank, objective: DistilObjective, prior_objective: PriorObjective
) -> list[RegisterTime]:
    """Return the times of the steps: those of a draw that stops early at `stop_noise` (decision D63)."""
    offsets, shift = offsets_of(registers, prior_objective), prior_objective.time_shift
    end = last_time(registers.shape[1], prior_objective, objective.stop_noise)
    times = ddim_times(objective.draw_steps, offsets, end=end)
    return [effective_time(registers.new_full((len(registers),), time), offsets, shift=shift) for time in times]


@torch.no_grad()
def draw_steps(
    student: Denoise, shape: Sequence[int], times: Sequence[RegisterTime], *, streams: Streams
) -> DrawnSteps:
    """Draw registers from pure noise, and return what each step reads and predicts."""
    noisy, inputs, predictions = streams.at("noise").normal(*shape), [], []
    for number, (time, next_time) in enumerate(pairwise(times)):
        inputs.append(noisy)
        predictions.append(student(noisy, time))
        noisy = add_noise(predictions[-1], next_time, streams.at("ddim", number).normal(*shape))
    parts = inputs, list(times[:-1]), predictions, list(times[1:])
    return DrawnSteps(*(torch.cat(part) for part in parts))


def critic_loss(critic: Critic, drawn: DrawnSteps, registers: RegisterBank, *, streams: Streams) -> Loss:
    """Train the critic: to denoise drawn registers, and to tell them from encoded ones with the same noise."""
    time = _compared_times(drawn, streams.at("time"))
    encoded = registers.repeat(len(time) // len(registers), 1, 1)
    judged = critic(add_noise(drawn.predictions, time, _noise(drawn, streams.at("noise"))), time)
    logits = critic(add_noise(encoded, time, _noise(drawn, streams.at("encoded"))), time).logits
    classified = F.softplus(judged.logits).mean() + F.softplus(-logits).mean()
    return F.mse_loss(judged.prediction, drawn.predictions) + _CLASSIFIER_WEIGHT * classified


def matching_loss(
    student: Denoise, teacher: Denoise, critic: Critic, drawn: DrawnSteps, *, real_weight: float, streams: Streams
) -> Loss:
    """Train the student. Its predictions move against `_direction`; the value is half the mean square of that."""
    time = _compared_times(drawn, streams.at("time"))
    clean = student(drawn.inputs, drawn.times)
    noise = _noise(drawn, streams.at("noise"))
    direction = _direction(clean.detach(), teacher, critic, time, noise, real_weight=real_weight)
    return F.mse_loss(clean, clean.detach() - direction) / 2


@torch.enable_grad()
def _direction(
    clean: RegisterBank,
    teacher: Denoise,
    critic: Critic,
    time: RegisterTime,
    noise: RegisterBank,
    *,
    real_weight: float,
) -> RegisterBank:
    """Return the direction in which registers look more like drawn ones than like encoded ones.

    It is a sum. The first part is the difference of critic and teacher, in units of the teacher's error
    (arXiv:2311.18828, Eqs. 7-8). The second is the gradient of the critic's classifier; over the batch, its norm
    is `real_weight` times that of the first.
    """
    clean = clean.requires_grad_()
    noisy = add_noise(clean, time, noise)
    judged = critic(noisy, time)
    (slope,) = torch.autograd.grad(F.softplus(-judged.logits).sum(), clean)
    with torch.no_grad():
        predicted = teacher(noisy, time)
        error = (clean - predicted).abs().mean(dim=(1, 2), keepdim=True)
        difference = (judged.prediction - predicted) / error.clamp(min=_SMALLEST)
        ratio = difference.norm() / slope.norm().clamp(min=_SMALLEST)
        return difference + real_weight * ratio * slope


def _compared_times(drawn: DrawnSteps, streams: Streams) -> RegisterTime:
    """Sample the times at which densities are compared: from the next step's to almost pure noise."""
    share = _by_step(drawn, streams, lambda step: step.uniform()) ** _TOWARDS_LESS_NOISE
    return torch.lerp(drawn.next_times, drawn.next_times.clamp(min=_LATEST), share[:, None])


def _noise(drawn: DrawnSteps, streams: Streams) -> RegisterBank:
    return _by_step(drawn, streams, lambda step: step.normal(*drawn.inputs.shape[1:]))


def _by_step(drawn: DrawnSteps, streams: Streams, sample: Callable[[Streams], Tensor]) -> Tensor:
    """Sample for all rows: each step has its own random numbers."""
    num_steps = len(drawn.times) // len(streams.keys)
    return torch.cat([sample(streams.at("step", number)) for number in range(num_steps)])
