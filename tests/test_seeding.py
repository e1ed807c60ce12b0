import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from crocodil.seeding import Streams, _digest, generator_for, philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers of Random123, the reference implementation
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers(counter, key, expected):
    def words(text):
        return tuple(torch.tensor([int(word, 16)]) for word in text.split())

    assert philox(words(counter), words(key)) == words(expected)


def test_a_sample_draws_the_same_numbers_in_any_batch():
    together = Streams.of("train", 0, samples=range(8)).at("mask").uniform(100)
    alone = Streams.of("train", 0, samples=[5]).at("mask").uniform(100)
    assert torch.equal(together[5:6], alone)


def test_the_same_name_gives_the_same_numbers_and_another_name_gives_others():
    streams = Streams.of("train", 0, samples=range(4))
    assert torch.equal(streams.at("call", 3).normal(50), streams.at("call", 3).normal(50))
    names = [streams, streams.at("a"), streams.at("a", "a"), streams.at("a", "b"), streams.at("b", "a")]
    draws = [other.uniform(50) for other in [*names, Streams.of("train", 1, samples=range(4))]]
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == len(draws)


def test_a_seed_of_numpy_is_that_integer():
    ours, theirs = (Streams.of("train", seed, samples=[0]).uniform(9) for seed in (1, np.int64(1)))
    assert torch.equal(ours, theirs)


def test_a_number_and_a_tensor_of_it_name_the_same_draw():
    streams = Streams.of(samples=range(3))
    assert torch.equal(streams.at(7).keys, streams.at(torch.full((3,), 7)).keys)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_fill_the_open_unit_interval_evenly(dtype):
    draw = Streams.of("u", samples=range(100)).uniform(10_000, dtype=dtype)
    assert 0 < draw.min() < 1e-5
    assert 1 - 1e-5 < draw.max() < 1
    counts = torch.histc(draw.float(), bins=20, min=0, max=1)
    assert torch.allclose(counts, torch.full_like(counts, 50_000), rtol=0.03)


def test_normal_numbers_have_the_moments_of_a_standard_normal():
    draw = Streams.of("n", samples=range(100)).normal(101, 99)
    assert draw.shape == (100, 101, 99)
    for power, moment in ((1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)):
        assert draw.double().pow(power).mean().item() == pytest.approx(moment, abs=0.03)


def test_streams_of_neighbouring_samples_and_names_are_uncorrelated():
    streams = Streams.of("n", samples=range(100))
    rows = torch.cat([streams.normal(4096), streams.at("x").normal(4096), streams.at(1).normal(4096)])
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlation.abs().max() < 6 / 4096**0.5


def test_integers_are_uniform_with_both_ends_included():
    draw = Streams.of("i", samples=range(30_000)).integers(1, 6)
    assert torch.allclose(torch.bincount(draw)[1:].float(), torch.tensor(5000.0), rtol=0.06)
    assert draw.min() == 1
    assert draw.max() == 6


def test_a_generator_is_determined_by_its_key_alone():
    torch.manual_seed(0)
    first = torch.randn(5, generator=generator_for("init", 0))
    torch.manual_seed(1)
    assert torch.equal(first, torch.randn(5, generator=generator_for("init", 0)))
    assert not torch.equal(first, torch.randn(5, generator=generator_for("init", 1)))


def test_the_digest_is_constant_for_the_compiler():
    def marked():
        """A function with PyTorch's own mark."""

    torch.compiler.assume_constant_result(marked)
    assert vars(marked)
    assert vars(marked).items() <= vars(_digest).items()


@pytest.mark.slow
def test_compiled_draws_give_the_same_numbers():
    script = Path(__file__).parent / "compiled_draws.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "the same", done.stderr[-2000:]
