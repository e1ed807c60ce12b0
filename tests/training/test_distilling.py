"""Distillation of a prior into a flow map: exact where the flow is known (decisions D51 and D52)."""

from dataclasses import replace

import pytest
import tiny
import torch
from torch import nn

from crocodil.cli.exporting import _settings
from crocodil.models.denoiser_starts import flow_map_of
from crocodil.objectives import DistilObjective, PriorObjective, distilled_loss
from crocodil.processes.gaussian import (
    Denoised,
    add_noise,
    block_offsets,
    ddim,
    ddim_step,
    ddim_times,
    first_part,
    register_times_at,
    signal_and_noise_level,
)
from crocodil.processes.registers import block_index
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.guidance import FlowMap
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.seeding import generator_for
from crocodil.training.distilling import Teacher
from crocodil.training.run_config import Pretrained, RunSummary

MEAN, STD = torch.tensor([[0.5, -0.3], [0.1, 0.0]]), torch.tensor([[0.3, 1.2], [0.8, 0.5]])


class GaussianPrior:
    """Independent Gaussian coordinates: prediction and flow are known."""

    width = 2

    def __call__(self, noisy, time):
        signal, noise = levels(time)
        return MEAN + signal * STD**2 / (signal**2 * STD**2 + noise**2) * (noisy - signal * MEAN)

    def flow(self, noisy, time, end):
        """A coordinate keeps its place in standard deviations."""
        (signal, noise), (end_signal, end_noise) = levels(time), levels(end)
        spread = ((end_signal**2 * STD**2 + end_noise**2) / (signal**2 * STD**2 + noise**2)).sqrt()
        return end_signal * MEAN + spread * (noisy - signal * MEAN)

    def data(self, streams):
        return MEAN + STD * streams.at("data").normal(2, 2)


class TwoPointPrior:
    """Every coordinate is -1 or 1: pure noise flows to its sign."""

    width = 1

    def __call__(self, noisy, time):
        signal, noise = levels(time)
        return torch.tanh(signal * noisy / noise.clamp(min=1e-3) ** 2)

    def flow(self, noise, time, end):
        assert not end.any()
        return noise.sign()

    def data(self, streams):
        return streams.at("data").normal(2, 1).sign()


def levels(time):
    return tuple(level[..., None] for level in signal_and_noise_level(time))


def test_two_steps_are_one_step_with_a_weighted_mean_of_their_predictions():
    noisy, first, second = (tiny.streams(4, name).normal(3, 2) for name in ("noisy", "first", "second"))
    times = tiny.streams(4, "times").uniform(3, 3).sort(dim=1, descending=True).values
    times[:, 2, 0] = 0  # ends clean
    times[0, 1], times[1, 0], times[2, 1:] = times[0, 0], times[1, 1], 0  # registers that one step does not move
    time, middle, end = times.unbind(dim=1)
    two = ddim_step(ddim_step(noisy, first, time, middle), second, middle, end)
    joined = second.lerp(first, first_part(time, middle, end)[..., None])
    assert torch.allclose(ddim_step(noisy, joined, time, end), two, atol=1e-5)


def test_the_exact_flow_map_is_what_the_loss_asks_for():
    """Its loss is the error of the teacher's short steps, far below that of the teacher as its own student."""
    prior, streams = GaussianPrior(), tiny.streams(200)
    objective = DistilObjective(teacher_steps=200, same_time_rate=0.0)

    def exact(noisy, time, end_time):
        """The prediction with which a DDIM step ends where the flow does."""
        (signal, noise), (end_signal, end_noise) = levels(time), levels(end_time)
        whole = end_signal * noise - signal * end_noise
        reached = prior.flow(noisy, time, end_time) * noise - end_noise * noisy
        return (reached / whole.where(whole > 1e-4, 1)).where(whole > 1e-4, prior(noisy, time))

    def loss(student):
        kinds = {"objective": objective, "prior_objective": PriorObjective()}
        return distilled_loss(student, prior, prior.data(streams), streams=streams, **kinds).item()

    assert loss(exact) < loss(lambda noisy, time, end_time: prior(noisy, time)) / 300


def test_jumps_of_no_length_and_jumps_to_clean_registers_have_their_rates():
    prior, streams, jumps = GaussianPrior(), tiny.streams(2000), []

    def student(noisy, time, end_time):
        jumps.append((time[:, 0], end_time[:, 0]))
        return noisy

    objective = DistilObjective(same_time_rate=0.3, to_clean_rate=0.2)
    kinds = {"objective": objective, "prior_objective": PriorObjective(largest_offset=0.0)}
    distilled_loss(student, prior, prior.data(streams), streams=streams, **kinds)
    time, end = jumps[-1]
    assert (end == time).float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert (end == 0).float().mean().item() == pytest.approx(0.2, abs=0.03)


def test_jumps_start_at_draws_of_the_student_at_their_rate_and_end_after_all_steps_of_the_teacher():
    prior, streams, jumps, steps = GaussianPrior(), tiny.streams(1000), [], []

    def student(noisy, time, end_time):
        jumps.append((noisy, time))
        return torch.full_like(noisy, 5.0)

    def teacher(noisy, time):
        steps.append(time)
        return prior(noisy, time)

    objective, registers = DistilObjective(own_rate=0.4, teacher_calls=3), prior.data(streams)
    distilled_loss(
        student, teacher, registers, objective=objective, prior_objective=PriorObjective(), streams=streams
    )
    assert (len(steps), len(jumps)) == (3, 3)  # the draw from pure noise, the rest of the target, and the jump
    assert (steps[0] - steps[1]).max().item() == pytest.approx(1.1 / 32, rel=1e-3)  # 32 steps from 1 to -0.1
    noisy, time = jumps[-1]
    drawn, noised = (
        add_noise(clean, time, streams.at("noise").normal(2, 2))
        for clean in (torch.full_like(registers, 5.0), registers)
    )
    is_own = torch.isclose(noisy, drawn, atol=1e-4).all(dim=(1, 2))
    assert is_own.float().mean().item() == pytest.approx(0.4, abs=0.05)
    assert torch.allclose(noisy[~is_own], noised[~is_own])


class Student(nn.Module):
    """A small network that begins as its teacher."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher
        self.net = nn.Sequential(
            nn.Linear(4 * teacher.width + 4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
            nn.Linear(64, teacher.width),
        )  # fmt: skip
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, noisy, time, end_time):
        first = self.teacher(noisy, time)
        known = [noisy, first, torch.tanh(4 * noisy), torch.tanh(16 * noisy), *levels(time), *levels(end_time)]
        return first + self.net(torch.cat(known, dim=-1))


@pytest.mark.parametrize("prior", [GaussianPrior(), TwoPointPrior()], ids=lambda prior: type(prior).__name__)
def test_a_distilled_prior_draws_in_four_steps_what_the_exact_flow_gives(prior):
    torch.manual_seed(0)
    student = Student(prior)
    kinds = {
        "objective": DistilObjective(teacher_steps=16, same_time_rate=0.1, own_rate=0.0),
        "prior_objective": PriorObjective(),
    }
    tiny.overfit(
        lambda streams: distilled_loss(student, prior, prior.data(streams), streams=streams, **kinds),
        student,
        steps=50,
        count=256,
    )
    noise, offsets = tiny.streams(300, "noise").normal(2, prior.width), block_offsets(block_index(2), largest=0.1)
    exact = prior.flow(noise, torch.ones(300, 2), torch.zeros(300, 2))

    def error(denoise):
        with torch.no_grad():
            drawn = ddim(denoise, noise, register_times_at(ddim_times(4, offsets), offsets))
        return (drawn - exact).square().mean().sqrt()

    assert error(FlowMap(student)) < 0.1
    assert error(lambda noisy, time, _, last: Denoised(prior(noisy, time), last)) > 0.18


# ---------------------------------------------------------------- the network, and draws from it


def test_a_student_begins_as_its_teacher_whatever_the_end_time():
    teacher = tiny.denoiser(replace(tiny.CONDITIONAL, self_conditioned=True, standardised=True))
    teacher.statistics.add_(0.5)
    student, noisy, time = flow_map_of(teacher, generator_for("student")), tiny.bank(3), torch.rand(3, 6)
    condition = tiny.bank(3).flip(0)
    with torch.no_grad():
        expected = teacher(noisy, time, condition=condition)
        for end_time in (None, time, 0.3 * time):
            assert torch.equal(student(noisy, time, end_time=end_time, condition=condition), expected)
    assert torch.equal(student.statistics, teacher.statistics)
    assert not student.config.self_conditioned
    with pytest.raises(ValueError, match="no flow map: call it without end_time"):
        teacher(noisy, time, end_time=time)
    with pytest.raises(ValueError, match="is not self_conditioned: one step is one call"):
        replace(student.config, self_conditioned=True)


def test_a_distilled_prior_takes_one_call_per_step_to_the_time_that_the_step_goes_to():
    student, seen = flow_map_of(tiny.denoiser(), generator_for("student")), []
    student.register_forward_pre_hook(
        lambda _, args, options: seen.append((args[1], options["end_time"])), with_kwargs=True
    )
    prior, options = Prior.of(student), {"num_steps": 3, "streams": tiny.streams(2)}
    drawn = draw_registers(prior, Drawing(), **options)
    assert drawn.cost == Cost(denoiser_calls=3)
    (first, second), (third, fourth), (fifth, last) = seen
    assert first.min() == 1
    assert torch.equal(second, third)
    assert torch.equal(fourth, fifth)
    assert last.max() == 0
    for knobs in ({"eta": 1.0}, {"pag_scale": 2.0}, {"self_cond_scale": 2.0}, {"autoguidance": 2.0}):
        with pytest.raises(ValueError, match="distilled, with its guidance inside: use eta 0, pag_scale 0"):
            draw_registers(prior, Drawing(**knobs), **options)


def test_the_flow_of_a_teacher_has_its_guidance_and_a_guess_from_the_same_point():
    """Decision D52."""
    config = replace(tiny.CONDITIONAL, self_conditioned=True)
    denoiser, weak = tiny.denoiser(config), tiny.denoiser(replace(config, num_layers=1))
    noisy, time, condition = tiny.bank(3), torch.full((3, 6), 0.6), tiny.bank(3).flip(0)
    objective = DistilObjective(pag_scale=1.5, self_cond_scale=2.0, autoguidance=3.0)
    keep = torch.tensor([True, True, False])
    given = {"condition": condition, "keep_condition": keep}
    with torch.no_grad():
        guess = denoiser(noisy, time, **given)
        plain = denoiser(noisy, time, guess=guess, **given)
        alone = denoiser(noisy, time, guess=guess, identity_attention=torch.ones(3, dtype=torch.bool), **given)
        weaker = weak(noisy, time, guess=guess, **given)
        found = Teacher(denoiser, objective, weak).given(condition, keep)(noisy, time)
    expected = plain + 1.5 * (plain - alone) + (plain - guess) + 2 * (plain - weaker)
    assert torch.allclose(found, expected, atol=1e-4)


def test_an_exported_model_draws_in_few_steps_from_students_only():
    objective = DistilObjective(teachers=("prior",), draw_steps=2)
    run = RunSummary(
        lengths=(64,), prior_objective=PriorObjective(), pretrained=Pretrained(), distil_objective=objective
    )
    drawing = _settings(run, {"prior": "distilled", "conditional": "conditional"}, {}).drawing
    assert (drawing.prior_steps, drawing.refresh_steps) == (2, 32)
    drawing = _settings(run, {"conditional": "distilled"}, {}).drawing
    assert (drawing.prior_steps, drawing.refresh_steps) == (2, 2)
