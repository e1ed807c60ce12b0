"""A fresh encoder that begins as the base does: with its token embeddings and first blocks (decision D28)."""

import torch

from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig

# Parameters of a block of Qwen3, and what LLaDA calls them.
_TAKEN = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "query.weight",
    "self_attn.k_proj.weight": "key.weight",
    "self_attn.v_proj.weight": "value.weight",
    "self_attn.o_proj.weight": "attn_out.weight",
    "post_attention_layernorm.weight": "ff_norm.weight",
    "mlp.gate_proj.weight": "gate.weight",
    "mlp.up_proj.weight": "up.weight",
    "mlp.down_proj.weight": "down.weight",
}
_ALIKE = ("vocab_size", "width", "num_heads", "num_kv_heads", "head_width", "mlp_width", "rope_theta")


def check_alike(encoder: RegisterEncoderConfig, base: LLaDAConfig) -> None:
    """Whether an encoder of this shape can begin as a base of that shape."""
    for name in _ALIKE:
        own, given = getattr(encoder, name), getattr(base, name)
        if own != given:
            raise ValueError(f"an encoder of {name} {own} cannot begin as a base of {name} {given}")
    if encoder.num_layers > base.num_layers:
        raise ValueError("an encoder cannot begin as a base of fewer layers")


@torch.no_grad()
def begin_as_base(encoder: RegisterEncoder, base: LLaDA, generator: torch.Generator) -> RegisterEncoder:
    """Qwen3's blocks are LLaDA's but for the names, and for norms of queries and keys, which stay fresh."""
    check_alike(encoder.config, base.config)
    encoder.backbone.embed_tokens.weight.copy_(base.embed.weight)
    for layer, block in zip(encoder.backbone.layers, base.blocks, strict=False):
        for name, taken in _TAKEN.items():
            layer.get_parameter(name).copy_(block.get_parameter(taken))
    return encoder.init_registers(generator)  # as large as these embeddings
