"""Distillation of a prior by distribution matching (decision D80)."""

import math
from dataclasses import replace

import pytest
import tiny
import torch

from crocodil.models.denoiser_starts import fresh_noise_copy_of
from crocodil.models.register_critic import RegisterCritic
from crocodil.objectives import (
    DistilObjective,
    Judged,
    PriorObjective,
    critic_loss,
    draw_steps,
    match_times,
    matching_loss,
)
from crocodil.processes.gaussian import (
    Denoised,
    add_noise,
    ddim,
    ddim_step,
    register_times_at,
    signal_and_noise_level,
)
from crocodil.sampling.configs import Drawing
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.seeding import generator_for
from crocodil.training.loop import Phase, Turn, turn_at

STOP = 0.5
OBJECTIVE = DistilObjective(by_matching=True, draw_steps=2, stop_noise=STOP)
WITHOUT_OFFSETS = PriorObjective(largest_offset=0.0)


def levels(time):
    return tuple(level[..., None] for level in signal_and_noise_level(time))


def two_points(noisy, time, middle=0.0):
    """The exact denoiser of registers whose numbers are `middle` - 1 or `middle` + 1."""
    signal, noise = levels(time)
    return middle + torch.tanh(signal * (noisy - signal * middle) / noise**2)


def density(noisy, time, middle):
    """The log density of such registers with noise, but for a constant."""
    signal, noise = levels(time)
    parts = [-((noisy - signal * (middle + point)) ** 2) / (2 * noise**2) for point in (-1.0, 1.0)]
    return torch.logaddexp(*parts).sum(dim=(1, 2))


def exact_critic(noisy, time, middle, error=0.0):
    """The best critic of registers around `middle`, where encoded ones are around 0; or a worse one."""
    ratio = density(noisy, time, 0.0) - density(noisy, time, middle)
    return Judged(two_points(noisy, time, middle) + error, ratio + 5 * error)


def points(streams):
    return streams.at("data").normal(2, 1).sign()


def drawn_around(middle, count=200):
    """The steps of a student that predicts, in every step, registers around `middle`."""
    registers, streams = points(tiny.streams(count)), tiny.streams(count)
    times = match_times(registers, OBJECTIVE, WITHOUT_OFFSETS)
    return draw_steps(
        lambda noisy, time: noisy.sign() + middle, registers.shape[1:], times, streams=streams
    ), registers


# ---------------------------------------------------------------- the losses


def test_the_best_critic_has_the_smallest_loss():
    drawn, registers = drawn_around(0.4)
    best, *others = (
        critic_loss(
            lambda *noisy, error=error: exact_critic(*noisy, 0.4, error),
            drawn,
            registers,
            streams=tiny.streams(200),
        )
        for error in (0.0, 0.3, -0.3)
    )
    assert best < min(others) - 0.05


def test_a_critic_also_learns_to_tell_drawn_registers_from_encoded_ones():
    drawn, registers = drawn_around(0.4)

    def critic(shift):
        def judge(*noisy):
            best = exact_critic(*noisy, 0.4)
            return best._replace(logits=best.logits + shift)

        return judge

    best, *others = (
        critic_loss(critic(shift), drawn, registers, streams=tiny.streams(200)).item()
        for shift in (0.0, 1.5, -1.5)
    )
    assert best < min(others) - 0.01


def test_densities_are_compared_more_often_close_to_the_noise_of_the_next_step():
    drawn, registers = drawn_around(0.4, count=1000)
    seen = []

    def critic(noisy, time):
        seen.append(time)
        return exact_critic(noisy, time, 0.4)

    critic_loss(critic, drawn, registers, streams=tiny.streams(1000))
    share = (seen[0] - drawn.next_times) / (0.985 - drawn.next_times)
    assert share.min() >= 0
    assert share.max() <= 1
    assert share.mean().item() == pytest.approx(0.4, abs=0.03)  # 0.5 without preference
    assert not torch.allclose(share[:1000], share[1000:], atol=1e-3)  # each step has its own


@pytest.mark.parametrize("real_weight", [1e-3, 10.0])
def test_a_student_that_draws_beside_the_data_is_moved_towards_it(real_weight):
    """Both parts of the gradient point there: that of the denoisers, and that of the classifier."""
    drawn, _ = drawn_around(0.4)
    middle = torch.tensor(0.4, requires_grad=True)
    loss = matching_loss(
        lambda noisy, time: noisy.sign() + middle,
        two_points,
        lambda *noisy: exact_critic(*noisy, 0.4),
        drawn,
        real_weight=real_weight,
        streams=tiny.streams(200),
    )
    loss.backward()
    assert middle.grad > 0.1 * (1 + real_weight) / 2


def test_a_student_that_draws_the_data_stays():
    drawn, _ = drawn_around(0.0)
    options = {"real_weight": 1.0, "streams": tiny.streams(200)}
    loss = matching_loss(
        lambda noisy, time: noisy.sign(), two_points, lambda *noisy: exact_critic(*noisy, 0.0), drawn, **options
    )
    assert loss < 1e-9


@pytest.mark.parametrize("real_weight", [1e-3, 1.0])
def test_with_the_best_critic_a_student_finds_the_data(real_weight):
    middle = torch.tensor(0.8, requires_grad=True)
    optimiser = torch.optim.SGD([middle], lr=0.3)

    def student(noisy, time):
        return noisy.sign() + middle

    def critic(noisy, time):
        return exact_critic(noisy, time, middle.detach())

    for step in range(25):
        drawn, streams = drawn_around(middle.item(), count=50)[0], tiny.streams(50, "step", step)
        optimiser.zero_grad()
        matching_loss(student, two_points, critic, drawn, real_weight=real_weight, streams=streams).backward()
        optimiser.step()
    assert middle.abs() < 0.1


# ---------------------------------------------------------------- the networks, and draws from them


def test_a_student_and_its_critic_begin_as_the_teacher():
    teacher = tiny.denoiser(tiny.CONDITIONAL)
    student = fresh_noise_copy_of(teacher, generator_for("student"))
    critic = RegisterCritic(student).init_classifier(generator_for("critic"))
    noisy, time, given = tiny.bank(3), torch.rand(3, 6), {"condition": tiny.bank(3).flip(0)}
    with torch.no_grad():
        expected = teacher(noisy, time, **given)
        assert torch.equal(student(noisy, time, **given), expected)
        predicted, logits = critic(noisy, time, **given)
    assert torch.equal(predicted, expected)
    assert torch.equal(logits, torch.zeros(3))
    with pytest.raises(ValueError, match="distilled in one of two ways"):
        replace(student.config, flow_map=True)


def test_all_noise_of_every_step_of_a_draw_is_fresh_as_in_training():
    """Two steps cannot tell: after pure noise, ancestral sampling has no old noise either."""
    student, streams = fresh_noise_copy_of(tiny.denoiser(), generator_for("student")), tiny.streams(3)
    times = match_times(torch.zeros(3, 6, 16), replace(OBJECTIVE, draw_steps=4), PriorObjective())
    steps = draw_steps(student, (6, 16), times, streams=streams)
    drawing, seen = Drawing(early_stop=True, register_noise=STOP, largest_offset=0.1), []
    student.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    draw_registers(Prior.of(student), drawing, num_steps=4, streams=streams)
    assert torch.allclose(steps.inputs, torch.cat(seen), atol=1e-6)


def test_the_steps_of_training_are_those_of_a_draw():
    student, streams = fresh_noise_copy_of(tiny.denoiser(), generator_for("student")), tiny.streams(3)
    times = match_times(torch.zeros(3, 6, 16), OBJECTIVE, PriorObjective())
    steps = draw_steps(student, (6, 16), times, streams=streams)
    drawing = Drawing(early_stop=True, register_noise=STOP, largest_offset=0.1)
    seen = []
    student.register_forward_pre_hook(lambda _, args: seen.append(args))
    draw_registers(Prior.of(student), drawing, num_steps=2, streams=streams)
    assert torch.allclose(steps.inputs, torch.cat([noisy for noisy, _ in seen]), atol=1e-6)
    assert torch.allclose(steps.times, torch.cat([time for _, time in seen]), atol=1e-6)
    assert torch.equal(steps.times[3:], steps.next_times[:3])
    noise = (1 / signal_and_noise_level(steps.next_times)[0] ** 2 - 1).sqrt()
    assert noise[3:].max().item() == pytest.approx(STOP, rel=1e-3)
    with pytest.raises(ValueError, match="distilled, with its guidance inside: use eta 0"):
        draw_registers(Prior.of(student), replace(drawing, eta=1.0), num_steps=2, streams=streams)


def test_a_step_with_fresh_noise_forgets_the_noise_before():
    clean, fresh, time, end = tiny.bank(2), tiny.bank(2).flip(0), torch.full((2, 6), 0.8), torch.full((2, 6), 0.3)
    end[0, 0] = 0.8  # this register does not move
    noisy = [tiny.streams(2, name).normal(6, 16) for name in ("one", "two")]
    one, two = (ddim_step(bank, clean, time, end, eta=math.inf, fresh=fresh) for bank in noisy)
    moved = end < time
    assert torch.equal(one[moved], two[moved])
    assert torch.equal(one[moved], add_noise(clean, end, fresh)[moved])
    assert torch.equal(one[0, 0], noisy[0][0, 0])
    drawn = ddim(
        lambda noisy, *_: Denoised(clean, clean), noisy[0], register_times_at([1.0, 0.0], torch.zeros(6)),
        eta=math.inf, streams=tiny.streams(2),
    )  # fmt: skip
    assert torch.equal(drawn, clean)


def test_groups_are_trained_in_turn():
    turns = Turn(frozenset("a")), Turn(frozenset("b"), rate=0.5)
    phase = Phase(math.inf, frozenset("ab"), in_turn=turns)
    assert [turn_at(step, [phase]) for step in range(3)] == [turns[0], turns[1], turns[0]]
