"""Drafts: visible tokens that the demasker proposed itself, so that it learns to correct them (decision D62)."""

from collections.abc import Callable
from typing import TypeAlias

import torch

from crocodil.processes.categorical import propose_tokens
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RowLogits, TokenIds

DemaskRows: TypeAlias = Callable[[TokenIds, Positions], RowLogits]  # (noisy tokens, rows) -> logits at these rows


def with_drafts(
    demask: DemaskRows,
    noisy_tokens: TokenIds,
    hidden: Positions,
    *,
    rate: float,
    mask_id: int,
    streams: Streams,
    is_answer: Positions | None = None,
) -> tuple[TokenIds, Positions]:
    """Turn the first `rate` of a batch into drafts; return the tokens, and the positions to predict.

    In a draft all positions are predicted, so that the demasker learns which visible tokens are wrong. If
    `is_answer` is given, the others are a prompt: it stays as it is, and is not predicted (decision D74).
    """
    count = round(rate * len(noisy_tokens))
    if not count:
        return noisy_tokens, hidden
    visible = ~hidden if is_answer is None else is_answer & ~hidden
    draft_streams = Streams(streams.keys[:count])
    drafts = draft_tokens(demask, noisy_tokens[:count], visible[:count], mask_id=mask_id, streams=draft_streams)
    is_draft = torch.arange(len(hidden), device=hidden.device) < count
    return torch.cat([drafts, noisy_tokens[count:]]), hidden | (visible & is_draft[:, None])


@torch.no_grad()
def draft_tokens(
    demask: DemaskRows, noisy_tokens: TokenIds, visible: Positions, *, mask_id: int, streams: Streams
) -> TokenIds:
    """Replace a random share of the `visible` tokens by proposals of the demasker, which sees them masked.

    Tokens that are revealed together do not see each other, so some proposals contradict others: these are the
    errors of decoding in few calls. Compare Savinov et al., 2022, "Step-unrolled denoising autoencoders"
    (arXiv:2112.06749).
    """
    share = streams.at("share").uniform()[:, None]
    drafted = visible & (streams.at("places").uniform(visible.shape[1]) < share)
    sample, position = drafted.nonzero(as_tuple=True)
    proposed, _ = propose_tokens(
        demask(noisy_tokens.masked_fill(drafted, mask_id), drafted),
        mask_id=mask_id,
        temperature=1.0,
        streams=streams.at("token")[sample].at(position),
    )
    return noisy_tokens.masked_scatter(drafted, proposed)
