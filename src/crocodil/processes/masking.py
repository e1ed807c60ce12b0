"""Masked diffusion: the forward process, its loss, and the reverse step (Sec. 3, Eqs. 1-5).

Pure tensor mathematics, without networks or registers. `mask_prob` is the paper's 1 - alpha_t: 0 is clean, 1 is
fully masked.
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
    """Sample x_t ~ q(x_t | x_0), Eqs. 1-2: hide each token independently with probability `mask_prob`.

    `given` positions, such as a prompt, are never hidden (decision D24).
    """
    hidden = streams.uniform(tokens.shape[1]) < mask_prob[:, None]
    if given is not None:
        hidden = hidden & ~given
    return Masked(tokens.masked_fill(hidden, mask_id), hidden)


def bare_canvas(tokens: TokenIds, *, mask_id: int) -> Masked:
    """Return the canvas that generation starts from, as one row: the BOS token, then only masks."""
    hidden = torch.arange(tokens.shape[1], device=tokens.device)[None] > 0
    return Masked(tokens[:1].masked_fill(hidden, mask_id), hidden)


def sample_given(num_tokens: int, rate: float, *, streams: Streams) -> Positions:
    """Sample the given positions: none, or with probability `rate` a prefix, a suffix or both (decision D24).

    If both are given, the task is infilling. The two borders are uniform over all positions.
    """
    first, last = (streams.at(end).uniform() * num_tokens for end in ("first", "last"))
    start, stop = torch.minimum(first, last)[:, None], torch.maximum(first, last)[:, None]
    index = torch.arange(num_tokens, device=start.device)
    before, after = index < start, index >= stop
    kind = streams.at("kind").integers(0, 2)[:, None]
    chosen = torch.where(kind == 0, before, torch.where(kind == 1, after, before | after))
    return chosen & (streams.at("given").uniform()[:, None] < rate)


def stratified_times(index: Int[Tensor, "B"], *, batch_size: int, shift: float) -> PerSample:
    """Return times that cover [0, 1] evenly over a batch; `index` is the position of a sample in the batch.

    If `shift` is uniform over batches, each time is uniform, and the loss varies less between batches
    (Kingma et al., 2021, "Variational diffusion models").
    """
    return ((index / batch_size + shift) % 1).float()


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

    Visible tokens stay; a hidden token is revealed with probability (alpha_s - alpha_t) / (1 - alpha_t).
    """
    reveal_prob = 1 - next_mask_prob / mask_prob
    revealed = streams.uniform(noisy_tokens.shape[1]) < reveal_prob[:, None]
    return torch.where((noisy_tokens == mask_id) & revealed, clean, noisy_tokens)


def demasking_loss(
    row_logits: RowLogits,
    tokens: TokenIds,
    hidden: Positions,
    mask_prob: PerSample,
    *,
    read: Positions | None = None,
    is_answer: Positions | None = None,
) -> Float[Tensor, ""]:
    """Eq. 5: cross-entropy at the hidden positions, weighted by 1 / mask_prob (decision D1).

    `row_logits` are the demasker's logits at the positions `hidden`, in the order of `tokens[hidden]`. If `read`
    is given, they are at these positions, which include visible ones. A visible token has weight 1 (decision D62).
    The loss is per token of a text or, if `is_answer` is given, of its answer, then a mean over samples.
    """
    read = hidden if read is None else read
    losses = F.cross_entropy(row_logits.float(), tokens[read], reduction="none")
    share = torch.ones_like(mask_prob) if is_answer is None else is_answer.float().mean(dim=1)
    weights = (1 / (mask_prob * share))[:, None].where(hidden, (1 / share)[:, None])[read]
    return (weights * losses).sum() / tokens.numel()
