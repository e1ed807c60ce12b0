"""A model folder: crocodil.json, tokenizer.json and a folder for each network."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from crocodil.atomic import whole_directory
from crocodil.checkpoints import Device, StrPath, config_from_json, load_model, read_json, save_model
from crocodil.config import Coherence, Guidance, Length, Share, Steps, Temperature, TopP, Width, config
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.processes.masking import MOST_CONFIDENT, RULES
from crocodil.tokenization import Tokenizer

FORMAT, FORMAT_VERSION = "crocodil model", 1
SETTINGS_FILE, TOKENIZER_FILE = "crocodil.json", "tokenizer.json"
ENCODER_TOKENIZER_FILE = "encoder_tokenizer.json"  # where the encoder has a vocabulary of its own (decision D7)
BUILTIN = "builtin"  # the model that ships with the package

# Settings that are younger than some folders, with what was so without them.
YOUNGER = {"coherence": 0.0, "rule": MOST_CONFIDENT}

# The networks of a model folder: the first two are always there.
NETWORKS: dict[str, type[nn.Module]] = {
    "demasker": Demasker,
    "encoder": RegisterEncoder,
    "prior": RegisterDenoiser,
    "conditional": RegisterDenoiser,
    "condition_encoder": RegisterEncoder,
    "base": LLaDA,
}


@config
class Settings:
    """How a model is used: written beside its weights."""

    length: Length  # of a canvas in tokens, unless another is asked for
    lengths: tuple[Length, ...] = ()  # of all canvases it was trained on; none: of that length alone
    largest_offset: Share = 0.1  # of the priors' block offsets, as in training (decision D4)
    prior_steps: Steps = 128  # Sec. 5
    refresh_steps: Steps = 32  # Sec. 5
    eta: Share = 0.0  # of both draws: 0 is DDIM (App. E), 1 draws fresh noise at every step
    coherence: Coherence = 0.0  # of both draws: away from registers that do not see each other (decision D33)
    num_registers: Width | None = None  # the first of those drawn, which guide a generation; None: all
    rule: str = MOST_CONFIDENT  # which tokens a guided call keeps; see `RULES`
    temperature: Temperature = 1.0  # of generated tokens
    top_p: TopP = 1.0
    guidance: Guidance = 1.0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"no reveal rule {self.rule!r}: take one of {', '.join(RULES)}")
        object.__setattr__(self, "lengths", tuple(sorted({*self.lengths, self.length})))  # JSON has lists


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


def model_folder(path_or_name: StrPath) -> Path:
    folder = Path(__file__).parent.parent / BUILTIN if path_or_name == BUILTIN else Path(path_or_name)
    if not (folder / SETTINGS_FILE).is_file():
        raise ValueError(
            f"no model {str(path_or_name)!r}: a model is {BUILTIN!r}, or a folder with {SETTINGS_FILE}"
        )
    return folder


def parts_of(path_or_name: StrPath) -> dict[str, Any]:
    """Where the parts of a model lie, and its settings: what `Crocodil.assemble` takes."""
    folder = model_folder(path_or_name)
    own = folder / ENCODER_TOKENIZER_FILE
    return {
        "networks": {name: folder / name for name in NETWORKS if (folder / name).exists()},
        "tokenizer": folder / TOKENIZER_FILE,
        "encoder_tokenizer": own if own.exists() else None,
        "settings": read_settings(folder / SETTINGS_FILE),
    }


def read_settings(file: Path) -> Settings:
    about = read_json(file)
    found = (about.pop("format", None), about.pop("format_version", None))
    if found != (FORMAT, FORMAT_VERSION):
        raise ValueError(f"{file} is not version {FORMAT_VERSION} of this project's model format")
    return config_from_json(Settings, YOUNGER | about, file)
