"""The loss that distils a prior into a flow map (decisions D51 and D52)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F

from crocodil.objectives.demasking import Loss
from crocodil.objectives.priors import PriorObjective, offsets_of
from crocodil.processes.gaussian import (
    Denoise,
    Offsets,
    add_noise,
    ddim_step,
    effective_time,
    first_part,
    sample_base_time,
)
from crocodil.runtime.config import Guidance, PagScale, Positive, Share, Steps, config
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, RegisterBank, RegisterTime

# A flow map: (z_t, t, end time) -> the prediction with which a DDIM step ends where the flow does
Jump: TypeAlias = Callable[[RegisterBank, RegisterTime, RegisterTime], RegisterBank]


@config
class DistilObjective:
    """Options of stage distilled (decisions D51 and D52, and D80 for distribution matching)."""

    teachers: tuple[Literal["prior", "conditional"], ...] = ("prior", "conditional")  # which are distilled
    draw_steps: Steps = 4  # default number of steps per draw of the exported model
    teacher_steps: Steps = 32  # a step of the teacher is 1 / teacher_steps of the way from noise to clean
    teacher_calls: Steps = 4  # teacher steps in the target of a jump; the student's own jump covers the rest
    pag_scale: PagScale = 0.0  # guidance of the teacher, which the student learns: D33,
    self_cond_scale: Guidance = 1.0  # D42,
    autoguidance: Guidance = 1.0  # and D43
    same_time_rate: Share = 0.25  # how often a jump has length 0: its target is the teacher's prediction
    to_clean_rate: Share = 0.25  # how often a jump ends at clean registers
    own_rate: Share = 0.5  # how often a jump starts at what the student drew from pure noise, not at a noised text
    by_matching: bool = False  # train by distribution matching instead, without jumps (D80)
    stop_noise: Positive = 1.0  # in matching: draws stop at registers with this noise
    real_weight: Positive = 1.0  # in matching: how much encoded registers count, relative to the teacher
    critic_steps: Steps = 2  # in matching: training steps of the critic for each one of the student,
    student_rate: Positive = 0.6  # and the student's learning rate relative to the critic's

    def __post_init__(self) -> None:
        if not self.teachers or len(set(self.teachers)) < len(self.teachers):
            raise ValueError("teachers should be prior, conditional, or each of them once")

    @property
    def guiding_calls(self) -> int:
        """The number of extra predictions that guidance adds to each step of the teacher."""
        return (self.pag_scale != 0) + (self.self_cond_scale != 1) + (self.autoguidance != 1)


def distilled_loss(
    student: Jump,
    teacher: Denoise,
    registers: RegisterBank,
    *,
    objective: DistilObjective,
    prior_objective: PriorObjective,
    streams: Streams,
) -> Loss:
    """Distillation into a flow map: the student jumps from z_t to where the teacher's flow is at an earlier time.

    The target joins a few DDIM steps of the teacher and the student's own jump over the rest (Kim et al., 2023,
    arXiv:2310.02279, Eq. 9; with end time 0 and one step, Song et al., 2023, arXiv:2303.01469). Registers are in
    the prior's units.
    """
    offsets = offsets_of(registers, prior_objective)
    base_times = _jump_times(offsets, objective, streams)
    times = [effective_time(base, offsets, shift=prior_objective.time_shift) for base in base_times]
    time, end = times[0], times[-1]
    noise = streams.at("noise").normal(*registers.shape[1:])
    noisy_registers = add_noise(registers, time, noise)
    with torch.no_grad():
        if objective.own_rate:
            noise_time = torch.ones_like(time)
            drawn = ddim_step(noise, student(noise, noise_time, time), noise_time, time)
            starts_at_draw = streams.at("own").uniform() < objective.own_rate
            noisy_registers = torch.where(starts_at_draw[:, None, None], drawn, noisy_registers)
        target, stepped = torch.zeros_like(noise), noisy_registers
        for number, (now, then) in enumerate(pairwise(times)):
            is_rest = number == objective.teacher_calls
            predicted = student(stepped, now, then) if is_rest else teacher(stepped, now)
            target = predicted.lerp(target, first_part(time, now, then)[..., None]) if number else predicted
            stepped = ddim_step(stepped, predicted, now, then)
    return F.mse_loss(student(noisy_registers, time, end), target)


def _jump_times(offsets: Offsets, objective: DistilObjective, streams: Streams) -> list[PerSample]:
    """Sample base times: where a jump starts, where each step of the teacher ends, and where the jump ends."""
    clean = -offsets.max()
    start = sample_base_time(offsets, streams=streams.at("time"))
    share, kind = streams.at("end").uniform(), streams.at("kind").uniform()
    share = share.masked_fill(kind < objective.same_time_rate + objective.to_clean_rate, 0.0)
    share = share.masked_fill(kind < objective.same_time_rate, 1.0)
    end = clean + share * (start - clean)
    step = (1 - clean) / objective.teacher_steps
    return [torch.maximum(start - number * step, end) for number in range(objective.teacher_calls + 1)] + [end]
