"""The register encoder h_phi: a Qwen3 embedding model with learned suffix registers (App. C).

Llama and Qwen2 differ from Qwen3 only in details of their blocks, so the first layers of such a base can be an
encoder too.

    [x_1, ..., x_n, end, s_2, ..., s_K]  ->  z_1 (read at `end`), z_2, ..., z_K

The end token is always visible, and the summary vector is read there, as in Qwen3-Embedding (decision D11). The
vocabulary has no mask token: hidden positions are passed as a mask and blocked from attention.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from crocodil.processes.registers import normalise, positions_across_text
from crocodil.runtime.config import Layers, Length, Positive, TokenId, Width, config
from crocodil.shapes import Positions, RegisterBank, TokenIds


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

    def qwen(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocab_size,
            hidden_size=self.width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_kv_heads,
            head_dim=self.head_width,
            intermediate_size=self.mlp_width,
            rope_parameters={"rope_type": "default", "rope_theta": self.rope_theta},
            rms_norm_eps=self.norm_eps,
            max_position_embeddings=self.max_length,
            use_cache=False,
            attn_implementation="sdpa",
        )


class RegisterEncoder(nn.Module):
    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Qwen3Model(config.qwen())
        self.backbone.rotary_emb = Rotary(config)
        for layer in self.backbone.layers:
            layer.self_attn.is_causal = config.causal
            _adapt(layer.self_attn, config)
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
            inputs_embeds=torch.cat([text, self._tail(text)], dim=1),
            position_ids=self._positions(valid),
            # Without a mask attention is faster. The dict keeps Qwen3 from building its own mask.
            attention_mask={"full_attention": None if all_visible else self._attention_mask(visible)},
        ).last_hidden_state[:, -self.config.num_registers :]
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

    def _attention_mask(self, visible: Positions) -> Bool[Tensor, "B 1 _ L"]:
        """Block hidden positions. If causal, every position sees itself, so that no row is empty."""
        tail = visible.new_ones(len(visible), self.config.num_registers)
        keys = torch.cat([visible, tail], dim=1)
        length = keys.shape[1]
        if not self.config.causal:
            return keys[:, None, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=keys.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=keys.device)
        return ((causal & keys[:, None, :]) | itself)[:, None]


def _adapt(attention: nn.Module, config: RegisterEncoderConfig) -> None:
    """Add the biases of Qwen2 to Qwen3's attention, or remove its norms of queries and keys."""
    if config.qkv_bias:
        for name in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(attention, name)
            setattr(attention, name, nn.Linear(projection.in_features, projection.out_features))
    if config.without_qk_norm:
        attention.q_norm, attention.k_norm = nn.Identity(), nn.Identity()


class Rotary(nn.Module):
    """Qwen3's rotary angles, computed in float32: casting the model would round a buffer."""

    def __init__(self, config: RegisterEncoderConfig) -> None:
        super().__init__()
        self.theta, self.head_width = config.rope_theta, config.head_width

    def forward(self, states: Tensor, positions: Int[Tensor, "B L"]) -> tuple[Tensor, Tensor]:
        exponent = torch.arange(0, self.head_width, 2, device=positions.device).float() / self.head_width
        angles = positions[..., None].float() / self.theta**exponent
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(states.dtype), angles.sin().to(states.dtype)
