import pytest
import tiny
import torch

from crocodil.processes.gaussian import (
    Denoised,
    add_noise,
    block_offsets,
    ddim,
    ddim_step,
    ddim_times,
    effective_time,
    register_times_at,
    sample_base_time,
    shifted_time,
    signal_and_noise_level,
)
from crocodil.processes.registers import block_index

NO_OFFSETS = torch.zeros(8)
OFFSETS = block_offsets(block_index(8), largest=0.1)


def sampled(denoise, noisy_registers, times, *, offsets, shift=1.0, stops_early=False, **options):
    """DDIM with a denoiser that has neither guidance nor self-conditioning."""

    def denoise_again(noisy, time, next_time, last_prediction):
        clean = denoise(noisy, time)
        return Denoised(clean, clean)

    register_times = register_times_at(times, offsets, shift=shift, stops_early=stops_early)
    return ddim(denoise_again, noisy_registers, register_times, **options)


def bank(count=4):
    return tiny.streams(count, "clean").normal(8, 16), tiny.streams(count, "noise").normal(8, 16)


def test_signal_and_noise_share_unit_power_from_clean_to_pure_noise():
    time = torch.linspace(0, 1, 1001)[None]
    signal, noise = signal_and_noise_level(time)
    assert torch.allclose(signal**2 + noise**2, torch.ones(1), atol=1e-6)
    assert (signal[0, 0], noise[0, 0]) == (1, 0)
    assert signal[0, -1] < 1e-6
    assert noise[0, -1] == pytest.approx(1)
    assert (signal.diff() < 0).all()
    assert (noise.diff() > 0).all()


def test_noise_levels_are_exact_close_to_time_zero():
    time = torch.tensor([[1e-6, 1e-4, 1e-2]])
    _, noise = signal_and_noise_level(time)
    _, exact = signal_and_noise_level(time.double())
    assert torch.allclose(noise.double(), exact, rtol=1e-5)


def test_offsets_rise_linearly_from_block_to_block():
    assert torch.allclose(OFFSETS, 0.1 / 3 * torch.tensor([0.0, 1, 2, 2, 3, 3, 3, 3]))
    assert block_offsets(block_index(1), largest=0.1).tolist() == [0]


def test_later_blocks_are_never_less_noisy_and_every_block_sees_the_whole_range():
    base = sample_base_time(OFFSETS, streams=tiny.streams(20_000))
    time = effective_time(base, OFFSETS)
    assert (time.diff(dim=1) >= 0).all()
    for register in time.T:
        assert torch.histc(register, bins=10, min=0, max=1).min() > 1500
    inside = (time > 0).all(dim=1) & (time < 1).all(dim=1)
    assert torch.allclose(time[inside].diff(dim=1), OFFSETS.diff().expand(int(inside.sum()), -1), atol=1e-6)


def test_a_shift_keeps_both_ends_and_the_order_of_times_and_its_inverse_undoes_it():
    time = torch.linspace(0, 1, 101)[None]
    assert torch.equal(shifted_time(time, shift=1.0), time)
    noisier = shifted_time(time, shift=3.0)
    assert (noisier[0, 0], noisier[0, -1]) == (0, 1)
    assert (noisier.diff() > 0).all()
    assert noisier[0, 50].item() == pytest.approx(0.75)
    assert torch.allclose(shifted_time(noisier, shift=1 / 3), time, atol=1e-6)
    with pytest.raises(ValueError, match="time_shift must be positive"):
        shifted_time(time, shift=0.0)


def test_later_blocks_stay_the_noisier_ones_under_a_shift():
    base = sample_base_time(OFFSETS, streams=tiny.streams(1000))
    time = effective_time(base, OFFSETS, shift=0.4)
    assert (time.diff(dim=1) >= 0).all()
    assert time.mean() < effective_time(base, OFFSETS).mean() - 0.1


@pytest.mark.parametrize("offsets", [NO_OFFSETS, OFFSETS])
@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("num_steps", [1, 2, 32])
def test_a_perfect_denoiser_makes_ddim_exact(offsets, eta, num_steps):
    clean, noise = bank()
    found = sampled(
        lambda noisy, time: clean, noise, ddim_times(num_steps, offsets),
        offsets=offsets, eta=eta, streams=tiny.streams(4),
    )  # fmt: skip
    assert torch.equal(found, clean)


def test_any_falling_subset_of_steps_ends_at_the_same_place():
    clean, noise = bank()
    found = sampled(lambda noisy, time: clean, noise, [1.0, 0.83, 0.2, -0.05, -0.1], offsets=OFFSETS)
    assert torch.equal(found, clean)


@pytest.mark.parametrize("offsets", [NO_OFFSETS, OFFSETS])
def test_with_a_perfect_denoiser_ddim_walks_the_forward_path(offsets):
    clean, noise = bank()
    seen = []

    def denoise(noisy, time):
        seen.append((noisy, time))
        return clean

    sampled(denoise, noise, ddim_times(16, offsets), offsets=offsets)
    for noisy, time in seen:
        assert torch.allclose(noisy, add_noise(clean, time, noise), atol=2e-5)


def test_registers_that_are_clean_are_held_while_others_still_move():
    clean, noise = bank()
    time, next_time = torch.tensor([[0.0] * 4 + [0.05] * 4]), torch.tensor([[0.0] * 8])
    wrong = clean + 1
    for eta in (0.0, 1.0):
        found = ddim_step(clean[:1], wrong[:1], time, next_time, eta=eta, fresh=noise[:1])
        assert torch.equal(found[:, :4], clean[:1, :4])
        assert torch.equal(found[:, 4:], wrong[:1, 4:])


def test_ancestral_steps_keep_the_noise_level_of_the_schedule():
    clean = torch.zeros(200, 8, 16)
    time, next_time = torch.full((200, 8), 0.7), torch.full((200, 8), 0.4)
    noisy = add_noise(clean, time, tiny.streams(200, "a").normal(8, 16))
    fresh = tiny.streams(200, "b").normal(8, 16)
    stepped = ddim_step(noisy, clean, time, next_time, eta=1.0, fresh=fresh)
    _, expected = signal_and_noise_level(next_time)
    assert stepped.std().item() == pytest.approx(expected[0, 0].item(), rel=0.02)
    assert (stepped - ddim_step(noisy, clean, time, next_time)).abs().max() > 0.1  # it did draw


def test_the_optimal_denoiser_of_gaussian_data_restores_its_variance():
    std = 0.3

    def optimal(noisy, time):  # E[z_0 | z_s] for z_0 ~ N(0, std^2)
        signal, noise = (level[..., None] for level in signal_and_noise_level(time))
        return signal * std**2 / (signal**2 * std**2 + noise**2) * noisy

    noise, streams = tiny.streams(60).normal(8, 16), tiny.streams(60, "eta")
    for eta in (0.0, 1.0):
        found = sampled(optimal, noise, ddim_times(256, OFFSETS), offsets=OFFSETS, eta=eta, streams=streams)
        assert found.std().item() == pytest.approx(std, rel=0.04)  # a first-order solver, from below


@pytest.mark.parametrize(
    ("times", "message"),
    [([1.0], "must fall"), ([1.0, 1.0, -0.1], "must fall"), ([1.0, 0.5], "leaves noise")],
)
def test_impossible_times_are_refused(times, message):
    clean, noise = bank()
    with pytest.raises(ValueError, match=message):
        sampled(lambda noisy, time: clean, noise, times, offsets=OFFSETS)
    with pytest.raises(ValueError, match="at least one step"):
        ddim_times(0, OFFSETS)
    with pytest.raises(ValueError, match="pass streams"):
        sampled(lambda noisy, time: clean, noise, [1.0, -0.1], offsets=OFFSETS, eta=1.0)
