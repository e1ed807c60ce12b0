"""Load causal language models as bases: Llama, Qwen2 and Qwen3 in the layout of transformers (decision D39).

The weights are read exactly; only the causal mask is left out. Dream, a diffusion model that began as Qwen2.5, has
the same layout.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crocodil.checkpoints.hub import JSON_FILES, local_folder
from crocodil.checkpoints.tensors import (
    CONFIG_FILE,
    Device,
    Stored,
    StrPath,
    load_exactly,
    stored_tensors,
    tensors_in,
    without_values,
)
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.runtime.config import read_json
from crocodil.text.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
PARENTS = "crocodil_parents"  # in config.json of a folder that was made from another one
CAUSAL_TYPES = ("llama", "qwen2", "qwen3")
DREAM = "Dream"
ROWS_IN_STEPS_OF = 64  # matrix products are slow with odd sizes

_TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


class SpecialRows(NamedTuple):
    """The ids of a base's special tokens, and the number of rows that its embedding needs."""

    mask: int
    eos: int
    pad: int
    num_rows: int


def load_causal(
    directory: StrPath,
    *,
    layers: Sequence[int] | None = None,
    shifted: bool = False,
    dtype: torch.dtype | None = None,
    device: Device = "cpu",
) -> LLaDA:
    """Load a causal language model as a base; it attends both ways unless `forward` is told otherwise.

    `layers` keeps only these layers. With `shifted`, the state at a position predicts the next token, as in the
    causal model. The mask token is the tokenizer's, or an unused row of the embedding, or else a new row, which
    starts as the mean of all rows.
    """
    directory = local_folder(directory)
    config = read_causal_config(directory, layers=layers, shifted=shifted)
    num_rows = _vocab_size(read_json(directory / CONFIG_FILE), directory / CONFIG_FILE)
    return load_in_layout(directory, config, num_rows=num_rows, layers=layers, dtype=dtype, device=device)


def read_causal_config(
    directory: StrPath, *, layers: Sequence[int] | None = None, shifted: bool = False
) -> LLaDAConfig:
    """Read the shape of the base that `load_causal` returns, without its weights."""
    directory = local_folder(directory, patterns=JSON_FILES)
    source = directory / CONFIG_FILE
    values = read_json(source)
    special = special_rows(Tokenizer.load(directory / TOKENIZER_FILE), _vocab_size(values, source))
    return causal_config(values, special=special, layers=layers, shifted=shifted, source=source)


def special_rows(tokenizer: Tokenizer, vocab_size: int) -> SpecialRows:
    """Return the special ids of a base with this tokenizer, whose embedding has `vocab_size` rows."""
    mask = tokenizer.with_mask().special.mask
    assert mask is not None
    num_rows = vocab_size if mask < vocab_size else -(-(mask + 1) // ROWS_IN_STEPS_OF) * ROWS_IN_STEPS_OF
    return SpecialRows(mask, tokenizer.special.eos, tokenizer.special.pad, num_rows)


def load_in_layout(
    directory: Path,
    config: LLaDAConfig,
    *,
    num_rows: int,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    device: Device = "cpu",
) -> LLaDA:
    """Load weights in the layout of transformers; the stored embedding has `num_rows`, missing rows are added."""
    stored = stored_tensors(directory)
    for name in [name for name in stored if name.endswith("rotary_emb.inv_freq")]:
        del stored[name]  # old exports keep the frequencies, which follow from the config
    if config.tied_head:
        stored.pop("lm_head.weight", None)  # some exports keep a copy of the embedding
    if layers is not None:
        dropped = tuple(f"model.layers.{i}." for i in set(_layer_indices(stored)) - set(layers))
        stored = {name: file for name, file in stored.items() if not name.startswith(dropped)}
    with without_values():
        model = LLaDA(config)
        if num_rows < config.vocab_size:
            _set_tables(model, torch.empty(num_rows, config.width), torch.empty(num_rows, config.width))
    load_exactly(model, stored, rename=partial(stored_name, layers=layers), dtype=dtype, device=device)
    return _with_added_rows(model)


def stored_name(name: str, *, layers: Sequence[int] | None = None) -> str:
    """Return the name that transformers gives to one of our tensors; block i holds `layers[i]`."""
    *path, module, leaf = name.split(".")
    if not path:
        return f"{_TOP[module]}.{leaf}"
    index = int(path[1])
    return f"model.layers.{index if layers is None else layers[index]}.{_BLOCK[module]}.{leaf}"


def weight_size(directory: StrPath) -> float:
    """Return the root mean square of a matrix in the blocks, the median of all; the files are read one by one."""
    stored = stored_tensors(local_folder(directory))
    sizes = [
        tensor.float().square().mean().sqrt().item()
        for file in sorted(set(stored.values()))
        for name, tensor in tensors_in(file).items()
        if name.startswith("model.layers.") and tensor.ndim == 2
    ]
    if not sizes:
        raise ValueError(f"{directory} has no matrices named model.layers...: it is no Llama, Qwen2 or Qwen3")
    return median(sizes)


@torch.no_grad()
def _with_added_rows(model: LLaDA) -> LLaDA:
    """Add the rows that the embedding and the head lack; each is the mean of the present rows."""
    missing = model.config.vocab_size - len(model.embed.weight)
    if missing:
        head = model.embed if model.head is None else model.head
        _set_tables(model, _grown(model.embed.weight, missing), _grown(head.weight, missing))
    return model


def _grown(matrix: Tensor, missing: int) -> Tensor:
    return torch.cat([matrix, matrix.mean(dim=0, keepdim=True).expand(missing, -1)])


def _set_tables(model: LLaDA, embedding: Tensor, head: Tensor) -> None:
    model.embed.weight = nn.Parameter(embedding)
    if model.head is not None:
        model.head.weight = nn.Parameter(head)


def _layer_indices(stored: Stored) -> list[int]:
    names = [name.split(".") for name in stored]
    return [int(parts[2]) for parts in names if parts[:2] == ["model", "layers"] and parts[2].isdecimal()]


# ---------------------------------------------------------------- config.json


def family_of(values: Mapping[str, Any]) -> str:
    """Return the family of a checkpoint by its config.json: checkpoints of one family may share weights.

    For example "llama-30x576-49152": type, layers x width, vocabulary.
    """
    names = ("num_hidden_layers", "hidden_size", "vocab_size")
    layers, width, vocabulary = (values.get(name) for name in names)
    kind = "qwen2" if values.get("model_type") == DREAM else values.get("model_type")
    return f"{kind}-{layers}x{width}-{vocabulary}"


def causal_config(
    values: Mapping[str, Any],
    *,
    special: SpecialRows,
    layers: Sequence[int] | None = None,
    shifted: bool = False,
    source: object = CONFIG_FILE,
) -> LLaDAConfig:
    """Convert the config.json of a Llama, Qwen2, Qwen3 or Dream folder; `source` is named in errors."""
    kind = values.get("model_type")
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    fixed = {
        "hidden_act": (values.get("hidden_act", "silu"), "silu"),
        "mlp_bias": (values.get("mlp_bias", False), False),
        "attention_bias": (values.get("attention_bias", False), False),
        "use_sliding_window": (values.get("use_sliding_window", False), False),
        "rope type": (rope.get("rope_type", rope.get("type", "default")), "default"),
    }
    if kind not in (*CAUSAL_TYPES, DREAM):
        raise ValueError(f"{source}: model_type is {kind!r}, but only {', '.join(CAUSAL_TYPES)} can become a base")
    for name, (value, expected) in fixed.items():
        if value != expected:
            raise ValueError(f"{source}: {name} is {value!r}, but only {expected!r} is implemented")
    try:
        return LLaDAConfig(
            vocab_size=special.num_rows,
            width=values["hidden_size"],
            num_layers=len(_checked_layers(layers, values["num_hidden_layers"], source)),
            num_heads=values["num_attention_heads"],
            num_kv_heads=values.get("num_key_value_heads") or values["num_attention_heads"],
            head_size=values.get("head_dim"),
            mlp_width=values["intermediate_size"],
            qkv_bias=kind in ("qwen2", DREAM),
            qk_norm=kind == "qwen3",
            rope_theta=float(rope.get("rope_theta") or values.get("rope_theta") or 10_000.0),
            norm_eps=values["rms_norm_eps"],
            tied_head=values.get("tie_word_embeddings", False),
            shifted=shifted or kind == DREAM,
            max_length=values["max_position_embeddings"],
            parents=tuple(values.get(PARENTS) or [family_of(values)]),
            mask_id=special.mask,
            eos_id=special.eos,
            pad_id=special.pad,
        )
    except KeyError as missing:
        raise ValueError(f"{source} has no {missing}") from None


def _checked_layers(layers: Sequence[int] | None, num_layers: int, source: object) -> Sequence[int]:
    if layers is None:
        return range(num_layers)
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= num_layers:
        raise ValueError(f"{source}: layers must rise from 0 to {num_layers - 1} at most, not {list(layers)}")
    return layers


def _vocab_size(values: Mapping[str, Any], source: object) -> int:
    if not isinstance(values.get("vocab_size"), int):
        raise ValueError(f"{source} has no 'vocab_size'")
    return values["vocab_size"]
