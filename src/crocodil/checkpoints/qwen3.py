"""Load Qwen3-Embedding's public checkpoints exactly, as the backbone of a register encoder."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from crocodil.checkpoints.hub import local_folder
from crocodil.checkpoints.tensors import CONFIG_FILE, Device, StrPath, load_exactly, stored_tensors, without_values
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.runtime.config import read_json


def load_qwen3_embedding(
    directory: StrPath,
    *,
    num_registers: int,
    generator: torch.Generator,
    register_width: int | None = None,
    end_id: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = "cpu",
) -> RegisterEncoder:
    """Load a register encoder from Qwen3-Embedding, in a folder or on the hub; `generator` draws its registers.

    By default, registers are as wide as the backbone, and the summary is read at the model's end-of-sequence
    token.
    """
    directory = local_folder(directory)
    values = read_json(directory / CONFIG_FILE)
    config = qwen3_config(
        values,
        source=directory / CONFIG_FILE,
        num_registers=num_registers,
        register_width=register_width,
        end_id=end_id,
    )
    with without_values():
        encoder = RegisterEncoder(config)
    stored = stored_tensors(directory)
    stored.pop("lm_head.weight", None)  # some exports keep the output head, which is not used here
    prefix = "model." if "model.embed_tokens.weight" in stored else ""
    load_exactly(encoder.backbone, stored, rename=lambda name: prefix + name, dtype=dtype, device=device)
    weight_dtype = encoder.backbone.embed_tokens.weight.dtype
    encoder.suffix = nn.Parameter(torch.empty_like(encoder.suffix, device=device, dtype=weight_dtype))
    if encoder.register_map is not None:
        encoder.register_map.to_empty(device=device).to(weight_dtype)
    return encoder.init_registers(generator)


def qwen3_config(
    values: Mapping[str, Any],
    *,
    source: object = CONFIG_FILE,
    num_registers: int,
    register_width: int | None = None,
    end_id: int | None = None,
) -> RegisterEncoderConfig:
    """Convert the contents of Qwen3's config.json; `source` is named in errors."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    fixed = {
        "model_type": (values.get("model_type"), "qwen3"),
        "hidden_act": (values.get("hidden_act", "silu"), "silu"),
        "attention_bias": (values.get("attention_bias", False), False),
        "use_sliding_window": (values.get("use_sliding_window", False), False),
        "rope type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    for name, (value, expected) in fixed.items():
        if value != expected:
            raise ValueError(f"{source}: {name} is {value!r}, but only {expected!r} is implemented")
    try:
        return RegisterEncoderConfig(
            vocab_size=values["vocab_size"],
            width=values["hidden_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=values["num_attention_heads"],
            num_kv_heads=values["num_key_value_heads"],
            head_width=values["head_dim"],
            mlp_width=values["intermediate_size"],
            rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else values["rope_theta"]),
            norm_eps=values["rms_norm_eps"],
            max_length=values["max_position_embeddings"],
            end_id=values["eos_token_id"] if end_id is None else end_id,
            num_registers=num_registers,
            register_width=register_width or values["hidden_size"],
        )
    except KeyError as missing:
        raise ValueError(f"{source} has no {missing}") from None
