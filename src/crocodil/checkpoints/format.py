"""This project's own model format: config.json and model.safetensors in one folder."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from crocodil.checkpoints.checksums import check_quickly, write_checksums
from crocodil.checkpoints.tensors import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Device,
    StrPath,
    as_int8,
    load_exactly,
    stored_tensors,
    write_tensors,
)
from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.runtime.atomic import whole_directory
from crocodil.runtime.config import config_from_json, read_json

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
        tensors = as_int8(tensors) if int8 else tensors
        write_tensors(tensors, unfinished / WEIGHTS_FILE)
        description = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": next(kind for kind, (network, _) in _KINDS.items() if isinstance(model, network)),
            "config": dataclasses.asdict(model.config),
        }
        (unfinished / CONFIG_FILE).write_text(json.dumps(description, indent=2) + "\n")
        write_checksums(unfinished)


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
    return load_exactly(model, stored_tensors(directory), rename=lambda name: name, dtype=dtype, device=device)
