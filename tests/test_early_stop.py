"""Draws that stop where their noise is the one that the demasker is given (decision D63)."""

import math
from dataclasses import replace

import pytest
import tiny
import torch

from crocodil.cli.exporting import _settings
from crocodil.objectives import PriorObjective
from crocodil.objectives.priors import diffuse, last_time
from crocodil.processes.gaussian import (
    add_noise,
    block_offsets,
    ddim_times,
    effective_time,
    last_base_time,
    signal_and_noise_level,
    time_of_noise,
)
from crocodil.processes.registers import block_index, normalise
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.early_stop import EarlyStop, least_noise_read, scale_of
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.training.run_config import Pretrained, RunSummary

STD, SHAPE = 0.75, (6, 64)
OFFSETS = block_offsets(block_index(6), largest=0.1)
POINTS = normalise(tiny.streams(4, "points").normal(*SHAPE))
MEAN, SCALE = 0.3 * tiny.streams(1, "mean").normal(*SHAPE), 0.4 + tiny.streams(1, "scale").uniform(*SHAPE)


class PointPrior:
    """The exact denoiser of a prior that has four banks, equally probable."""

    def __init__(self, points):
        self.points = points

    def __call__(self, noisy, time):
        signal, noise = (level[:, None, :, None] for level in signal_and_noise_level(time))
        distance = (noisy[:, None] - signal * self.points).square() / noise.square().clamp(min=1e-9)
        weights = (-distance.sum(dim=(2, 3)) / 2).softmax(dim=1)
        return torch.einsum("bp,pkd->bkd", weights, self.points)


@pytest.mark.parametrize(
    ("knobs", "standardised"),
    [
        ({}, False),
        ({"largest_offset": 0.0}, False),
        ({"eta": 1.0, "time_shift": 2.5}, False),
        ({"time_shift": 0.5}, True),
    ],
)
def test_a_draw_that_stops_early_is_distributed_like_a_complete_one_with_noise(knobs, standardised):
    units = {"unstandardise": lambda bank: bank * SCALE + MEAN} if standardised else {}
    denoiser = PointPrior((POINTS - MEAN) / SCALE if standardised else POINTS)
    drawing = Drawing(register_noise=STD, early_stop=True, **knobs)
    prior = Prior(denoiser, SHAPE, **units)
    drawn = draw_registers(prior, drawing, num_steps=24, streams=tiny.streams(200))
    difference = drawn.registers[:, None] - POINTS
    nearest = difference.square().sum(dim=(2, 3)).argmin(dim=1)
    noise = difference[torch.arange(200), nearest]
    assert torch.allclose(nearest.bincount(minlength=4) / 200, torch.tensor(0.25), atol=0.1)
    assert torch.allclose(noise.std(dim=(0, 2)), torch.tensor(STD), atol=0.02)  # of each register
    for wide in (False, True):
        assert noise[:, (SCALE[0] > 0.9) == wide].std().item() == pytest.approx(STD, abs=0.02)
    assert (noise * POINTS[nearest]).mean().abs() < 0.02


@pytest.mark.parametrize("num_steps", [1, 2, 16])
def test_few_steps_stop_at_the_length_of_noisy_registers(num_steps):
    """For z ~ N(0, I), a step of DDIM shortens z_s and changes nothing else."""
    drawing = Drawing(register_noise=STD, early_stop=True, largest_offset=0.0)
    streams = tiny.streams(3)
    prior = Prior(lambda noisy, time: signal_and_noise_level(time)[0][..., None] * noisy, SHAPE)
    drawn = draw_registers(prior, drawing, num_steps=num_steps, streams=streams)
    expected = normalise(streams.at("noise").normal(*SHAPE)) * math.sqrt(1 + STD**2)
    assert torch.allclose(drawn.registers, expected, atol=1e-4)
    assert drawn.cost == Cost(denoiser_calls=num_steps)


def test_all_steps_are_spent_above_the_noise_and_the_denoiser_sees_the_times_of_its_training():
    seen = []

    def jump(noisy, time, *, end_time):
        seen.append((time, end_time))
        return torch.zeros_like(noisy)

    drawing = Drawing(register_noise=STD, early_stop=True)
    prior = Prior(jump, SHAPE, flow_map=True)
    assert draw_registers(prior, drawing, num_steps=3, streams=tiny.streams(2)).cost == Cost(denoiser_calls=3)
    assert (seen[0][0] == 1).all()
    stop = time_of_noise(STD)
    assert torch.allclose(seen[-1][1], stop - 0.1 + OFFSETS)
    assert all((time[:, -1] > stop + 0.1).all() for time, _ in seen)


def test_without_noise_a_draw_ends_as_it_always_did():
    for shift in (1.0, 2.5):
        end = last_base_time(float(OFFSETS.max()), noise_std=0.0, shift=shift)
        assert ddim_times(7, OFFSETS, end=end) == ddim_times(7, OFFSETS)


@pytest.mark.parametrize("noise", [0.0, 1e8])
def test_a_stop_without_a_noise_level_is_refused_before_the_model_is_loaded(noise):
    with pytest.raises(
        ValueError, match="early_stop needs a register_noise above 0, at most 1000: there the draw"
    ):
        Drawing(early_stop=True, register_noise=noise)


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 1000.0])
def test_the_least_and_the_largest_noise_are_finite(noise):
    drawing = Drawing(register_noise=noise, early_stop=True)
    drawn = draw_registers(Prior(PointPrior(POINTS), SHAPE), drawing, num_steps=2, streams=tiny.streams(20))
    length = drawn.registers.square().mean().sqrt().item()
    assert length == pytest.approx(math.sqrt(1 + noise**2), rel=0.02)


def test_registers_with_noise_get_only_the_noise_that_they_lack_before_a_refresh():
    stop = EarlyStop.of(Drawing(register_noise=STD, early_stop=True), OFFSETS, torch.ones(1, *SHAPE))
    time, streams = torch.full((100, 6), 0.6), tiny.streams(100)
    replaced = POINTS[:1] + STD * streams.at("present").normal(*SHAPE)
    found = stop.noised(replaced, time, streams.at("fresh").normal(*SHAPE))
    clean = add_noise(POINTS[:1].expand(100, -1, -1), time, torch.zeros(100, *SHAPE))
    assert (found - clean).std().item() == pytest.approx(signal_and_noise_level(time)[1][0, 0].item(), rel=0.01)


def test_registers_of_a_standardised_prior_have_their_noise_in_its_units_before_a_refresh():
    stop = EarlyStop.of(Drawing(register_noise=STD, early_stop=True), OFFSETS, SCALE)
    time, streams = torch.full((2000, 6), 0.6), tiny.streams(2000)
    replaced = POINTS[:1] + STD / SCALE * streams.at("present").normal(*SHAPE)
    found = stop.noised(replaced, time, streams.at("fresh").normal(*SHAPE))
    clean = add_noise(POINTS[:1].expand(2000, -1, -1), time, torch.zeros(2000, *SHAPE))
    signal, noise = signal_and_noise_level(time)
    expected = torch.maximum(noise[0, 0], signal[0, 0] * STD / SCALE[0])  # no noise is taken away
    assert (expected > noise[0, 0]).any()
    assert torch.allclose((found - clean).std(dim=0), expected, rtol=0.1)


def test_the_scale_of_a_standardised_prior_does_not_depend_on_its_mean():
    assert torch.allclose(scale_of(lambda bank: bank * SCALE + MEAN, POINTS), SCALE, atol=1e-6)


@pytest.mark.parametrize("shift", [1.0, 2.0])
def test_a_prior_may_be_trained_only_at_the_times_of_draws_that_stop_early(shift):
    registers, streams = tiny.streams(4000, "registers").normal(*SHAPE), tiny.streams(4000)
    objective = PriorObjective(smallest_noise=STD, time_shift=shift)
    _, time = diffuse(registers, objective, streams)
    stop = EarlyStop.of(
        Drawing(register_noise=STD, early_stop=True, time_shift=shift), OFFSETS, torch.ones(1, *SHAPE)
    )
    last = effective_time(torch.tensor([stop.base_time]), OFFSETS, shift=shift)
    assert torch.allclose(time.amin(dim=0), last[0], atol=2e-3)
    assert (time >= last - 1e-6).all()
    assert time[:, -1].amin().item() == pytest.approx(time_of_noise(STD), abs=2e-3)
    _, all_times = diffuse(registers, replace(objective, smallest_noise=0.0), streams)
    assert (all_times.amin(dim=0) < 2e-3).all()


def test_a_bank_of_one_register_has_no_offset():
    assert last_time(1, PriorObjective(largest_offset=0.1), STD) == pytest.approx(time_of_noise(STD))


def test_a_model_stops_its_draws_where_the_training_of_its_prior_began():
    run = RunSummary(lengths=(64,), prior_objective=PriorObjective(smallest_noise=0.7), pretrained=Pretrained())
    stages = {"conditional": "conditional"}
    drawing = _settings(run, stages, {}).drawing
    assert (drawing.early_stop, drawing.register_noise) == (True, 0.7)
    assert _settings(run, stages, {"register_noise": 2.0}).drawing.register_noise == 2.0
    for knobs in ({"register_noise": 0.5}, {"early_stop": False}):
        with pytest.raises(ValueError, match=r"trained at noise 0.7 and above .*: use --early-stop and"):
            _settings(run, stages, knobs)
    few = {"register_noise": 0.5, "prior_steps": 4, "refresh_steps": 4}  # only the end of a draw has less noise
    assert _settings(run, stages, few).drawing.register_noise == 0.5
    without_refresh = {"prior": "prior"}
    assert _settings(run, without_refresh, few | {"refresh_steps": 32}).drawing.register_noise == 0.5


@pytest.mark.parametrize("knobs", [{"largest_offset": 0.1}, {"time_shift": 0.5}, {"refresh_from": 0.5}])
def test_no_step_of_a_draw_or_a_refresh_reads_less_noise_than_is_said(knobs):
    read = []

    def denoise(noisy, time):
        signal, noise = signal_and_noise_level(time)
        read.append((noise / signal).max().item())
        return torch.zeros_like(noisy)

    drawing = Drawing(prior_steps=4, refresh_steps=3, register_noise=0.5, early_stop=True, **knobs)
    prior, streams = Prior(denoise, SHAPE), tiny.streams(1)
    draw_registers(prior, drawing, num_steps=4, streams=streams)
    assert min(read) == pytest.approx(least_noise_read(drawing, refreshes=False), rel=1e-4)
    assert min(read) > 0.5
    draw_registers(prior, drawing, num_steps=3, replaced=POINTS[:1], streams=streams)
    assert len(read) == 7
    assert min(read) == pytest.approx(least_noise_read(drawing), rel=1e-4)
