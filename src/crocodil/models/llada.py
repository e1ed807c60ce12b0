"""LLaDA: a bidirectional transformer that predicts masked tokens.

Pre-norm blocks with RMSNorm, rotary positions and a gated MLP, as in Nie et al., 2025 (arXiv:2502.09992).
There is no time input (decision D10). Registers are embeddings in front of the text.

Llama, Qwen2 and Qwen3 have the same blocks, apart from biases, norms of queries and keys, and the causal mask.
The config covers these differences, so their weights can be loaded as a LLaDA (decision D39).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from crocodil.runtime.config import Layers, Length, Positive, TokenId, Width, config
from crocodil.shapes import PositionIndices, Positions, ReadLength, RowLogits, TokenIds

Embeddings = Float[Tensor, "B L W"]
Heads = Float[Tensor, "B _ L C"]  # queries, keys or values; C = head width
Angles = Float[Tensor, "#B L P"]  # rotary angles; P = head width / 2 frequency pairs
KeyMask = Bool[Tensor, "B L"]  # True: other positions may attend to it


@config
class LLaDAConfig:
    vocab_size: Width
    width: Width
    num_layers: Layers
    num_heads: Width
    num_kv_heads: Width  # grouped-query attention if fewer than num_heads
    head_size: Width | None = None  # of one head; None: width / num_heads
    mlp_width: Width
    qkv_bias: bool = False  # biases of queries, keys and values (Qwen2)
    qk_norm: bool = False  # RMSNorm of queries and keys, per head (Qwen3)
    rope_theta: Positive = 500_000.0
    norm_eps: Positive = 1e-5
    tied_head: bool = False  # the output head is the embedding table
    shifted: bool = False  # the state at position i predicts token i + 1, as in a causal model (Dream)
    max_length: Length = 4096  # of the training data; informative only
    parents: tuple[str, ...] = ()  # families of the pretrained models that the weights come from
    mask_id: TokenId
    eos_id: TokenId
    pad_id: TokenId

    def __post_init__(self) -> None:
        if (self.head_size is None and self.width % self.num_heads) or self.head_width % 2:
            raise ValueError(f"width {self.width} does not split into {self.num_heads} heads of even width")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_kv_heads} key heads do not divide {self.num_heads} query heads")
        for name in ("mask_id", "eos_id", "pad_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ValueError(f"{name} {getattr(self, name)} is outside a vocabulary of {self.vocab_size}")

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads if self.head_size is None else self.head_size


class ReadTokens(NamedTuple):
    tokens: TokenIds
    mask: KeyMask | None  # None: all of them are read


class LLaDA(nn.Module):
    """f_theta without guidance: maps tokens to logits."""

    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.head = None if config.tied_head else nn.Linear(config.width, config.vocab_size, bias=False)

    def forward(
        self,
        tokens: TokenIds,
        *,
        prefix_embeddings: Float[Tensor, "B P W"] | None = None,
        attention_mask: KeyMask | None = None,
        positions: Int[Tensor, "#B L"] | None = None,
        rows: Positions | PositionIndices | None = None,
        causal: bool = False,
    ) -> Float[Tensor, "B L V"] | RowLogits:
        """Return logits at all positions, or only at the token positions in `rows`.

        `prefix_embeddings` come before the tokens and have positions too: logits, `attention_mask` (True: may be
        attended to) and `positions` include them, and by default positions count from the first of them. With
        `causal`, positions attend only to earlier ones.
        """
        embeddings = self.embed(tokens)
        if prefix_embeddings is not None:
            embeddings = torch.cat([prefix_embeddings, embeddings], dim=1)
        if positions is None:
            positions = torch.arange(embeddings.shape[1], device=tokens.device)[None]
        states = self.transform(embeddings, self.angles(positions), attention_mask, causal=causal)
        return self.logits(states if rows is None else picked(states[:, -tokens.shape[1] :], rows))

    def transform(
        self, embeddings: Embeddings, angles: Angles, key_mask: KeyMask | None, *, causal: bool = False
    ) -> Embeddings:
        """Apply the blocks and the final norm; return the states that predict the tokens."""
        assert key_mask is None or not causal, "a causal model has no key mask: pad on the right"
        rotation = (angles.cos()[:, None], angles.sin()[:, None])  # the same for all heads
        mask = None if key_mask is None else key_mask[:, None, None, :]
        states = in_autocast_dtype(embeddings)
        for block in self.blocks:
            states = block(states, rotation, mask, causal)
        return self.predicting(states)

    def predicting(self, states: Embeddings) -> Embeddings:
        """Return the normed states, each at the position whose token it predicts.

        With shifted states, the first position has no state before it and uses its own, as in Dream.
        """
        states = self.norm(states)
        return torch.cat([states[:, :1], states[:, :-1]], dim=1) if self.config.shifted else states

    def logits(self, states: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows V"]:
        return F.linear(states, self.embed.weight) if self.head is None else self.head(states)

    def angles(self, positions: Int[Tensor, "B L"]) -> Float[Tensor, "B L P"]:
        """Return the rotary angles of these positions, highest frequency first."""
        return positions[..., None].float() * rotary_frequencies(self.config, positions.device)

    def init_weights(self, generator: torch.Generator) -> "LLaDA":
        init_parameters(self, self.config.num_layers, generator)
        return self


class Block(nn.Module):
    def __init__(self, config: LLaDAConfig) -> None:
        super().__init__()
        inner, kv_width = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
        self.head_width = config.head_width
        self.attn_norm = RMSNorm(config.width, config.norm_eps)
        self.query = nn.Linear(config.width, inner, bias=config.qkv_bias)
        self.key = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.value = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.query_norm = RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else None
        self.attn_out = nn.Linear(inner, config.width, bias=False)
        self.ff_norm = RMSNorm(config.width, config.norm_eps)
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(
        self,
        states: Embeddings,
        rotation: tuple[Float[Tensor, "#B 1 L P"], Float[Tensor, "#B 1 L P"]],
        mask: Bool[Tensor, "B 1 1 L"] | None,
        causal: bool = False,
    ) -> Embeddings:
        return self.feed_forward(states + self.attend(self.attn_norm(states), rotation, mask, causal))

    def feed_forward(self, states: Embeddings) -> Embeddings:
        normed = self.ff_norm(states)
        return states + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def attend(
        self, normed: Embeddings, rotation: tuple[Tensor, Tensor], mask: Tensor | None, causal: bool
    ) -> Embeddings:
        query, key, value = self.heads(normed, rotation)
        return self.mix(query, key, value, mask, causal)

    def heads(self, normed: Embeddings, rotation: tuple[Tensor, Tensor]) -> tuple[Heads, Heads, Heads]:
        """Return the rotated queries and keys, and the values."""
        query, key, value = (
            rearrange(project(normed), "b l (h p) -> b h l p", p=self.head_width)
            for project in (self.query, self.key, self.value)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return rotate(query, rotation), rotate(key, rotation), value

    def mix(
        self,
        query: Heads,
        key: Float[Tensor, "B _ S C"],
        value: Float[Tensor, "B _ S C"],
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Embeddings:
        """Attend with each query to all keys, or to those that the mask allows."""
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
        )
        return self.attn_out(rearrange(mixed, "b h l p -> b l (h p)"))


def rotary_frequencies(config: LLaDAConfig, device: torch.device) -> Float[Tensor, "P"]:
    """Return the rotary frequencies; not a buffer, because of meta devices and dtype casts."""
    exponent = torch.arange(0, config.head_width, 2, device=device).float() / config.head_width
    return 1.0 / config.rope_theta**exponent


def init_parameters(module: nn.Module, num_layers: int, generator: torch.Generator) -> None:
    """Initialise: normal, std 1 / sqrt(inputs); layers that write to the residual stream shrink with depth."""
    for name, parameter in module.named_parameters():
        if parameter.ndim == 1:
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
            continue
        writes_to_residual = name.endswith(("attn_out.weight", "down.weight"))
        shrink = 2 * num_layers if writes_to_residual else 1
        nn.init.normal_(parameter, std=(parameter.shape[1] * shrink) ** -0.5, generator=generator)


def picked(states: Embeddings, rows: Positions | PositionIndices) -> Float[Tensor, "R W"]:
    """Return the states at these positions. With indices the number of rows is known without a device sync."""
    if rows.dtype == torch.bool:
        return states[rows]
    rows = rows.clamp(max=states.shape[1] - 1)  # those behind are padding
    return states.gather(1, rows[..., None].expand(-1, -1, states.shape[2])).flatten(0, 1)


def read_part(tokens: TokenIds, read_length: ReadLength | None) -> ReadTokens:
    """Return the part of the canvases that is read: their first positions (decision D87).

    On a CPU, positions that no sample reads are left out. Elsewhere all shapes stay as they are, because reading
    `read_length` would wait for the device.
    """
    if read_length is None:
        return ReadTokens(tokens, None)
    if tokens.device.type == "cpu":
        tokens = tokens[:, : int(read_length.max())]
    mask = torch.arange(tokens.shape[1], device=tokens.device) < read_length[:, None]
    return ReadTokens(tokens, None if mask.device.type == "cpu" and mask.all() else mask)


def in_autocast_dtype(embeddings: Embeddings) -> Embeddings:
    """Under autocast, keep the residual stream in half precision too: its bandwidth limits the blocks."""
    device = embeddings.device.type
    return embeddings.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else embeddings


def rotate(heads: Float[Tensor, "B H L C"], rotation: tuple[Tensor, Tensor]) -> Float[Tensor, "B H L C"]:
    """Apply the rotary embedding in float32, pairing the first half of the channels with the second."""
    cos, sin = rotation
    first, second = heads.float().chunk(2, dim=-1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(heads.dtype)


class RMSNorm(nn.Module):
    """Normalise in float32, cast back, then scale: the order that LLaDA's weights were trained with."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, states: Float[Tensor, "*rows W"]) -> Float[Tensor, "*rows W"]:
        wide = states.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normed.to(states.dtype)
