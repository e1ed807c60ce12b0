"""Low-rank adapters (Hu et al., 2021, arXiv:2106.09685) on a demasker too large to train whole, through peft."""

from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.runtime.config import Positive, Width, config

_ADAPTER = "default"
_PROJECTIONS = ("query", "key", "value", "attn_out", "gate", "up", "down")  # of a block


@config
class LoRA:
    rank: Width = 64
    alpha: Positive = 64.0  # the update is scaled by alpha / rank
    targets: tuple[str, ...] = _PROJECTIONS

    def __post_init__(self) -> None:
        unknown = sorted(set(self.targets) - set(_PROJECTIONS))
        if unknown or not self.targets:
            raise ValueError(f"lora.targets are some of {', '.join(_PROJECTIONS)}, not {unknown}")


def check_installed() -> None:
    if find_spec("peft") is None:
        raise ValueError("LoRA needs peft: pip install 'crocodil[lora]'")


def add_adapters(backbone: LLaDA, lora: LoRA, generator: torch.Generator) -> LLaDA:
    """Freeze the backbone and put float32 adapters beside its projections; they begin as no change at all."""
    check_installed()
    import peft

    backbone.requires_grad_(False)
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(lora.targets))
    peft.inject_adapter_in_model(config, backbone, adapter_name=_ADAPTER)
    for name, parameter in backbone.named_parameters():
        if "lora_A" in name:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
    return backbone


def learned_parameters(backbone: nn.Module) -> list[nn.Parameter]:
    """The adapters where there are any, else everything."""
    adapters = [parameter for name, parameter in backbone.named_parameters() if "lora_" in name]
    return adapters or list(backbone.parameters())


def merged(weights: Mapping[str, Tensor], lora: LoRA) -> dict[str, Tensor]:
    """The weights of the plain network that computes the same, W + (alpha / rank) B A, in the backbone's dtype."""
    plain = {}
    dtype = weights["backbone.embed.weight"].dtype
    for name, weight in weights.items():
        if "lora_" in name:
            continue
        if ".base_layer." in name:
            stem = name.removesuffix(".base_layer.weight")
            down, up = (weights[f"{stem}.lora_{part}.{_ADAPTER}.weight"] for part in "AB")
            change = (lora.alpha / lora.rank) * (up.float() @ down.float())
            plain[f"{stem}.weight"] = (weight.float() + change).to(dtype)
        else:
            plain[name] = weight.to(dtype)
    return plain


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
