"""A model folder: crocodil.json, tokenizer.json and a folder for each network."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from crocodil.atomic import whole_directory
from crocodil.checkpoints import Device, StrPath, load_model, save_model
from crocodil.checksums import check_quickly, write_checksums
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.settings import FORMAT, FORMAT_VERSION, SETTINGS_FILE, Settings, model_folder, read_settings
from crocodil.tokenization import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
ENCODER_TOKENIZER_FILE = "encoder_tokenizer.json"  # where the encoder has a vocabulary of its own (decision D7)

# The networks of a model folder: the first two are always there.
NETWORKS: dict[str, type[nn.Module]] = {
    "demasker": Demasker,
    "encoder": RegisterEncoder,
    "prior": RegisterDenoiser,
    "conditional": RegisterDenoiser,
    "condition_encoder": RegisterEncoder,
    "base": LLaDA,
}


def write_folder(
    target: Path,
    settings: Settings,
    tokenizer: Tokenizer,
    networks: Mapping[str, nn.Module],
    encoder_tokenizer: Tokenizer | None = None,
    *,
    int8: bool = False,
) -> None:
    """The folder appears whole or not at all, and never in place of another."""
    if target.exists():
        raise ValueError(f"{target} exists: models are never overwritten, choose another directory")
    with whole_directory(target) as unfinished:
        about = {"format": FORMAT, "format_version": FORMAT_VERSION, **dataclasses.asdict(settings)}
        (unfinished / SETTINGS_FILE).write_text(json.dumps(about, indent=2) + "\n")
        tokenizer.save(unfinished / TOKENIZER_FILE)
        if encoder_tokenizer is not None:
            encoder_tokenizer.save(unfinished / ENCODER_TOKENIZER_FILE)
        for name, network in networks.items():
            save_model(network, unfinished / name, int8=int8)  # type: ignore[arg-type]
        write_checksums(unfinished)


def load_networks(
    paths: Mapping[str, StrPath], *, device: Device, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Networks that were saved one by one, by the names of `NETWORKS`; nothing in them learns any more."""
    if missing := {"demasker", "encoder"} - set(paths):
        raise ValueError(f"a model needs a demasker and an encoder: no {' and no '.join(sorted(missing))}")
    loaded = {}
    for name, path in paths.items():
        network = load_model(path, dtype=dtype, device=device)
        if not isinstance(network, NETWORKS[name]):
            raise ValueError(f"{path} holds a {type(network).__name__}, not a {NETWORKS[name].__name__}")
        loaded[name] = network.eval().requires_grad_(False)
    return loaded


def parts_of(path_or_name: StrPath) -> dict[str, Any]:
    """Where the parts of a model lie, and its settings: what `Crocodil.assemble` takes."""
    folder = model_folder(path_or_name)
    check_quickly(folder)
    own = folder / ENCODER_TOKENIZER_FILE
    return {
        "networks": {name: folder / name for name in NETWORKS if (folder / name).exists()},
        "tokenizer": folder / TOKENIZER_FILE,
        "encoder_tokenizer": own if own.exists() else None,
        "settings": read_settings(folder / SETTINGS_FILE),
    }
