"""The parts of a register denoiser: PixArt's blocks, and the embeddings of times and conditions (App. E)."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from crocodil.shapes import RegisterTime

Tokens = Float[Tensor, "B K W"]
Modulation = Float[Tensor, "B K S W"]  # S shifts, scales and gates per register
KeysValues = Float[Tensor, "2 _ H C P"]  # keys and values, per head

TIME_FEATURES = 256  # of the embedding of a time
_NORM_EPS = 1e-6
# Not cuDNN: its gradients can be NaN for few keys and low logits (decision D70).
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class ConditionEmbedding(nn.Module):
    """Project a condition, or the null condition, to the denoiser's width."""

    def __init__(self, length: int, condition_width: int, width: int) -> None:
        super().__init__()
        self.null = nn.Parameter(torch.zeros(length, condition_width))
        self.pos_embed = nn.Parameter(torch.zeros(length, width))
        self.proj_in = nn.Sequential(
            nn.Linear(condition_width, width),
            nn.GELU(approximate="tanh"),
            nn.Linear(width, width),
        )

    @classmethod
    def of(cls, length: int, condition_width: int | None, width: int) -> "ConditionEmbedding | None":
        return None if condition_width is None else cls(length, condition_width, width)

    def forward(
        self, condition: Float[Tensor, "_ C E"] | None, keep: Bool[Tensor, "B"] | None
    ) -> Float[Tensor, "_ C W"]:
        null = self.null[None]
        if condition is None:
            condition = null
        elif condition.shape[1:] != self.null.shape:
            raise ValueError(
                f"the condition has shape {tuple(condition.shape[1:])}, expected {tuple(self.null.shape)}"
            )
        elif keep is not None:
            condition = torch.where(keep[:, None, None], condition.to(null.dtype), null)
        embedded = self.proj_in(condition.to(null.dtype))
        return embedded + self.pos_embed.to(embedded.dtype)


class Block(nn.Module):
    """Self-attention, cross-attention if there is a context, and an MLP. The time modulates the first and last."""

    def __init__(self, width: int, num_heads: int, mlp_ratio: int, *, has_context: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(6, width))  # this layer's offset to the shared modulation
        self.attention = Attention(width, num_heads)
        self.cross = Attention(width, num_heads) if has_context else None
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(mlp_ratio * width, width),
        )

    def forward(
        self,
        tokens: Tokens,
        modulation: Modulation,
        context: Float[Tensor, "_ C W"] | KeysValues | None,
        identity_attention: Bool[Tensor, "B"] | None = None,
    ) -> Tokens:
        """Apply the block; `context` is the embedded condition, or its keys and values."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (self.table.to(modulation.dtype) + modulation).unbind(
            dim=2
        )
        normed = modulate(tokens, shift, scale)
        tokens = tokens + gate * self.attention(normed, self.attention.keys_and_values(normed), identity_attention)
        if self.cross is not None:
            assert context is not None
            keys_values = self.cross.keys_and_values(context) if context.ndim == 3 else context
            tokens = tokens + self.cross(tokens, keys_values)
        return tokens + mlp_gate * self.mlp(modulate(tokens, mlp_shift, mlp_scale))


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def keys_and_values(self, context: Float[Tensor, "_ C W"]) -> KeysValues:
        return rearrange(self.key_value(context), "b c (s h p) -> s b h c p", s=2, h=self.num_heads)

    def forward(
        self, tokens: Tokens, keys_values: KeysValues, identity_attention: Bool[Tensor, "B"] | None = None
    ) -> Tokens:
        """Attend to `keys_values`; under identity attention every token attends only to itself."""
        key, value = keys_values
        # Samples that share a context are joined into one long query.
        query = rearrange(self.query(tokens), "(s c) k (h p) -> c h (s k) p", c=len(key), h=self.num_heads)
        with sdpa_kernel(_KERNELS):
            mixed = F.scaled_dot_product_attention(query, key, value)
        mixed = rearrange(mixed, "c h (s k) p -> (s c) k (h p)", k=tokens.shape[1])
        if identity_attention is not None:
            mixed = torch.where(identity_attention[:, None, None], rearrange(value, "b h k p -> b k (h p)"), mixed)
        return self.out(mixed)


def time_embedding(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(TIME_FEATURES, width), nn.SiLU(), nn.Linear(width, width))


def modulate(tokens: Tokens, shift: Tokens, scale: Tokens) -> Tokens:
    """Layer norm without weights, then the shift and scale that depend on the time."""
    return F.layer_norm(tokens, tokens.shape[-1:], eps=_NORM_EPS) * (1 + scale) + shift


def time_features(time: RegisterTime) -> Float[Tensor, "B K F"]:
    """Return sines and cosines of 1000 x time at geometric frequencies, as in DDPM."""
    half = TIME_FEATURES // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=time.device) / half)
    angles = 1000 * time[..., None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
