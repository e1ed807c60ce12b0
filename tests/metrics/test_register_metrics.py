import math

import pytest
import tiny
import torch
import torch.nn.functional as F
from tiny import NUM_REGISTERS

from crocodil.metrics import prdc, prdc_per_register, psnr, register_quality, squared_error_by_time
from crocodil.processes.registers import normalise

# What the package `prdc` 0.2 gives for `clouds()`, with 5 nearest neighbours.
OF_THE_PACKAGE = (1.0, 0.7166666666666667, 1.244, 0.85)


def clouds():
    return tiny.streams(60, "real").normal(4), 0.8 * tiny.streams(50, "fake").normal(4) + 0.3


@pytest.mark.parametrize("rows_per_batch", [7, 1024])
def test_prdc_is_that_of_its_reference_package(monkeypatch, rows_per_batch):
    monkeypatch.setattr(register_quality, "ROWS_PER_BATCH", rows_per_batch)
    assert prdc(*clouds()) == pytest.approx(OF_THE_PACKAGE)


@pytest.mark.parametrize("nearest", [1, 3, 10])
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_prdc_agrees_with_the_package_where_it_is_installed(nearest, shift, capsys):
    package = pytest.importorskip("prdc")
    real, fake = tiny.streams(80, "real").normal(8), tiny.streams(90, "fake").normal(8) + shift / math.sqrt(8)
    expected = package.compute_prdc(real.numpy(), fake.numpy(), nearest)
    assert prdc(real, fake, nearest=nearest)._asdict() == pytest.approx(expected)


def test_distant_fakes_score_0_and_copies_score_1():
    real = tiny.streams(40).normal(4)
    assert prdc(real, real + 1000) == (0, 0, 0, 0)
    precision, recall, density, coverage = prdc(real, real.clone())
    assert (precision, recall, coverage) == (1, 1, 1)
    assert density == pytest.approx(1, abs=0.05)


def test_a_collapsed_generator_is_precise_and_recalls_nothing():
    real = tiny.streams(200).normal(4)
    found = prdc(real, 0.01 * tiny.streams(200, "fake").normal(4))
    assert found.precision == 1
    assert found.recall < 0.01
    assert found.coverage < 0.3


def test_neighbours_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="5 samples have no neighbour number 5"):
        prdc(torch.eye(5), torch.eye(5))


def test_prdc_is_averaged_over_register_positions():
    real, fake = tiny.streams(40, "real").normal(3, 4), tiny.streams(30, "fake").normal(3, 4)
    fake[:, 2] += 100  # one register that has nothing right
    mean, spread = prdc_per_register(real, fake)
    single = [prdc(real[:, k], fake[:, k]) for k in range(3)]
    assert mean == pytest.approx([sum(values) / 3 for values in zip(*single, strict=True)])
    assert mean.precision <= 2 / 3
    assert spread.precision == pytest.approx(torch.tensor([p.precision for p in single]).std(correction=0).item())
    assert prdc_per_register(real[:, :1], fake[:, :1]).spread == (0, 0, 0, 0)


def test_psnr_is_in_decibels():
    assert psnr(1.0) == 0
    assert psnr(0.001) == pytest.approx(30)
    assert psnr(0.01, peak=10) == pytest.approx(40)
    assert psnr(0.0) == math.inf


def psnr_by_time(denoise, bank, times):
    errors = squared_error_by_time(denoise, bank, times, streams=tiny.streams(len(bank)))
    return {time: psnr(error) for time, error in errors.items()}


def test_predicting_zero_gives_0_db_and_a_perfect_denoiser_infinity():
    bank, times = normalise(tiny.bank(8)), (0.1, 0.5, 0.9)
    zero = psnr_by_time(lambda noisy, time: 0 * noisy, bank, times)
    assert zero == pytest.approx(dict.fromkeys(times, 0), abs=1e-5)
    perfect = psnr_by_time(lambda noisy, time: bank, bank, times)
    assert perfect == dict.fromkeys(times, math.inf)


def test_a_denoiser_that_returns_its_input_gets_worse_with_time():
    bank, times = normalise(tiny.bank(50)), (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    found = list(psnr_by_time(lambda noisy, time: noisy, bank, times).values())
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(psnr(2), abs=0.3)  # pure noise: as far off as two random banks


def test_errors_by_time_are_those_of_validation_while_training():
    from crocodil.processes.gaussian import add_noise

    denoiser, bank, streams = tiny.denoiser(), tiny.bank(8), tiny.streams(8)
    found = squared_error_by_time(denoiser, bank, [0.3], streams=streams)
    time, noise = torch.full((8, NUM_REGISTERS), 0.3), streams.normal(*bank.shape[1:])
    assert found[0.3] == pytest.approx(F.mse_loss(denoiser(add_noise(bank, time, noise), time), bank).item())
