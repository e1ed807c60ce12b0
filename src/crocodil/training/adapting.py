"""Start from other networks: LoRA adapters, and an encoder initialised from the base.

LoRA (Hu et al., 2021, arXiv:2106.09685) is for a demasker that is too large to train in full; peft implements it.
"""

from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.runtime.config import Positive, Width, config

_ADAPTER = "default"
_PROJECTIONS = ("query", "key", "value", "attn_out", "gate", "up", "down")  # linear maps of a block


# ---------------------------------------------------------------- LoRA


@config
class LoRA:
    rank: Width = 64
    alpha: Positive = 64.0  # the update is scaled by alpha / rank
    targets: tuple[str, ...] = _PROJECTIONS

    def __post_init__(self) -> None:
        unknown = sorted(set(self.targets) - set(_PROJECTIONS))
        if unknown or not self.targets:
            raise ValueError(f"lora.targets must be one or more of {', '.join(_PROJECTIONS)}, not {unknown}")


def check_peft_installed() -> None:
    if find_spec("peft") is None:
        raise ValueError("LoRA needs peft: pip install 'crocodil[lora]'")


def add_adapters(backbone: LLaDA, lora: LoRA, generator: torch.Generator) -> LLaDA:
    """Freeze the backbone and add float32 adapters to its projections; at first they do not change the output."""
    check_peft_installed()
    import peft

    backbone.requires_grad_(False)
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets))
    peft.inject_adapter_in_model(config, backbone, adapter_name=_ADAPTER)
    for name, parameter in backbone.named_parameters():
        if "lora_A" in name:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
    return backbone


def trainable_parameters(backbone: nn.Module) -> list[nn.Parameter]:
    """Return the adapters if the backbone has any, else all its parameters."""
    adapters = [parameter for name, parameter in backbone.named_parameters() if "lora_" in name]
    return adapters or list(backbone.parameters())


def merge_adapters(weights: Mapping[str, Tensor], lora: LoRA) -> dict[str, Tensor]:
    """Return the weights without adapters, W + (alpha / rank) B A, in the backbone's dtype."""
    merged = {}
    dtype = weights["backbone.embed.weight"].dtype
    for name, weight in weights.items():
        if "lora_" in name:
            continue
        if ".base_layer." in name:
            stem = name.removesuffix(".base_layer.weight")
            down, up = (weights[f"{stem}.lora_{part}.{_ADAPTER}.weight"] for part in "AB")
            update = (lora.alpha / lora.rank) * (up.float() @ down.float())
            merged[f"{stem}.weight"] = (weight.float() + update).to(dtype)
        else:
            merged[name] = weight.to(dtype)
    return merged


# ---------------------------------------------------------------- an encoder from the base (decision D28)

# Parameters of a Qwen3 block, and their names in a LLaDA block.
_LLADA_NAMES = {
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
_LLADA_BIASES = {
    "self_attn.q_proj.bias": "query.bias",
    "self_attn.k_proj.bias": "key.bias",
    "self_attn.v_proj.bias": "value.bias",
}
_LLADA_NORMS = {
    "self_attn.q_norm.weight": "query_norm.weight",
    "self_attn.k_norm.weight": "key_norm.weight",
}
_SAME_FIELDS = (
    "vocab_size", "width", "num_heads", "num_kv_heads", "head_width", "mlp_width", "rope_theta", "qkv_bias",
)  # fmt: skip


def check_encoder_fits_base(encoder: RegisterEncoderConfig, base: LLaDAConfig) -> None:
    """Refuse an encoder that cannot be initialised from the base because their shapes differ."""
    for name in _SAME_FIELDS:
        wanted, available = getattr(encoder, name), getattr(base, name)
        if wanted != available:
            raise ValueError(f"encoder.{name} is {wanted}, but the base has {available}: {_ADVICE}")
    if base.qk_norm and encoder.without_qk_norm:
        raise ValueError(f"encoder.without_qk_norm is true, but the base has norms of queries and keys: {_ADVICE}")
    if encoder.num_layers > base.num_layers:
        wanted, available = encoder.num_layers, base.num_layers
        raise ValueError(f"encoder.num_layers is {wanted}, but the base has {available}: {_ADVICE}")


_ADVICE = "make them fit, or set encoder_begins_as_base=false"


@torch.no_grad()
def init_from_base(encoder: RegisterEncoder, base: LLaDA, generator: torch.Generator) -> RegisterEncoder:
    """Copy the base's embeddings and first blocks into the encoder.

    The blocks compute the same, unless the encoder has norms of queries and keys and the base has none: these keep
    their initial values.
    """
    check_encoder_fits_base(encoder.config, base.config)
    encoder.backbone.embed_tokens.weight.copy_(base.embed.weight)
    biases = _LLADA_BIASES if base.config.qkv_bias else {}
    norms = _LLADA_NORMS if base.config.qk_norm else {}
    names = _LLADA_NAMES | biases | norms
    for layer, block in zip(encoder.backbone.layers, base.blocks, strict=False):
        for name, llada_name in names.items():
            layer.get_parameter(name).copy_(block.get_parameter(llada_name))
    return encoder.init_registers(generator)  # at the scale of the copied embeddings
