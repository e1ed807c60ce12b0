"""Weights on disk: LLaDA's and Qwen3-Embedding's checkpoints, and this project's own format.

Weights load exactly or not at all: every tensor of a file is accounted for by name and shape, or one line
says which is not. Only safetensors are read; no pickle, no code from a checkpoint, no network.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from crocodil.atomic import whole_directory
from crocodil.checksums import check_quickly, write_checksums
from crocodil.config import config_from_json, read_json
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.quantisation import from_int8, to_int8

StrPath: TypeAlias = str | os.PathLike[str]
Device: TypeAlias = str | torch.device

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


# ---------------------------------------------------------------- LLaDA

# Our name of a tensor -> LLaDA's. The head and a block's down projection share the leaf name `ff_out`.
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

# What LLaDA's format can say and this implementation does not vary.
_LLADA_FIXED = {
    "model_type": "llada",
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
    """LLaDA from its public format: config.json and safetensors, one file or an index of shards."""
    directory = Path(directory)
    config = llada_config(read_json(directory / CONFIG_FILE), source=directory / CONFIG_FILE)
    with torch.device("meta"):
        model = LLaDA(config)
    return _load(model, _stored_tensors(directory), rename=llada_name, dtype=dtype, device=device)


def llada_name(name: str) -> str:
    """LLaDA's name of one of our tensors."""
    *path, module, leaf = name.split(".")
    if path:
        _, index = path
        return f"model.transformer.blocks.{index}.{_LLADA_BLOCK[module]}.{leaf}"
    return f"model.transformer.{_LLADA_TOP[module]}.{leaf}"


def llada_config(values: Mapping[str, Any], *, source: object = CONFIG_FILE) -> LLaDAConfig:
    """Our config from the contents of LLaDA's config.json; `source` is named in errors."""
    for name, expected in _LLADA_FIXED.items():
        if values.get(name, expected) != expected:
            raise ValueError(f"{source}: {name} is {values[name]!r}; only {expected!r} is implemented")
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


# ---------------------------------------------------------------- Qwen3-Embedding


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
    """A register encoder on a local Qwen3-Embedding folder; its registers are fresh, from `generator`.

    Registers are as wide as the backbone, and the summary is read at the model's end-of-sequence token,
    unless told otherwise.
    """
    directory = Path(directory)
    values = read_json(directory / CONFIG_FILE)
    config = qwen3_config(
        values,
        source=directory / CONFIG_FILE,
        num_registers=num_registers,
        register_width=register_width,
        end_id=end_id,
    )
    with torch.device("meta"):
        encoder = RegisterEncoder(config)
    stored = _stored_tensors(directory)
    stored.pop("lm_head.weight", None)  # some exports of the same model keep a head; no embedding needs it
    prefix = "model." if "model.embed_tokens.weight" in stored else ""
    _load(encoder.backbone, stored, rename=lambda name: prefix + name, dtype=dtype, device=device)
    like = encoder.backbone.embed_tokens.weight
    encoder.suffix = nn.Parameter(torch.empty_like(encoder.suffix, device=device, dtype=like.dtype))
    if encoder.register_map is not None:
        encoder.register_map.to_empty(device=device).to(like.dtype)
    return encoder.init_registers(generator)


def qwen3_config(
    values: Mapping[str, Any],
    *,
    source: object = CONFIG_FILE,
    num_registers: int,
    register_width: int | None = None,
    end_id: int | None = None,
) -> RegisterEncoderConfig:
    """Our config from the contents of Qwen3's config.json; `source` is named in errors."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    fixed = {
        "model_type": (values.get("model_type"), "qwen3"),
        "hidden_act": (values.get("hidden_act", "silu"), "silu"),
        "attention_bias": (values.get("attention_bias", False), False),
        "use_sliding_window": (values.get("use_sliding_window", False), False),
        "rope type": (rope.get("rope_type", "default"), "default"),
    }
    for name, (found, expected) in fixed.items():
        if found != expected:
            raise ValueError(f"{source}: {name} is {found!r}; only {expected!r} is implemented")
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


# ---------------------------------------------------------------- our own format

FORMAT = "crocodil"
FORMAT_VERSION = 1

_KINDS: dict[str, tuple[type[nn.Module], type]] = {
    "LLaDA": (LLaDA, LLaDAConfig),
    "Demasker": (Demasker, DemaskerConfig),
    "RegisterEncoder": (RegisterEncoder, RegisterEncoderConfig),
    "RegisterDenoiser": (RegisterDenoiser, RegisterDenoiserConfig),
}

Model: TypeAlias = LLaDA | Demasker | RegisterEncoder | RegisterDenoiser


def save_model(
    model: Model, directory: StrPath, *, weights: Mapping[str, Tensor] | None = None, int8: bool = False
) -> None:
    """Write a model as config.json and model.safetensors; the directory appears whole or not at all.

    `weights` stand in for the model's own where these are sharded or adapted. With `int8`, matrices are rounded to
    rows of int8 with their scales, at a quarter of the size.
    """
    directory = Path(directory)
    if directory.exists():
        raise ValueError(f"{directory} exists: models are never overwritten, choose another directory")
    with whole_directory(directory) as unfinished:
        tensors = model.state_dict() if weights is None else weights
        tensors = _as_int8(tensors) if int8 else tensors
        _write_tensors(tensors, unfinished / WEIGHTS_FILE)
        description = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": next(kind for kind, (network, _) in _KINDS.items() if isinstance(model, network)),
            "config": dataclasses.asdict(model.config),
        }
        (unfinished / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
        write_checksums(unfinished)


def _write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    try:
        write_tensors({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    except SafetensorError as error:  # a full disk, say
        raise OSError(f"{file} cannot be written: {error}") from error


def write_tensors(tensors: dict[str, Tensor], file: Path, about: dict[str, str] | None = None) -> None:
    """As safetensors; a full disk is an OSError as everywhere else."""
    try:
        save_file(tensors, file, about)
    except SafetensorError as error:
        raise OSError(f"{file} cannot be written: {error}") from error


def _as_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8, each with its scales beside it; what is no matrix is small and stays exact."""
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            stored[name], stored[_scale_name(name)] = to_int8(tensor)
        else:
            stored[name] = tensor.float()
    return stored


def _scale_name(name: str) -> str:
    return f"{name}.scale"


def load_model(directory: StrPath, *, dtype: torch.dtype | None = None, device: Device = "cpu") -> Model:
    """A model that `save_model` wrote."""
    directory = Path(directory)
    source = directory / CONFIG_FILE
    check_quickly(directory)
    description = read_json(source)
    if description.get("format") != FORMAT:
        raise ValueError(f"{source} is not in this project's format (for LLaDA's own, use load_llada)")
    if description.get("format_version") != FORMAT_VERSION:
        version = description.get("format_version")
        raise ValueError(f"{source} has format version {version}; this crocodil reads {FORMAT_VERSION}")
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{source}: unknown kind of model {kind!r}, known are {', '.join(_KINDS)}")
    build, config_class = _KINDS[kind]
    config = config_from_json(config_class, description.get("config"), source)
    with torch.device("meta"):
        model = build(config)
    return _load(model, _stored_tensors(directory), rename=lambda name: name, dtype=dtype, device=device)


# ---------------------------------------------------------------- exact loading

Stored: TypeAlias = dict[str, Path]  # a tensor's name -> the file that holds it


def _load(
    model: Any, stored: Stored, *, rename: Callable[[str], str], dtype: torch.dtype | None, device: Device
) -> Any:
    """Give a model built on the meta device its weights; `rename` is our name -> the stored one."""
    expected = {rename(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if missing := sorted(set(expected) - set(stored)):
        raise ValueError(f"{_where(stored.values())} lacks {_listed(missing)}")
    scales = {_scale_name(name) for name in expected if stored.get(_scale_name(name)) == stored[name]}
    if unexpected := sorted(set(stored) - set(expected) - scales):
        raise ValueError(f"{stored[unexpected[0]]} holds what this model has no place for: {_listed(unexpected)}")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(stored.values())):
        shapes = {name: shape for name, shape in expected.items() if stored[name] == file}
        weights |= _read_tensors(file, shapes, dtype, device)
    model.load_state_dict({name: weights[rename(name)] for name in model.state_dict()}, strict=True, assign=True)
    return model


def _read_tensors(
    file: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None, device: Device
) -> dict[str, Tensor]:
    tensors = {}
    with _opened(file) as handle:
        names = set(handle.keys())
        for name, shape in shapes.items():
            tensor, has_scale = _read(handle, file, name, shape), _scale_name(name) in names
            if has_scale and tensor.dtype != torch.int8:
                raise ValueError(f"{file}: {name} has a scale, and is no int8 matrix")
            if tensor.dtype == torch.int8:
                if not has_scale:
                    raise ValueError(f"{file} lacks {_scale_name(name)}: {name} is int8")
                tensor = _read_int8(handle, file, name, tensor)
            tensors[name] = tensor.to(device=device, dtype=dtype)
    return tensors


def _read(handle: Any, file: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    found = tuple(handle.get_slice(name).get_shape())
    if found != shape:
        raise ValueError(f"{file}: {name} has shape {found}, the config asks for {shape}")
    return handle.get_tensor(name)


def _read_int8(handle: Any, file: Path, name: str, steps: Tensor) -> Tensor:
    """The values of a matrix that `to_int8` rounded."""
    if steps.ndim != 2:
        raise ValueError(f"{file}: {name} is int8, and no matrix")
    scale = _read(handle, file, _scale_name(name), (len(steps),))
    if not (scale.is_floating_point() and torch.isfinite(scale).all() and (scale >= 0).all()):
        raise ValueError(f"{file}: {_scale_name(name)} is damaged: a scale is a finite number, 0 or more")
    return from_int8(steps, scale)


def _stored_tensors(directory: Path) -> Stored:
    """Every tensor of a checkpoint and its file, as the files themselves say."""
    index, single = directory / INDEX_FILE, directory / WEIGHTS_FILE
    if index.exists():
        return _indexed_tensors(index)
    if single.exists():
        return dict.fromkeys(_names_in(single), single)
    if pickles := sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]):
        raise ValueError(f"{pickles[0]} is a pickle, which can run code: convert it to {WEIGHTS_FILE} first")
    raise ValueError(f"{directory} has neither {WEIGHTS_FILE} nor {INDEX_FILE}")


def _indexed_tensors(index: Path) -> Stored:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map")
    promised: dict[str, set[str]] = {}
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ValueError(f"{index}: {name} points at {file_name!r}, which is no file beside the index")
        promised.setdefault(file_name, set()).add(name)
    for file_name, names in promised.items():
        if differ := sorted(names ^ set(_names_in(index.parent / file_name))):
            raise ValueError(f"{index} and {file_name} disagree about {_listed(differ)}")
    return {name: index.parent / file_name for name, file_name in weight_map.items()}


def _names_in(file: Path) -> list[str]:
    with _opened(file) as handle:
        return list(handle.keys())


def _opened(file: Path) -> Any:
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or cut short: {error}") from error


def _where(files: Iterable[Path]) -> str:
    return ", ".join(sorted({str(file.parent) for file in files})) or "the checkpoint"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
