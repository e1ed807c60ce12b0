"""Masked diffusion: the forward process, its loss, and the reverse step (Sec. 3, Eqs. 1-5).

Pure tensor mathematics; networks and registers are not known here. Throughout, `mask_prob` is the paper's
1 - alpha_t: 0 is clean, 1 is fully masked.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import PerSample, Positions, RowLogits, TokenIds

SMALLEST_MASK_PROB = 1e-3  # LLaDA's epsilon: keeps the loss weight finite


class Masked(NamedTuple):
    noisy_tokens: TokenIds
    hidden: Positions


# ---------------------------------------------------------------- training


def mask_prob_at(time: PerSample) -> PerSample:
    """LLaDA's linear schedule: 1 - alpha_t = (1 - eps) t + eps (decision D1)."""
    return (1 - SMALLEST_MASK_PROB) * time + SMALLEST_MASK_PROB


def mask_tokens(
    tokens: TokenIds,
    mask_prob: PerSample,
    *,
    mask_id: int,
    streams: Streams,
    given: Positions | None = None,
) -> Masked:
    """Sample x_t ~ q(x_t | x_0), Eqs. 1-2: hide each token on its own with probability `mask_prob`.

    What is `given` is never hidden: a prompt is a sequence that is partly seen (decision D24).
    """
    hidden = streams.uniform(tokens.shape[1]) < mask_prob[:, None]
    if given is not None:
        hidden = hidden & ~given
    return Masked(tokens.masked_fill(hidden, mask_id), hidden)


def bare_canvas(tokens: TokenIds, *, mask_id: int) -> Masked:
    """What generation starts from: the beginning that all samples share, and nothing behind it; one row."""
    hidden = torch.arange(tokens.shape[1], device=tokens.device)[None] > 0
    return Masked(tokens[:1].masked_fill(hidden, mask_id), hidden)


def sample_given(num_tokens: int, rate: float, *, streams: Streams) -> Positions:
    """What is given of each sample: nothing, or at `rate` a prefix, a suffix, or both (decision D24).

    Where both ends are given, what is left is an infilling. Ends are uniform over all places.
    """
    first, last = (streams.at(end).uniform() * num_tokens for end in ("first", "last"))
    start, stop = torch.minimum(first, last)[:, None], torch.maximum(first, last)[:, None]
    index = torch.arange(num_tokens, device=start.device)
    before, after = index < start, index >= stop
    kind = streams.at("kind").integers(0, 2)[:, None]
    chosen = torch.where(kind == 0, before, torch.where(kind == 1, after, before | after))
    return chosen & (streams.at("given").uniform()[:, None] < rate)


def stratified_times(places: Int[Tensor, "B"], *, batch_size: int, shift: float) -> PerSample:
    """Times that cover [0, 1] evenly within a batch: the sample at each place has a slice of its own.

    With a `shift` that is uniform from batch to batch, each time is uniform, and the loss of a batch varies less
    (Kingma et al., 2021, "Variational diffusion models").
    """
    return ((places / batch_size + shift) % 1).float()


def reverse_step(
    noisy_tokens: TokenIds,
    clean: TokenIds,
    *,
    mask_prob: PerSample,
    next_mask_prob: PerSample,
    mask_id: int,
    streams: Streams,
) -> TokenIds:
    """Sample x_s ~ q(x_s | x_t, x_0), Eq. 3; with a predicted `clean` sequence it is Eq. 4.

    Visible tokens stay; a hidden one shows with probability (alpha_s - alpha_t) / (1 - alpha_t).
    """
    reveal_prob = 1 - next_mask_prob / mask_prob
    shown = streams.uniform(noisy_tokens.shape[1]) < reveal_prob[:, None]
    return torch.where((noisy_tokens == mask_id) & shown, clean, noisy_tokens)


def demasking_loss(
    row_logits: RowLogits, tokens: TokenIds, hidden: Positions, mask_prob: PerSample
) -> Float[Tensor, ""]:
    """Eq. 5: cross-entropy at the hidden positions, weighted by 1 / mask_prob (decision D1).

    `row_logits` are the demasker's at `hidden`, in the order of `tokens[hidden]`.
    """
    losses = F.cross_entropy(row_logits.float(), tokens[hidden], reduction="none")
    weights = (1 / mask_prob)[:, None].expand_as(tokens)[hidden]
    return (weights * losses).sum() / tokens.numel()
