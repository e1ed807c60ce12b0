"""A causal head draws the tokens of one demasker call one after the other, so that they agree (decision D88).

A demasker predicts every hidden token by itself, so tokens that one call reveals do not see each other. The head
is one causal block on the demasker's last states. At each position it also reads the token before that position:
it predicts p(x_i | x_<i, states). All tokens of a call are drawn after one pass of the demasker. Compare Campbell
et al., 2025, "Self-speculative masked diffusions" (arXiv:2510.03929): their demasker's last blocks are causal.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from crocodil.models.llada import Block, Embeddings, Heads, LLaDA, LLaDAConfig, RMSNorm
from crocodil.runtime.config import config
from crocodil.shapes import PositionIndices, RowLogits, RowTokens, TokenIds

# (logits of one position of each sample, index of that position) -> tokens
Choose: TypeAlias = Callable[[RowLogits, Int[Tensor, "B"]], RowTokens]
State = Float[Tensor, "B 1 W"]  # at one position of each sample
Index = Int[Tensor, "B 1"]


@config
class CausalHeadConfig:
    backbone: LLaDAConfig  # of the demasker: the head has one block of its shape


class CausalHead(nn.Module):
    """Predict each token from the demasker's states and the tokens before it.

    The demasker's backbone embeds and predicts tokens; the methods get it as an argument. A token that is not
    known is the mask token.
    """

    def __init__(self, config: CausalHeadConfig) -> None:
        super().__init__()
        width, eps = config.backbone.width, config.backbone.norm_eps
        self.config = config
        self.state_norm, self.token_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.proj_in = nn.Linear(2 * width, width, bias=False)
        self.block = Block(config.backbone)
        self.norm = RMSNorm(width, eps)
        self.proj_out = nn.Linear(width, width, bias=False)

    def forward(self, states: Embeddings, tokens: TokenIds, backbone: LLaDA) -> Embeddings:
        """Return the states that predict each token, given the demasker's states and the tokens before it."""
        inputs = self._inputs(states, self._before(tokens), backbone)
        position = torch.arange(tokens.shape[1], device=tokens.device)[None]
        return self._predicting(states, self.block(inputs, _rotation(backbone, position), None, causal=True))

    def draw(
        self, states: Embeddings, tokens: TokenIds, positions: PositionIndices, choose: Choose, backbone: LLaDA
    ) -> TokenIds:
        """Fill the given positions of `tokens` from left to right.

        They hold the mask token; indices outside of the canvas are padding. This equals one call of `forward` for
        each of them, but a new token changes the input of the next position only: the keys and values of all other
        positions are computed once.
        """
        length = tokens.shape[1]
        place = torch.arange(length, device=tokens.device)
        inputs = self._inputs(states, self._before(tokens), backbone)
        keys, values = self._keys_and_values(inputs, place[None], backbone)
        for index in positions.unbind(dim=1):
            at = index.clamp(max=length - 1)[:, None]
            state = self._attend(_at(inputs, at), at, keys, values, place <= at, backbone)
            token = choose(backbone.logits(self._predicting(_at(states, at), state)[:, 0]), index)
            tokens = F.pad(tokens, (0, 1)).scatter(1, index[:, None], token[:, None])[:, :-1]
            after = (index + 1).clamp(max=length - 1)[:, None]
            changed = self._inputs(_at(states, after), self._before(tokens).gather(1, after), backbone)
            inputs = inputs.scatter(1, after[..., None].expand_as(changed), changed)
            key, value = self._keys_and_values(changed, after, backbone)
            keys, values = _put(keys, after, key), _put(values, after, value)
        return tokens

    def init_weights(self, backbone: LLaDA, generator: torch.Generator) -> "CausalHead":
        """Begin with the last block of the backbone; at first the head changes nothing."""
        width = self.config.backbone.width
        self.block.load_state_dict(backbone.blocks[-1].state_dict())
        nn.init.normal_(self.proj_in.weight, std=0.3 * width**-0.5, generator=generator)
        with torch.no_grad():
            self.proj_in.weight[:, :width].copy_(torch.eye(width))
        for norm in (self.state_norm, self.token_norm, self.norm):
            nn.init.ones_(norm.weight)
        nn.init.zeros_(self.proj_out.weight)
        return self

    def _before(self, tokens: TokenIds) -> TokenIds:
        """Return the token before each position; before the first one there is an EOS."""
        return F.pad(tokens[:, :-1], (1, 0), value=self.config.backbone.eos_id)

    def _inputs(self, states: Embeddings, before: TokenIds, backbone: LLaDA) -> Embeddings:
        embedded = backbone.embed(before).to(states.dtype)
        return self.proj_in(torch.cat([self.state_norm(states), self.token_norm(embedded)], dim=-1))

    def _predicting(self, states: Embeddings, of_block: Embeddings) -> Embeddings:
        return states + self.proj_out(self.norm(of_block))

    def _keys_and_values(
        self, inputs: Embeddings, position: Int[Tensor, "#B L"], backbone: LLaDA
    ) -> tuple[Heads, Heads]:
        return self.block.heads(self.block.attn_norm(inputs), _rotation(backbone, position))[1:]

    def _attend(
        self,
        inputs: State,
        index: Index,
        keys: Heads,
        values: Heads,
        visible: Bool[Tensor, "B L"],
        backbone: LLaDA,
    ) -> State:
        """Apply the block at one position of each sample."""
        query = self.block.heads(self.block.attn_norm(inputs), _rotation(backbone, index))[0]
        mixed = self.block.mix(query, keys, values, visible[:, None, None])
        return self.block.feed_forward(inputs + mixed)


def _rotation(backbone: LLaDA, position: Int[Tensor, "#B L"]) -> tuple[Tensor, Tensor]:
    angles = backbone.angles(position)
    return angles.cos()[:, None], angles.sin()[:, None]


def _at(states: Embeddings, index: Index) -> State:
    return states.gather(1, index[..., None].expand(-1, -1, states.shape[2]))


def _put(heads: Heads, index: Index, new: Float[Tensor, "B _ 1 C"]) -> Heads:
    return heads.scatter(2, index[:, None, :, None].expand_as(new), new)
