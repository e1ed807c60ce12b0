"""Low-rank adapters (Hu et al., 2021, arXiv:2106.09685) on a demasker too large to train whole, through peft."""

from collections.abc import Mapping
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from crocodil.config import Positive, Width, config
from crocodil.models.llada import LLaDA

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
