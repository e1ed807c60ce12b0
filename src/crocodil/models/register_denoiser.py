"""The register denoiser g_psi(z_s, s): a PixArt-style transformer over register tokens (App. E).

Time enters through one network shared by all layers (adaLN-single, Chen et al., 2023, arXiv:2310.00426),
register by register, so that block offsets need no special case. A condition enters by cross-attention.
Predicts the clean bank. Knows no schedule.
"""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from crocodil.runtime.config import Amount, Layers, Width, config
from crocodil.shapes import RegisterBank, RegisterTime

Tokens = Float[Tensor, "B K W"]
Modulation = Float[Tensor, "B K S W"]  # S shifts, scales and gates for every register
Condition = Float[Tensor, "_ C E"]  # of every sample, or one for all
Context = Float[Tensor, "2 _ H C P"]  # keys and values of every head

_TIME_FEATURES = 256
_NORM_EPS = 1e-6


@config
class RegisterDenoiserConfig:
    num_registers: Width = 8  # how many of the first registers the prior models (decision D19)
    register_width: Width = 1024
    width: Width = 1024
    num_layers: Layers = 28  # App. E
    num_heads: Width = 16
    mlp_ratio: Width = 4
    condition_width: Width | None = None  # of the vectors in a condition; None: no cross-attention
    condition_length: Amount = 0  # how many vectors a condition has
    self_conditioned: bool = False  # sees its guess of the step before (decision D25)

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(f"width {self.width} does not split into {self.num_heads} heads")
        if (self.condition_width is None) != (self.condition_length == 0):
            raise ValueError("a condition has both a width and a length, or neither")


class RegisterDenoiser(nn.Module):
    def __init__(self, config: RegisterDenoiserConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.enter = nn.Linear(config.register_width, width)
        self.enter_guess = nn.Linear(config.register_width, width, bias=False) if config.self_conditioned else None
        self.places = nn.Parameter(torch.zeros(config.num_registers, width))
        self.time = nn.Sequential(nn.Linear(_TIME_FEATURES, width), nn.SiLU(), nn.Linear(width, width))
        self.time_modulation = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.last_table = nn.Parameter(torch.zeros(2, width))
        self.leave = nn.Linear(width, config.register_width)
        self.enter_condition = ConditionEntry(config) if config.condition_width is not None else None

    def forward(
        self,
        noisy_registers: RegisterBank,
        diffusion_time: RegisterTime,
        *,
        guess: RegisterBank | None = None,
        condition: Condition | None = None,
        keep_condition: Bool[Tensor, "B"] | None = None,
        condition_kv: Float[Tensor, "layers *context"] | None = None,
        identity_attention: Bool[Tensor, "B"] | None = None,
    ) -> RegisterBank:
        """The clean registers.

        Without a condition, or for samples that do not keep theirs, a conditional denoiser sees its trained null
        condition: one network can then serve as both priors (decision D15). A condition of fewer rows is shared:
        samples take its rows in turns. What `cross_attention_kv` gave stands in for a condition that does not
        change from call to call. `guess` is what was predicted a step ago, where this denoiser looks at it; zero,
        the default, is none. Registers of samples that are `identity_attention` do not see each other (decision
        D33).
        """
        if noisy_registers.shape[1:] != (self.config.num_registers, self.config.register_width):
            raise ValueError(
                f"registers of shape {tuple(noisy_registers.shape[1:])} for a denoiser of "
                f"{self.config.num_registers} x {self.config.register_width}"
            )
        if condition is not None and self.enter_condition is None:
            raise ValueError("this denoiser was built without cross-attention: it takes no condition")
        entered = self.enter(noisy_registers.to(self.enter.weight.dtype))
        if guess is not None:
            if self.enter_guess is None:
                raise ValueError("this denoiser was built without self-conditioning: it takes no guess")
            entered = entered + self.enter_guess(guess.to(self.enter_guess.weight.dtype))
        tokens = entered + self.places.to(entered.dtype)  # half precision under autocast, as all that follows
        time = self.time(time_features(diffusion_time).to(tokens.dtype))
        modulation = rearrange(self.time_modulation(F.silu(time)), "b k (s w) -> b k s w", s=6)
        entered = None
        if self.enter_condition is not None and condition_kv is None:
            entered = self.enter_condition(condition, keep_condition)
        for number, block in enumerate(self.blocks):
            tokens = block(
                tokens, modulation, entered if condition_kv is None else condition_kv[number], identity_attention
            )
        shift, scale = (self.last_table.to(time.dtype) + time[:, :, None]).unbind(dim=2)
        return self.leave(modulate(tokens, shift, scale)).to(noisy_registers.dtype)

    def cross_attention_kv(self, condition: Condition | None) -> Float[Tensor, "layers *context"]:
        """What all layers look up in a condition, or in the null condition: more work than the registers are."""
        assert self.enter_condition is not None
        entered = self.enter_condition(condition, None)
        crossings = [block.cross for block in self.blocks if isinstance(block, Block)]
        return torch.stack([cross.keys_and_values(entered) for cross in crossings if cross is not None])

    def init_weights(self, generator: torch.Generator) -> "RegisterDenoiser":
        """Every block starts close to the identity, and the first prediction is the zero bank."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.endswith("table"):
                nn.init.normal_(parameter, std=self.config.width**-0.5, generator=generator)
            elif name.endswith("places") or (name.startswith("time") and parameter.ndim == 2):
                nn.init.normal_(parameter, std=0.02, generator=generator)
            elif name.endswith(("cross.out.weight", "leave.weight", "enter_guess.weight")):
                nn.init.zeros_(parameter)
            elif name.endswith("null"):  # as large as a register
                nn.init.normal_(parameter, generator=generator)
        return self


class ConditionEntry(nn.Module):
    """Brings a condition, or the null condition in its place, to the denoiser's width."""

    def __init__(self, config: RegisterDenoiserConfig) -> None:
        super().__init__()
        assert config.condition_width is not None
        self.null = nn.Parameter(torch.zeros(config.condition_length, config.condition_width))
        self.places = nn.Parameter(torch.zeros(config.condition_length, config.width))
        self.enter = nn.Sequential(
            nn.Linear(config.condition_width, config.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.width, config.width),
        )

    def forward(self, condition: Condition | None, keep: Bool[Tensor, "B"] | None) -> Float[Tensor, "_ C W"]:
        null = self.null[None]  # shared by all samples
        if condition is None:
            condition = null
        elif condition.shape[1:] != self.null.shape:
            raise ValueError(
                f"a condition of shape {tuple(condition.shape[1:])}, expected {tuple(self.null.shape)}"
            )
        elif keep is not None:
            condition = torch.where(keep[:, None, None], condition.to(null.dtype), null)
        entered = self.enter(condition.to(null.dtype))
        return entered + self.places.to(entered.dtype)


class Block(nn.Module):
    def __init__(self, config: RegisterDenoiserConfig) -> None:
        super().__init__()
        width = config.width
        self.table = nn.Parameter(torch.zeros(6, width))  # what this layer adds to the shared modulation
        self.attention = Attention(width, config.num_heads)
        self.cross = Attention(width, config.num_heads) if config.condition_width is not None else None
        self.mlp = nn.Sequential(
            nn.Linear(width, config.mlp_ratio * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.mlp_ratio * width, width),
        )

    def forward(
        self,
        tokens: Tokens,
        modulation: Modulation,
        context: Float[Tensor, "_ C W"] | Context | None,
        identity_attention: Bool[Tensor, "B"] | None = None,
    ) -> Tokens:
        """`context` is the condition at the denoiser's width, or already its keys and values."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = (self.table.to(modulation.dtype) + modulation).unbind(
            dim=2
        )
        normed = modulate(tokens, shift, scale)
        tokens = tokens + gate * self.attention(normed, self.attention.keys_and_values(normed), identity_attention)
        if self.cross is not None:
            assert context is not None
            known = self.cross.keys_and_values(context) if context.ndim == 3 else context
            tokens = tokens + self.cross(tokens, known)
        return tokens + mlp_gate * self.mlp(modulate(tokens, mlp_shift, mlp_scale))


class Attention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def keys_and_values(self, context: Float[Tensor, "_ C W"]) -> Context:
        return rearrange(self.key_value(context), "b c (s h p) -> s b h c p", s=2, h=self.num_heads)

    def forward(
        self, tokens: Tokens, context: Context, identity_attention: Bool[Tensor, "B"] | None = None
    ) -> Tokens:
        """In samples with `identity_attention` every token attends to itself only."""
        key, value = context
        # Samples that share a context are one long query.
        query = rearrange(self.query(tokens), "(s c) k (h p) -> c h (s k) p", c=len(key), h=self.num_heads)
        mixed = F.scaled_dot_product_attention(query, key, value)
        mixed = rearrange(mixed, "c h (s k) p -> (s c) k (h p)", k=tokens.shape[1])
        if identity_attention is not None:
            mixed = torch.where(identity_attention[:, None, None], rearrange(value, "b h k p -> b k (h p)"), mixed)
        return self.out(mixed)


def modulate(tokens: Tokens, shift: Tokens, scale: Tokens) -> Tokens:
    """Layer norm without weights of its own, shifted and scaled as the time says."""
    return F.layer_norm(tokens, tokens.shape[-1:], eps=_NORM_EPS) * (1 + scale) + shift


def time_features(time: RegisterTime) -> Float[Tensor, "B K F"]:
    """Sines and cosines of time x 1000 at geometric frequencies, as in DDPM."""
    half = _TIME_FEATURES // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, device=time.device) / half)
    angles = 1000 * time[..., None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
