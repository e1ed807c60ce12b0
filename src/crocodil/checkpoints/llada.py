"""Load LLaDA's public checkpoints exactly (https://huggingface.co/GSAI-ML/LLaDA-8B-Base).

iLLaDA (arXiv:2606.25331) has the same blocks with fewer key heads and a tied head. Its files could not be
examined: it is assumed that they use LLaDA's names.
"""

from collections.abc import Mapping
from typing import Any

import torch

from crocodil.checkpoints.hub import local_folder
from crocodil.checkpoints.tensors import CONFIG_FILE, Device, StrPath, load_exactly, stored_tensors, without_values
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.runtime.config import read_json

# Our name of a tensor -> LLaDA's name. The head and a block's down projection share the leaf name `ff_out`.
_LLADA_TOP = {"embed": "wte", "norm": "ln_f", "head": "ff_out"}
_LLADA_BLOCK = {
    "attn_norm": "attn_norm",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "attn_out": "attn_out",
    "ff_norm": "ff_norm",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
}

LLADA_TYPES = ("llada", "illada")

# Options of LLaDA's format that have only one value here.
_LLADA_FIXED = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "rope": True,
    "alibi": False,
    "scale_logits": False,
}


def load_llada(directory: StrPath, *, dtype: torch.dtype | None = None, device: Device = "cpu") -> LLaDA:
    """Load LLaDA from a folder or the hub: config.json and safetensors, one file or an index of shards."""
    directory = local_folder(directory)
    config = llada_config(read_json(directory / CONFIG_FILE), source=directory / CONFIG_FILE)
    with without_values():
        model = LLaDA(config)
    return load_exactly(model, stored_tensors(directory), rename=llada_name, dtype=dtype, device=device)


def llada_name(name: str) -> str:
    """Return LLaDA's name for one of our tensors."""
    *path, module, leaf = name.split(".")
    if path:
        _, index = path
        return f"model.transformer.blocks.{index}.{_LLADA_BLOCK[module]}.{leaf}"
    return f"model.transformer.{_LLADA_TOP[module]}.{leaf}"


def llada_config(values: Mapping[str, Any], *, source: object = CONFIG_FILE) -> LLaDAConfig:
    """Convert the contents of LLaDA's config.json; `source` is named in errors."""
    if values.get("model_type", LLADA_TYPES[0]) not in LLADA_TYPES:
        raise ValueError(f"{source}: model_type is {values['model_type']!r}, but only 'llada' is implemented")
    for name, expected in _LLADA_FIXED.items():
        if values.get(name, expected) != expected:
            raise ValueError(f"{source}: {name} is {values[name]!r}, but only {expected!r} is implemented")
    try:
        return LLaDAConfig(
            vocab_size=values.get("embedding_size") or values["vocab_size"],
            width=values["d_model"],
            num_layers=values["n_layers"],
            num_heads=values["n_heads"],
            num_kv_heads=_num_kv_heads(values),
            mlp_width=values.get("mlp_hidden_size") or values["mlp_ratio"] * values["d_model"],
            rope_theta=float(values.get("rope_theta", 10_000.0)),
            norm_eps=values.get("rms_norm_eps", 1e-5),
            tied_head=values.get("weight_tying", False),
            max_length=values["max_sequence_length"],
            mask_id=values["mask_token_id"],
            eos_id=values["eos_token_id"],
            pad_id=values["pad_token_id"],
        )
    except KeyError as missing:
        raise ValueError(f"{source} has no {missing}") from None


def _num_kv_heads(values: Mapping[str, Any]) -> int:
    if values.get("multi_query_attention"):
        return 1
    return values.get("n_kv_heads") or values["n_heads"]
