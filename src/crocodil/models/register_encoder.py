"""The register encoder h_phi: a Qwen3 embedding model with learned suffix registers (App. C).

Llama and Qwen2 differ from Qwen3 only in details of their blocks, so the first layers of such a base can be an
encoder too.

    [x_1, ..., x_n, end, s_2, ..., s_K]  ->  z_1 (read at `end`), z_2, ..., z_K

The end token is always visible, and the summary vector is read there, as in Qwen3-Embedding (decision D11). The
vocabulary has no mask token: hidden positions are passed as a mask and blocked from attention.
"""

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from crocodil.models.llada import RMSNorm
from crocodil.processes.registers import normalise, positions_across_text
from crocodil.runtime.config import Layers, Length, Positive, TokenId, Width, config
from crocodil.shapes import Positions, RegisterBank, TokenIds

States = Float[Tensor, "B L W"]
Heads = Float[Tensor, "B _ L C"]  # queries, keys or values; C = head width
Rotation = tuple[Float[Tensor, "#B L C"], Float[Tensor, "#B L C"]]  # cosines and sines of the rotary angles
Mask = Bool[Tensor, "B 1 _ L"]  # True: the position may be attended to


@config
class RegisterEncoderConfig:
    vocab_size: Width
    width: Width
    num_layers: Layers
    num_heads: Width
    num_kv_heads: Width
    head_width: Width
    mlp_width: Width
    rope_theta: Positive = 1_000_000.0
    norm_eps: Positive = 1e-6
    max_length: Length = 32_768  # of the training data; informative only
    end_id: TokenId  # the summary is read at this token
    num_registers: Width = 128  # Sec. 5
    register_width: Width = 1024  # Sec. 5; mapped if it differs from `width`
    causal: bool = True  # as in Qwen3; an encoder trained from scratch may be bidirectional (D26)
    across_text: bool = False  # register positions are spread over the text, not behind it (decision D26)
    qkv_bias: bool = False  # biases of queries, keys and values (Qwen2)
    without_qk_norm: bool = False  # no RMSNorm of queries and keys, which only Qwen3 has

    def __post_init__(self) -> None:
        if not 0 <= self.end_id < self.vocab_size:
            raise ValueError(f"end_id {self.end_id} is outside a vocabulary of {self.vocab_size}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_kv_heads} key heads do not divide {self.num_heads} query heads")
        if self.head_width % 2:
            raise ValueError(f"head_width {self.head_width} is odd: rotary positions need an even width")


class RegisterEncoder(nn.Module):
    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Qwen3(config)
        self.suffix = nn.Parameter(torch.zeros(config.num_registers - 1, config.width))
        self.register_map = (
            nn.Linear(config.width, config.register_width, bias=False)
            if config.register_width != config.width
            else None
        )

    def forward(
        self,
        tokens: TokenIds,
        *,
        valid: Positions | None = None,
        hidden: Positions | None = None,
    ) -> RegisterBank:
        """Return z_0 = h_phi(x): K registers of norm sqrt(D).

        `valid` marks the text in a right-padded batch; by default everything is text. `hidden` positions are
        blocked from attention, so that the registers depend only on the visible tokens (App. E).
        """
        all_visible = valid is None and hidden is None
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        visible = valid if hidden is None else valid & ~hidden
        # Hidden positions may hold ids outside this vocabulary; no other position attends to them.
        text = self.backbone.embed_tokens(tokens.masked_fill(~visible, self.config.end_id))
        if torch.is_autocast_enabled(text.device.type):  # keep the residual stream in half precision too
            text = text.to(torch.get_autocast_dtype(text.device.type))
        states = self.backbone(
            torch.cat([text, self._tail(text)], dim=1),
            self._positions(valid),
            None if all_visible else self._attention_mask(visible),  # without a mask attention is faster
        )[:, -self.config.num_registers :]
        return normalise(states if self.register_map is None else self.register_map(states))

    def init_weights(self, generator: torch.Generator) -> "RegisterEncoder":
        """Initialise: normal, std 1 / sqrt(inputs); layers that write to the residual stream shrink with depth."""
        for name, parameter in self.backbone.named_parameters():
            if parameter.ndim == 1:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
                continue
            writes_to_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
            shrink = 2 * self.config.num_layers if writes_to_residual else 1
            nn.init.normal_(parameter, std=(parameter.shape[1] * shrink) ** -0.5, generator=generator)
        return self.init_registers(generator)

    def init_registers(self, generator: torch.Generator) -> "RegisterEncoder":
        """Initialise the parameters that Qwen3 lacks: suffix registers, as large as token embeddings."""
        token_std = self.backbone.embed_tokens.weight.float().std().item()
        nn.init.normal_(self.suffix, std=token_std, generator=generator)
        if self.register_map is not None:
            nn.init.normal_(self.register_map.weight, std=self.config.width**-0.5, generator=generator)
        return self

    def _tail(self, text: Tensor) -> Tensor:
        """Return the embeddings of the end token and the suffix registers."""
        end = self.backbone.embed_tokens.weight[self.config.end_id]
        tail = torch.cat([end[None], self.suffix.to(end.dtype)])
        return tail.to(text.dtype).expand(len(text), -1, -1)

    def _positions(self, valid: Positions) -> Int[Tensor, "B L"]:
        """Return position ids. The tail is stored after the padding; its positions follow or span the text."""
        num_text, num_tail = valid.shape[1], self.config.num_registers
        if self.config.across_text:
            tail = positions_across_text(num_tail, valid.sum(dim=1))
        else:
            tail = valid.sum(dim=1, keepdim=True) + torch.arange(num_tail, device=valid.device)
        return torch.cat([torch.arange(num_text, device=valid.device).expand(len(valid), -1), tail], dim=1)

    def _attention_mask(self, visible: Positions) -> Mask:
        """Block hidden positions. If causal, every position sees itself, so that no row is empty."""
        tail = visible.new_ones(len(visible), self.config.num_registers)
        keys = torch.cat([visible, tail], dim=1)
        length = keys.shape[1]
        if not self.config.causal:
            return keys[:, None, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=keys.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=keys.device)
        return ((causal & keys[:, None, :]) | itself)[:, None]


class Qwen3(nn.Module):
    """Qwen3's blocks. The names are those of its checkpoints, the operations those of transformers.

    transformers has the same network, but importing it takes longer than generating a text.
    """

    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.width, config.norm_eps)
        self.rotary_emb = Rotary(config)

    def forward(self, states: States, positions: Int[Tensor, "#B L"], mask: Mask | None) -> States:
        rotation = self.rotary_emb(states, positions)
        for layer in self.layers:
            states = layer(states, rotation, mask)
        return self.norm(states)


class Layer(nn.Module):
    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)

    def forward(self, states: States, rotation: Rotation, mask: Mask | None = None) -> States:
        states = states + self.self_attn(self.input_layernorm(states), rotation, mask)
        return states + self.mlp(self.post_attention_layernorm(states))


class Attention(nn.Module):
    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        inner, kv_width = config.num_heads * config.head_width, config.num_kv_heads * config.head_width
        self.head_width, self.is_causal = config.head_width, config.causal
        self.q_proj = nn.Linear(config.width, inner, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.o_proj = nn.Linear(inner, config.width, bias=False)
        has_norms = not config.without_qk_norm
        self.q_norm = RMSNorm(config.head_width, config.norm_eps) if has_norms else nn.Identity()
        self.k_norm = RMSNorm(config.head_width, config.norm_eps) if has_norms else nn.Identity()

    def forward(self, normed: States, rotation: Rotation, mask: Mask | None) -> States:
        query, key, value = (
            project(normed).unflatten(-1, (-1, self.head_width))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query = rotate(self.q_norm(query).transpose(1, 2), rotation)
        key = rotate(self.k_norm(key).transpose(1, 2), rotation)
        value = value.transpose(1, 2)
        if mask is not None:  # only without a mask do the fast kernels share a key among heads
            groups = query.shape[1] // key.shape[1]
            key, value = (repeat(heads, "b h l p -> b (h g) l p", g=groups) for heads in (key, value))
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=self.is_causal and mask is None,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        return self.o_proj(rearrange(mixed, "b h l p -> b l (h p)"))


class GatedMLP(nn.Module):
    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, normed: States) -> States:
        return self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


def rotate(heads: Heads, rotation: Rotation) -> Heads:
    """Apply the rotary embedding in the dtype of the states, as Qwen3 does; LLaDA's is in float32."""
    cos, sin = (part[:, None] for part in rotation)  # the same for all heads
    half = heads.shape[-1] // 2
    return heads * cos + torch.cat([-heads[..., half:], heads[..., :half]], dim=-1) * sin


class Rotary(nn.Module):
    """Qwen3's rotary angles, computed in float32: casting the model would round a buffer."""

    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.theta, self.head_width = config.rope_theta, config.head_width

    def forward(self, states: Tensor, positions: Int[Tensor, "#B L"]) -> Rotation:
        exponent = torch.arange(0, self.head_width, 2, device=positions.device).float() / self.head_width
        angles = positions[..., None].float() / self.theta**exponent
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(states.dtype), angles.sin().to(states.dtype)
