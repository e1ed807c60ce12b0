import math
from itertools import accumulate

import pytest
import tiny
import torch

from crocodil.processes.registers import (
    block_ends,
    block_index,
    interpolate,
    noise_std_for_cosine,
    normalise,
    perturb,
    positions_across_text,
    sample_prefix_length,
    within_prefix,
)


def test_normalised_registers_have_norm_sqrt_d():
    registers = normalise(100 * tiny.bank(4))
    assert torch.allclose(registers.norm(dim=-1), torch.tensor(math.sqrt(tiny.REGISTER_WIDTH)))


def test_cosine_08_is_noise_of_std_075():
    assert noise_std_for_cosine(0.8) == pytest.approx(0.75)
    assert noise_std_for_cosine(1.0) == 0


@pytest.mark.parametrize("cosine", [0.5, 0.8, 0.95])
def test_perturbed_registers_keep_the_target_cosine(cosine):
    registers = normalise(tiny.streams(500).normal(4, 1024))
    noisy = perturb(registers, std=noise_std_for_cosine(cosine), streams=tiny.streams(500, "noise"))
    measured = torch.cosine_similarity(registers, noisy, dim=-1)
    assert measured.mean().item() == pytest.approx(cosine, abs=0.002)
    assert noisy.norm(dim=-1).mean() > registers.norm(dim=-1).mean()  # D5: not renormalised


@pytest.mark.parametrize("cosine", [0.0, -0.5, 1.5])
def test_an_impossible_cosine_is_refused(cosine):
    with pytest.raises(ValueError, match="cosine target must lie in"):
        noise_std_for_cosine(cosine)


@pytest.mark.parametrize(
    ("num_registers", "sizes"),
    [(1, [1]), (2, [1, 1]), (8, [1, 1, 2, 4]), (128, [1, 1, 2, 4, 8, 16, 32, 64]), (6, [1, 1, 2, 2])],
)
def test_blocks_grow_geometrically_and_fill_the_bank(num_registers, sizes):
    assert block_ends(num_registers) == list(accumulate(sizes))
    assert block_index(num_registers).tolist() == [b for b, size in enumerate(sizes) for _ in range(size)]


def test_blocks_end_at_the_powers_of_two():
    assert block_ends(128) == [1, 2, 4, 8, 16, 32, 64, 128]


def test_nested_dropout_draws_every_prefix_length_alike():
    lengths = sample_prefix_length(5, streams=tiny.streams(20_000))
    assert torch.allclose(torch.bincount(lengths)[1:].float(), torch.tensor(4000.0), rtol=0.06)


def test_a_prefix_shows_the_first_registers():
    visible = within_prefix(torch.tensor([0, 2, 4]), 4)
    assert visible.int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]


def test_interpolation_ends_at_its_ends_and_stays_on_the_sphere():
    first, second = normalise(tiny.bank(4)), normalise(tiny.bank(4).flip(0))
    assert torch.allclose(interpolate(first, second, mix_weight=0), first)
    assert torch.allclose(interpolate(first, second, mix_weight=1), second)
    middle = interpolate(first, second, mix_weight=0.5)
    assert torch.allclose(middle.norm(dim=-1), torch.tensor(math.sqrt(tiny.REGISTER_WIDTH)))
    to_first, to_second = (torch.cosine_similarity(middle, end, dim=-1) for end in (first, second))
    assert torch.allclose(to_first, to_second, atol=1e-5)


def test_registers_across_a_text_halve_the_gaps_from_block_to_block():
    assert positions_across_text(8, torch.tensor(64)).tolist() == [0, 32, 16, 48, 8, 40, 24, 56]
    assert positions_across_text(1, torch.tensor(64)).tolist() == [0]
    positions = positions_across_text(64, torch.tensor([256, 512]))
    for count in (2, 4, 8, 16, 32, 64):
        for length, row in zip((256, 512), positions, strict=True):
            assert sorted(row[:count].tolist()) == list(range(0, length, length // count))
