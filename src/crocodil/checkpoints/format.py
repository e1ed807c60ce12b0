"""This project's model format: config.json and model.safetensors in one folder.

Version 2 renamed weights of the register denoiser; later versions added fields to the configs. Older folders are
read through a table of names and a table of defaults.
"""

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import torch
from torch import Tensor, nn

from crocodil.checkpoints.checksums import check_quickly, write_checksums
from crocodil.checkpoints.hub import local_folder
from crocodil.checkpoints.quantised import Bits, Moments, quantised
from crocodil.checkpoints.tensors import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Device,
    StrPath,
    load_exactly,
    stored_tensors,
    without_values,
    write_tensors,
)
from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.length_head import LengthHead, LengthHeadConfig
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.runtime.atomic import whole_directory
from crocodil.runtime.config import config_from_json, read_json

FORMAT = "crocodil"
FORMAT_VERSION = 7

_KINDS: dict[str, tuple[type[nn.Module], type]] = {
    "LLaDA": (LLaDA, LLaDAConfig),
    "Demasker": (Demasker, DemaskerConfig),
    "RegisterEncoder": (RegisterEncoder, RegisterEncoderConfig),
    "RegisterDenoiser": (RegisterDenoiser, RegisterDenoiserConfig),
    "LengthHead": (LengthHead, LengthHeadConfig),
    "CausalHead": (CausalHead, CausalHeadConfig),
}

# By kind: the name of a module or parameter -> its name in version 1. Other names are the same in both.
_NAMES_IN_VERSION_1 = {
    "RegisterDenoiser": {
        "proj_in": "enter",
        "proj_guess": "enter_guess",
        "pos_embed": "places",
        "final_table": "last_table",
        "proj_out": "leave",
        "condition_embed.null": "enter_condition.null",
        "condition_embed.pos_embed": "enter_condition.places",
        "condition_embed.proj_in": "enter_condition.enter",
    }
}

# Fields that configs have since version 3 or later, and the values that older networks had.
_NEW_FIELDS: dict[type, dict[str, Any]] = {
    RegisterEncoderConfig: {"qkv_bias": False, "without_qk_norm": False},
    RegisterDenoiserConfig: {
        "standardised": False,
        "flow_map": False,
        "prompt_width": None,
        "prompt_length": 0,
        "body": None,
        "text_length": 256,
        "fresh_noise": False,
    },
    LLaDAConfig: {"head_size": None, "qkv_bias": False, "qk_norm": False, "shifted": False, "parents": []},
}

Model: TypeAlias = LLaDA | Demasker | RegisterEncoder | RegisterDenoiser | LengthHead | CausalHead


def save_model(
    model: Model,
    directory: StrPath,
    *,
    weights: Mapping[str, Tensor] | None = None,
    bits: Bits | None = None,
    moments: Mapping[str, Moments] | None = None,
) -> None:
    """Write a model as config.json and model.safetensors; the directory appears whole or not at all.

    `weights` replace the model's own weights, for example where these are sharded or adapted. With 8
    bits, matrices are stored as int8 with one scale per row, at a quarter of the size. With 3 to 6 bits, those
    of the blocks have one scale per 32 columns, and are rounded for inputs with these `moments` (decision D82).
    """
    directory = Path(directory)
    if directory.exists():
        raise ValueError(f"{directory} exists: models are never overwritten, choose another directory")
    with whole_directory(directory) as unfinished:
        tensors = model.state_dict() if weights is None else weights
        write_tensors(tensors if bits is None else quantised(tensors, bits, moments), unfinished / WEIGHTS_FILE)
        description = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": _kind_of(model),
            "config": dataclasses.asdict(model.config),
        }
        (unfinished / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
        write_checksums(unfinished)


def load_model(directory: StrPath, *, dtype: torch.dtype | None = None, device: Device = "cpu") -> Model:
    """Load a model that `save_model` wrote, from a folder or the hub."""
    directory = local_folder(directory)
    check_quickly(directory)
    description = _described(directory / CONFIG_FILE)
    kind = description["kind"]
    with without_values():
        model = _KINDS[kind][0](_config_in(description, directory / CONFIG_FILE))
    stored_name = partial(name_in_version_1, kind) if description["format_version"] == 1 else str
    return load_exactly(model, stored_tensors(directory), rename=stored_name, dtype=dtype, device=device)


def model_config(directory: Path) -> Any:
    """Read the config of a model that `save_model` wrote, without its weights."""
    return _config_in(_described(directory / CONFIG_FILE), directory / CONFIG_FILE)


def _described(source: Path) -> dict[str, Any]:
    """Read config.json and check its format, version and kind."""
    description = read_json(source)
    if description.get("format") != FORMAT:
        raise ValueError(f"{source} is not in this project's format (load_base reads LLaDA's and Dream's)")
    version = description.get("format_version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise ValueError(f"{source} has format version {version}; this crocodil reads 1 to {FORMAT_VERSION}")
    kind = description.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{source}: unknown kind of model {kind!r}; expected one of {', '.join(_KINDS)}")
    return description


def _config_in(description: Mapping[str, Any], source: Path) -> Any:
    config_class, values = _KINDS[description["kind"]][1], description.get("config")
    if description["format_version"] < FORMAT_VERSION:
        values = with_new_fields(config_class, values)
    return config_from_json(config_class, values, source)


def name_in_version_1(kind: str, name: str) -> str:
    """Return the name that version 1 gave to a weight of this kind of model."""
    for new, old in _NAMES_IN_VERSION_1.get(kind, {}).items():
        if name == new or name.startswith(f"{new}."):
            return old + name.removeprefix(new)
    return name


def with_new_fields(config_class: type, values: Any) -> Any:
    """Return the config of an old file with the fields that it did not have yet, also in configs inside it."""
    if not isinstance(values, dict):
        return values
    types = get_type_hints(config_class)
    inner = {
        name: with_new_fields(types[name], value) if dataclasses.is_dataclass(types.get(name)) else value
        for name, value in values.items()
    }
    return {**_NEW_FIELDS.get(config_class, {}), **inner}


def _kind_of(model: nn.Module) -> str:
    return next(kind for kind, (network, _) in _KINDS.items() if isinstance(model, network))
