import itertools
import math

import pytest
import tiny
import torch
import torch.nn.functional as F
from tiny import MASK, VOCAB

from crocodil.metrics import Accuracy, accuracy, bits_per_byte, demasking_accuracy, negative_elbo, register_nats
from crocodil.processes.gaussian import signal_and_noise_level, time_of_noise

LENGTH, SYMBOLS, HIDE = 4, 3, 3  # all sequences of four symbols out of three; HIDE is the mask


class World:
    """A known law over all short sequences, and the demasker that knows its conditionals exactly."""

    def __init__(self, probs):
        self.sequences = torch.tensor(list(itertools.product(range(SYMBOLS), repeat=LENGTH)))
        self.probs = probs.double() / probs.sum()

    def demask(self, noisy_tokens, rows):
        agrees = (noisy_tokens[:, None] == HIDE) | (noisy_tokens[:, None] == self.sequences)
        weights = self.probs * agrees.all(dim=2)
        marginals = torch.einsum("bs,snv->bnv", weights, F.one_hot(self.sequences, SYMBOLS).double())
        return (marginals / weights.sum(dim=1)[:, None, None]).log()[rows]

    def bounds(self, *, num_draws, num_runs=1, num_given=0):
        """Of every sequence, in several runs, given its first tokens."""
        tokens = self.sequences.repeat(num_runs, 1)
        found = negative_elbo(
            self.demask,
            tokens,
            mask_id=HIDE,
            streams=tiny.streams(len(tokens)),
            given=(torch.arange(LENGTH) < num_given).expand_as(tokens),
            num_draws=num_draws,
        )
        return found.view(num_runs, len(self.sequences))


def independent():
    marginals = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.1, 0.1, 0.8], [0.5, 0.25, 0.25]])
    sequences = torch.tensor(list(itertools.product(range(SYMBOLS), repeat=LENGTH)))
    return World(marginals[torch.arange(LENGTH), sequences].prod(dim=1))


def entangled():
    return World(tiny.streams(SYMBOLS**LENGTH, "law").normal().exp().square())


@pytest.mark.parametrize("world", [independent(), entangled()], ids=["independent", "entangled"])
def test_a_demasker_that_knows_the_conditionals_makes_the_bound_tight(world):
    bounds = world.bounds(num_draws=16, num_runs=400)
    error = bounds.std(dim=0) / math.sqrt(400)
    assert error.mean() < 0.04
    assert ((bounds.mean(dim=0) + world.probs.log()).abs() < 4 * error).all()


def test_what_is_given_costs_nothing():
    world = entangled()
    bounds = world.bounds(num_draws=16, num_runs=200, num_given=1)
    marginal = world.probs.view(SYMBOLS, -1).sum(dim=1).repeat_interleave(SYMBOLS ** (LENGTH - 1))
    error = bounds.std(dim=0) / math.sqrt(200)
    assert ((bounds.mean(dim=0) + (world.probs / marginal).log()).abs() < 4 * error).all()
    last = world.probs / world.probs.view(-1, SYMBOLS).sum(dim=1).repeat_interleave(SYMBOLS)
    assert torch.allclose(world.bounds(num_draws=1, num_given=LENGTH - 1)[0], -last.log())
    assert (world.bounds(num_draws=1, num_given=LENGTH) == 0).all()


def test_where_all_tokens_cost_the_same_a_single_masking_is_exact():
    uniform = World(torch.ones(SYMBOLS**LENGTH))
    for num_draws in (1, 3):
        bounds = uniform.bounds(num_draws=num_draws)
        assert torch.allclose(bounds, torch.tensor(LENGTH * math.log(3)).double())


def test_a_demasker_that_ignores_what_it_sees_pays_for_it():
    world, ignorant = entangled(), independent()
    streams = tiny.streams(SYMBOLS**LENGTH)
    bound = negative_elbo(ignorant.demask, world.sequences, mask_id=HIDE, streams=streams, num_draws=64)
    assert world.probs @ bound > world.probs @ -world.probs.log() + 0.1


def test_spreading_the_draws_makes_the_bound_steadier():
    world = entangled()
    together, alone = (world.bounds(num_draws=count, num_runs=400).var(dim=0).mean() for count in (8, 1))
    assert together < 0.9 * alone / 8


def test_the_bound_is_the_mean_of_the_training_loss():
    """Hiding l tokens with weight N / l, and hiding with probability t and weight 1 / t, are the same bound."""
    model, tokens = tiny.llada(), tiny.programs(1, 6).expand(4000, -1)
    streams = tiny.streams(4000)
    exact = negative_elbo(
        lambda noisy, rows: model(noisy, rows=rows), tokens, mask_id=MASK, streams=streams, num_draws=4
    ).mean()
    time = (torch.arange(4000) + 0.5) / 4000
    hidden = streams.at("mask").uniform(6) < time[:, None]
    with torch.no_grad():
        logits = model(tokens.masked_fill(hidden, MASK), rows=hidden)
    losses = F.cross_entropy(logits, tokens[hidden], reduction="none")
    assert ((1 / time)[:, None].expand(-1, 6)[hidden] * losses).sum().item() / 4000 == pytest.approx(
        exact.item(), rel=0.03
    )


def test_a_sequence_has_the_same_bound_in_any_batch():
    model, tokens = tiny.llada(), tiny.programs(5, 12)

    def bound(tokens, streams):
        return negative_elbo(
            lambda noisy, rows: model(noisy, rows=rows), tokens, mask_id=MASK, streams=streams, num_draws=4
        )

    together = bound(tokens, tiny.streams(5))
    alone = torch.cat([bound(tokens[i : i + 1], tiny.streams(5)[torch.tensor([i])]) for i in range(5)])
    assert torch.allclose(together, alone, rtol=1e-5)


def test_nats_become_bits_per_byte():
    assert bits_per_byte(8 * math.log(2), 4) == pytest.approx(2)


def test_accuracy_is_cross_entropy_and_top_1():
    logits = tiny.streams(50).normal(VOCAB)
    targets = torch.where(torch.arange(50) % 3 == 0, logits.argmax(dim=1), torch.arange(50) % VOCAB)
    found = accuracy(logits, targets)
    assert found.cross_entropy == pytest.approx(F.cross_entropy(logits, targets).item())
    assert found.top1 == pytest.approx((logits.argmax(dim=1) == targets).float().mean().item())


def test_accuracies_of_batches_add_up_whatever_their_sizes():
    logits, targets = tiny.streams(50).normal(VOCAB), torch.arange(50) % VOCAB
    parts = [accuracy(logits[part], targets[part]) for part in (slice(0, 7), slice(7, 7), slice(7, 50))]
    found, whole = sum(parts, Accuracy()), accuracy(logits, targets)
    assert found.cross_entropy == pytest.approx(whole.cross_entropy)
    assert found.top1 == whole.top1


def test_nothing_hidden_has_no_accuracy():
    assert math.isnan(Accuracy().cross_entropy)
    assert math.isnan(Accuracy().top1)


def test_accuracy_by_mask_probability_looks_at_hidden_positions_only():
    tokens, seen = tiny.programs(500, 12), []

    def know_nothing(noisy_tokens, rows):
        assert torch.equal(rows, noisy_tokens == MASK)
        seen.append(rows.float().mean().item())
        return torch.zeros(int(rows.sum()), VOCAB)

    for prob in (0.1, 0.9, 1.0):
        found = demasking_accuracy(know_nothing, tokens, prob, mask_id=MASK, streams=tiny.streams(500))
        assert found.cross_entropy == pytest.approx(math.log(VOCAB))
    assert seen == pytest.approx([0.1, 0.9, 1.0], abs=0.02)


# ---------------------------------------------------------------- what registers cost

OFFSETS = torch.tensor([0.0, 0.05, 0.1])


def register_cost(denoise, registers, *, noise_std, num_steps):
    streams = tiny.streams(len(registers), "cost")
    return register_nats(
        denoise, registers, noise_std=noise_std, offsets=OFFSETS, num_steps=num_steps, streams=streams
    )


@pytest.mark.parametrize("num_steps", [1, 7])
def test_a_prior_that_knows_nothing_pays_for_the_whole_signal(num_steps):
    registers = tiny.streams(5).normal(3, 8)
    found = register_cost(
        lambda noisy, time: torch.zeros_like(noisy), registers, noise_std=0.75, num_steps=num_steps
    )
    assert torch.allclose(found, registers.double().square().sum(dim=(1, 2)) / (2 * 0.75**2), rtol=1e-4)


def test_the_exact_prior_of_a_gaussian_pays_the_information_in_its_noisy_registers():
    size, std = 0.8, 0.75

    def denoise(noisy, time):
        signal, noise = (level[..., None] for level in signal_and_noise_level(time))
        return size**2 * signal * noisy / (size**2 * signal**2 + noise**2)

    registers = size * tiny.streams(400).normal(3, 16)
    information = 3 * 16 * math.log(1 + size**2 / std**2) / 2
    assert register_cost(denoise, registers, noise_std=std, num_steps=200).mean() == pytest.approx(
        information, rel=0.03
    )


def test_the_steps_of_a_prior_with_a_time_shift_are_even_before_the_shift():
    seen, shift = [], 3.0

    def denoise(noisy, time):
        seen.append(time[0, -1])  # of the register that ends last
        return torch.zeros_like(noisy)

    register_nats(
        denoise, tiny.bank(2)[:, :3], noise_std=0.75, offsets=OFFSETS, shift=shift, num_steps=8,
        streams=tiny.streams(2),
    )  # fmt: skip
    time = torch.stack([*seen, torch.tensor(time_of_noise(0.75))])
    steps = (time / (shift - (shift - 1) * time)).diff()[1:]  # times above 1 are cut off
    assert torch.allclose(steps, steps[:1].expand(7), atol=1e-5)


@pytest.mark.parametrize("std", [0.1, 0.75, 3.0])
def test_the_time_of_a_noise_level_has_this_noise(std):
    signal, noise = signal_and_noise_level(torch.tensor([[time_of_noise(std)]], dtype=torch.float64))
    assert (noise / signal).item() == pytest.approx(std)


def test_registers_without_noise_have_no_finite_cost():
    with pytest.raises(ValueError, match="must be above 0"):
        register_cost(lambda noisy, time: noisy, torch.ones(2, 3, 4), noise_std=0.0, num_steps=2)
