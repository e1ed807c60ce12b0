"""The loss of a base that begins as a causal model and stays close to its states (REPR-ALIGN)."""

from collections.abc import Sequence
from itertools import islice
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F

from crocodil.models.llada import Embeddings, LLaDA
from crocodil.objectives.demasking import Loss
from crocodil.processes.masking import demasking_loss, mask_prob_at, mask_tokens
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, Positions, TokenIds

AlignBy: TypeAlias = Literal["token", "position"]


def aligned_base_loss(
    demasker: LLaDA,
    targets: Sequence[Embeddings],
    tokens: TokenIds,
    *,
    weight: float,
    by: AlignBy = "token",
    streams: Streams,
    time: PerSample | None = None,
) -> dict[str, Loss]:
    """Return both parts of REPR-ALIGN (arXiv:2605.06885): Eq. 5 without guidance, and weight x alignment.

    `targets` are the states of the frozen causal model on the clean tokens, after the layers that the demasker
    began as. By "token", as in the authors' code, states that predict the same hidden token are aligned: a causal
    model predicts it one position earlier, and so does a shifted demasker. By "position", our own variant, states
    at the same position are aligned, hidden or not. Padding is left out of both.
    """
    config = demasker.config
    mask_prob = mask_prob_at(streams.at("time").uniform() if time is None else time)
    noisy_tokens, hidden = mask_tokens(tokens, mask_prob, mask_id=config.mask_id, streams=streams.at("mask"))
    logits, states = demasker(noisy_tokens, rows=hidden, with_states=True)
    where = tokens != config.eos_id
    if by == "token":
        where = (where & hidden)[:, 1:]
        states = [state[:, :-1] if config.shifted else state[:, 1:] for state in states]
        targets = [target[:, :-1] for target in targets]
    return {
        "demasking_loss": demasking_loss(logits, tokens, hidden, mask_prob),
        "alignment_loss": weight * alignment_loss(states, targets, where),
    }


def alignment_loss(states: Sequence[Embeddings], targets: Sequence[Embeddings], where: Positions) -> Loss:
    """Return 1 - cos(h_l, g_l), averaged over the layers l, the positions in `where`, and the samples.

    The authors average over all positions of a batch; a mean per sample does not depend on how a batch is split.
    """
    cosines = [F.cosine_similarity(h.float(), g.float(), dim=-1) for h, g in zip(states, targets, strict=True)]
    distance = (1 - torch.stack(cosines).mean(dim=0)) * where
    return (distance.sum(dim=1) / where.sum(dim=1).clamp(min=1)).mean()


@torch.no_grad()
def causal_states(model: LLaDA, tokens: TokenIds, layers: Sequence[int]) -> list[Embeddings]:
    """Return the states of a causal model after these of its layers, in rising order."""
    angles = model.angles(torch.arange(tokens.shape[1], device=tokens.device)[None])
    states = islice(model.block_states(model.embed(tokens), angles, causal=True), layers[-1] + 2)
    wanted = set(layers)
    return [state for layer, state in enumerate(states, start=-1) if layer in wanted]
