"""How well a demasker models held-out text: accuracy by mask probability, and a likelihood bound (Sec. 5).

A demasker is a function here; its registers, if any, are already inside. With registers the bound is on
log p(x | z). To compare it with log p(x), add the nats that a prior needs for z: `register_nats`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from crocodil.processes.gaussian import (
    Denoise,
    Offsets,
    add_noise,
    effective_time,
    last_base_time,
    signal_and_noise_level,
    time_of_noise,
)
from crocodil.processes.masking import mask_tokens
from crocodil.processes.reveal import highest
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RegisterBank, RowLogits, RowTokens, TokenIds

Demask: TypeAlias = Callable[[TokenIds, Positions], RowLogits]  # (noisy tokens, positions of the logits)


# ---------------------------------------------------------------- accuracy at hidden positions


@dataclass(frozen=True)
class Accuracy:
    """Totals over hidden positions: the accuracies of several batches add up."""

    num_hidden: int = 0
    total_nats: float = 0.0
    num_right: int = 0

    def __add__(self, other: "Accuracy") -> "Accuracy":
        return Accuracy(
            self.num_hidden + other.num_hidden,
            self.total_nats + other.total_nats,
            self.num_right + other.num_right,
        )

    @property
    def cross_entropy(self) -> float:
        """Nats per hidden token; NaN if no token was hidden."""
        return self.total_nats / self.num_hidden if self.num_hidden else math.nan

    @property
    def top1(self) -> float:
        """The share of hidden tokens whose most probable token is the true one; NaN if no token was hidden."""
        return self.num_right / self.num_hidden if self.num_hidden else math.nan


def accuracy(row_logits: RowLogits, targets: RowTokens) -> Accuracy:
    """Return the accuracy of these logits for these targets."""
    nats = F.cross_entropy(row_logits.float(), targets, reduction="none")
    num_right = (row_logits.argmax(dim=1) == targets).sum()
    return Accuracy(len(targets), nats.double().sum().item(), int(num_right))


@torch.no_grad()
def demasking_accuracy(
    demask: Demask, tokens: TokenIds, mask_prob: float, *, mask_id: int, streams: Streams
) -> Accuracy:
    """Return one point of the curves of cross-entropy and top-1 accuracy over the mask probability (Fig. 4).

    The masks depend on the mask probability and on the streams only.
    """
    probs = torch.full((len(tokens),), mask_prob, device=tokens.device)
    noisy_tokens, hidden = mask_tokens(tokens, probs, mask_id=mask_id, streams=streams.at(f"{mask_prob}"))
    return accuracy(demask(noisy_tokens, hidden), tokens[hidden])


# ---------------------------------------------------------------- a bound on the likelihood


@torch.no_grad()
def negative_elbo(
    demask: Demask,
    tokens: TokenIds,
    *,
    mask_id: int,
    streams: Streams,
    given: Positions | None = None,
    num_draws: int = 128,
    places: Int[Tensor, "B N"] | None = None,
    batch_size: int | None = None,
) -> Float[Tensor, "B"]:
    """Return an upper bound on -log p(x_0) in nats per sequence, an unbiased estimate from `num_draws` maskings.

    This is Eq. 5 over all times. Hiding exactly l of N tokens, with l uniform over 1..N and weight N / l, has the
    same mean as hiding each token with probability t and weight 1 / t. It has less variance and needs no smallest
    t; LLaDA measures likelihoods in this way (arXiv:2502.09992). The draws of a sequence are spread evenly over l.

    Tokens that are `given`, such as the BOS token, are never hidden; the likelihood is that of the other tokens.
    The EOS tokens that fill a canvas belong to the sequence: the model must also know where a text ends.

    Args:
        demask: the model.
        tokens: x_0.
        mask_id: of the mask token.
        streams: the maskings.
        given: tokens that are never hidden.
        num_draws: maskings of each sequence.
        places: for each token, the index of the random number that decides when it is hidden; by default its
            position. Sequences with the same stream hide tokens of the same place together, so that their bounds
            differ less by chance.
        batch_size: masked sequences per call; by default those of one draw.
    """
    may_hide = torch.ones_like(tokens, dtype=torch.bool) if given is None else ~given
    num_tokens = may_hide.sum(dim=1)
    shift = streams.at("shift").uniform(dtype=torch.float64)
    maskings = [_masking(draw, num_draws, shift, may_hide, places, streams) for draw in range(num_draws)]
    sequences = torch.arange(len(tokens), device=tokens.device).repeat(num_draws)
    total = torch.zeros_like(shift)
    size = batch_size or len(tokens)
    for rows, hidden in zip(sequences.split(size), torch.cat(maskings).split(size), strict=True):
        masked = tokens[rows]
        row_logits = demask(masked.masked_fill(hidden, mask_id), hidden)
        nats = F.cross_entropy(row_logits.float(), masked[hidden], reduction="none").double()
        weights = (num_tokens[rows] / hidden.sum(dim=1))[:, None].expand_as(hidden)[hidden]
        total.index_add_(0, rows[hidden.nonzero()[:, 0]], weights * nats)
    return total / num_draws


def _masking(
    draw: int,
    num_draws: int,
    shift: Float[Tensor, "B"],
    may_hide: Positions,
    places: Int[Tensor, "B N"] | None,
    streams: Streams,
) -> Positions:
    """Return the positions that one of the draws hides."""
    num_tokens = may_hide.sum(dim=1)
    num_hidden = ((draw + shift) / num_draws * num_tokens).long().clamp(max=num_tokens - 1) + 1
    numbers = may_hide.shape[1] if places is None else int(places.max()) + 1
    order = streams.at("order", draw).uniform(numbers, dtype=torch.float64)
    return highest(order if places is None else order.gather(1, places), among=may_hide, count=num_hidden)


@torch.no_grad()
def register_nats(
    denoise: Denoise,
    registers: RegisterBank,
    *,
    noise_std: float,
    offsets: Offsets | None = None,
    shift: float = 1.0,
    num_steps: int = 64,
    streams: Streams,
) -> Float[Tensor, "B"]:
    """Return a bound on KL(q(z | x) || p(z)), the nats per sample that a prior needs for registers with noise.

    z = registers + noise_std e, as the demasker reads them. With E[-log p(x | z)], which is `negative_elbo` of a
    demasker with registers z, it adds up to a bound on -log p(x), so models with and without registers compare.

    This is the bound of drawing z in `num_steps` ancestral steps: a step from a register's time t to s costs
    (SNR(s) - SNR(t)) |z_0 - g(z_t, t)|^2 / 2 (Kingma et al., 2021, "Variational diffusion models", Eq. 13). Steps
    are even in base time; a register that has reached `noise_std` waits for the others.

    Args:
        denoise: the prior, without guidance; registers and `noise_std` are in its units.
        registers: z_0, clean.
        noise_std: above 0; registers without noise hold infinitely many bits.
        offsets: of the registers' times, as the prior was trained with; none by default.
        shift: of the times, as the prior was trained with.
        num_steps: of the draw; more give a lower bound, up to a limit.
        streams: the noise.
    """
    end = time_of_noise(noise_std)
    offsets = torch.zeros(registers.shape[1], device=registers.device) if offsets is None else offsets
    last = last_base_time(float(offsets.max()), noise_std=noise_std, shift=shift)
    base_times = torch.linspace(1, last, num_steps + 1, device=registers.device)
    times = effective_time(base_times, offsets, shift=shift).clamp(min=end)
    signal, noise = signal_and_noise_level(times.double())
    ratios = (signal / noise).square()
    total = torch.zeros(len(registers), dtype=torch.float64, device=registers.device)
    for step in range(num_steps):
        time = times[step].expand(len(registers), -1)
        noisy = add_noise(registers, time, streams.at("step", step).normal(*registers.shape[1:]))
        squared_error = (registers - denoise(noisy, time)).double().square().sum(dim=2)
        total += squared_error @ (ratios[step + 1] - ratios[step]) / 2
    return total


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Return nats as bits per byte of text, which does not depend on the tokenizer."""
    return nats / math.log(2) / num_bytes
