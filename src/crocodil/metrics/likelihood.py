"""How well a demasker knows held-out text: accuracy by mask probability, and a bound on its likelihood (Sec. 5).

A demasker enters as a function that already holds its registers, if it has any. Given registers, the bound is one
on log p(x | z): it says what they are worth, and does not compare with log p(x) as if z cost nothing.
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

Demask: TypeAlias = Callable[[TokenIds, Positions], RowLogits]  # noisy tokens, and where logits are wanted


# ---------------------------------------------------------------- accuracy at hidden positions


@dataclass(frozen=True)
class Accuracy:
    """What was found at hidden positions, as totals: the accuracies of several batches add up."""

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
        """Nats a hidden token; NaN where nothing was hidden."""
        return self.total_nats / self.num_hidden if self.num_hidden else math.nan

    @property
    def top1(self) -> float:
        """How often the most probable token is the true one; NaN where nothing was hidden."""
        return self.num_right / self.num_hidden if self.num_hidden else math.nan


def accuracy(row_logits: RowLogits, targets: RowTokens) -> Accuracy:
    """Of these logits, for these tokens."""
    nats = F.cross_entropy(row_logits.float(), targets, reduction="none")
    num_right = (row_logits.argmax(dim=1) == targets).sum()
    return Accuracy(len(targets), nats.double().sum().item(), int(num_right))


@torch.no_grad()
def demasking_accuracy(
    demask: Demask, tokens: TokenIds, mask_prob: float, *, mask_id: int, streams: Streams
) -> Accuracy:
    """One point of the curves of cross-entropy and top-1 over the mask probability (Fig. 4).

    Every mask probability masks in its own way, and always the same for the same streams.
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
    """An upper bound on -log p(x_0) of every sequence in nats, estimated without bias from `num_draws` maskings.

    It is Eq. 5 over all times. Hiding exactly l of N tokens, with l uniform over 1..N and weight N / l, has the
    same mean as hiding each with probability t and weight 1 / t, varies less, and needs no smallest t: so LLaDA
    measures likelihoods (arXiv:2502.09992). The draws of a sequence spread evenly over l.

    What is `given`, the beginning token say, is never hidden, and the likelihood is that of the rest. The end
    tokens that fill a canvas belong to the sequence: where a text ends is part of what must be known.
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


def perplexity_bound(nats: float, num_tokens: int) -> float:
    """The perplexity a token that this bound allows at most."""
    return math.exp(nats / num_tokens)


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """The bound as a code length of the text, whatever its tokenizer."""
    return nats / math.log(2) / num_bytes
