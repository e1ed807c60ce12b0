"""The loss of a causal head, which draws the tokens of one demasker call one after the other (decision D88)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from crocodil.models.causal_head import CausalHead
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.objectives.demasking import (
    DemaskerObjective,
    Encode,
    Loss,
    guided_by,
    mask_texts,
    sample_guide,
)
from crocodil.objectives.drafts import with_drafts
from crocodil.processes.reveal import highest
from crocodil.runtime.config import Share, config
from crocodil.seeding import Streams
from crocodil.shapes import PerSample, Positions, RowLogits, TokenIds


@config
class HeadObjective:
    """Options of stage head (decision D88)."""

    whole_rate: Share = 0.4  # share of texts of which all tokens are drawn again, from left to right

    def predicted_share(self, all_mask_rate: float) -> float:
        """Return the expected share of tokens that are predicted: all of a text, or half of the hidden ones."""
        hidden = all_mask_rate + (1 - all_mask_rate) / 2
        return self.whole_rate + (1 - self.whole_rate) * hidden / 2


class Call(NamedTuple):
    """One call of the demasker, and the tokens that are drawn after it."""

    states: Float[Tensor, "B N W"]  # of the demasker
    known: TokenIds  # what the head reads; the mask token where nothing is drawn
    drawn: Positions


def in_turn_loss(
    encode: Encode,
    demasker: Demasker,
    head: CausalHead,
    tokens: TokenIds,
    *,
    objective: HeadObjective,
    guided_objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
    time: PerSample | None = None,
) -> Loss:
    """Return the cross-entropy of the drawn tokens in nats, given those before them. Only the head has gradients.

    The sum is divided by the expected number of drawn tokens, so it does not depend on how a batch is split.
    """
    call = sample_call(
        encode,
        demasker,
        tokens,
        objective=objective,
        guided_objective=guided_objective,
        mask_id=mask_id,
        streams=streams,
        time=time,
    )
    share = objective.predicted_share(guided_objective.all_mask_rate)
    return in_turn_nats(head, demasker.backbone, call, tokens).sum() / (share * tokens.numel())


def in_turn_nats(head: CausalHead, backbone: LLaDA, call: Call, tokens: TokenIds) -> Float[Tensor, "R"]:
    """Return the cross-entropy of each drawn token, in the order of `tokens[call.drawn]`."""
    states = head(call.states, call.known, backbone)[call.drawn]
    return F.cross_entropy(backbone.logits(states).float(), tokens[call.drawn], reduction="none")


@torch.no_grad()
def sample_call(
    encode: Encode,
    demasker: Demasker,
    tokens: TokenIds,
    *,
    objective: HeadObjective,
    guided_objective: DemaskerObjective,
    mask_id: int,
    streams: Streams,
    time: PerSample | None = None,
) -> Call:
    """Corrupt texts and registers as Algorithm 1 does, call the demasker, and choose the tokens to draw.

    In most texts these are some of the hidden tokens. In others (`whole_rate`) they are all tokens: the head then
    learns to correct visible ones too, which may be drafts. The first token, BOS, is never drawn.
    """
    masked, _ = mask_texts(tokens, guided_objective, mask_id=mask_id, streams=streams, time=time)
    guide = sample_guide(encode, tokens, guided_objective, streams)
    noisy_tokens, _ = with_drafts(
        guided_by(demasker, guide),
        *masked,
        rate=guided_objective.draft_rate,
        mask_id=mask_id,
        streams=streams.at("draft"),
    )
    states = demasker.states(noisy_tokens, guide.noisy, prefix_length=guide.prefix_length)
    logits = demasker.backbone.logits(states[masked.hidden])
    chosen = choose_hidden(logits, masked.hidden, streams.at("drawn"))
    whole = (streams.at("whole").uniform() < objective.whole_rate)[:, None]
    is_first = torch.arange(tokens.shape[1], device=tokens.device) == 0
    return Call(states, torch.where(whole | chosen, tokens, noisy_tokens), (whole | chosen) & ~is_first)


def choose_hidden(row_logits: RowLogits, hidden: Positions, streams: Streams) -> Positions:
    """Choose a random share of the hidden tokens: those that the demasker is most certain of, up to noise.

    The Gumbel noise is of another size in each text, as rules of decoding differ too.
    """
    wide = row_logits.float()
    certainty = wide.amax(dim=1) - wide.logsumexp(dim=1)
    uniform = streams.at("order").uniform(hidden.shape[1], dtype=torch.float64)
    noise = streams.at("noise").uniform()[:, None] * -(-uniform.log()).log()
    score = noise.masked_scatter(hidden, noise[hidden] + certainty)
    count = (streams.at("share").uniform() * hidden.sum(dim=1)).ceil().long()
    return highest(score, among=hidden, count=count)
