"""How well a demasker models held-out text: accuracy by mask probability, and a likelihood bound (Sec. 5).

A demasker is a function here; its registers, if any, are already inside. With registers the bound is on
log p(x | z). It shows what the registers are worth, but it cannot be compared with log p(x): z is not paid for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from crocodil.processes.masking import mask_tokens
from crocodil.processes.reveal import highest
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RowLogits, RowTokens, TokenIds

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
) -> Float[Tensor, "B"]:
    """Return an upper bound on -log p(x_0) in nats per sequence, an unbiased estimate from `num_draws` maskings.

    This is Eq. 5 over all times. Hiding exactly l of N tokens, with l uniform over 1..N and weight N / l, has the
    same mean as hiding each token with probability t and weight 1 / t. It has less variance and needs no smallest
    t; LLaDA measures likelihoods in this way (arXiv:2502.09992). The draws of a sequence are spread evenly over l.

    Tokens that are `given`, such as the BOS token, are never hidden; the likelihood is that of the other tokens.
    The EOS tokens that fill a canvas belong to the sequence: the model must also know where a text ends.
    """
    may_hide = torch.ones_like(tokens, dtype=torch.bool) if given is None else ~given
    num_tokens = may_hide.sum(dim=1)
    shift = streams.at("shift").uniform(dtype=torch.float64)
    total = torch.zeros_like(shift)
    for draw in range(num_draws):
        time = (draw + shift) / num_draws
        num_hidden = (time * num_tokens).long().clamp(max=num_tokens - 1) + 1
        order = streams.at("order", draw).uniform(tokens.shape[1], dtype=torch.float64)
        hidden = highest(order, among=may_hide, count=num_hidden)
        row_logits = demask(tokens.masked_fill(hidden, mask_id), hidden)
        nats = F.cross_entropy(row_logits.float(), tokens[hidden], reduction="none").double()
        weights = (num_tokens / num_hidden)[:, None].expand_as(hidden)[hidden]
        total.index_add_(0, hidden.nonzero()[:, 0], weights * nats)
    return total / num_draws


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Return nats as bits per byte of text, which does not depend on the tokenizer."""
    return nats / math.log(2) / num_bytes
