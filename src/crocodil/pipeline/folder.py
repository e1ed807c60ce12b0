"""Read, write and check a model folder: crocodil.json, tokenizer.json, a model card, and a folder per network."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from crocodil.checkpoints.checksums import check_quickly, write_checksums
from crocodil.checkpoints.format import load_model, save_model
from crocodil.checkpoints.hub import CARD_FILE
from crocodil.checkpoints.quantised import Bits, Moments, checked_bits
from crocodil.checkpoints.tensors import Device, StrPath
from crocodil.models.causal_head import CausalHead
from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.card import UNKNOWN, Card, model_card
from crocodil.pipeline.settings import SETTINGS_FILE, Settings, model_folder, read_settings, to_json
from crocodil.runtime.atomic import whole_directory
from crocodil.text.tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
ENCODER_TOKENIZER_FILE = "encoder_tokenizer.json"  # of an encoder with another vocabulary (decision D7)

MomentsByNetwork: TypeAlias = Mapping[str, Mapping[str, Moments]]  # of the inputs of matrices, by their names

# The networks of a model folder; the first two are required.
NETWORKS: dict[str, type[nn.Module]] = {
    "demasker": Demasker,
    "encoder": RegisterEncoder,
    "prior": RegisterDenoiser,
    "conditional": RegisterDenoiser,
    "weak_prior": RegisterDenoiser,
    "condition_encoder": RegisterEncoder,
    "prompted": RegisterDenoiser,
    "prompt_encoder": RegisterEncoder,
    "length_head": LengthHead,
    "prompted_demasker": Demasker,
    "base": LLaDA,
    "causal_head": CausalHead,
}


def write_folder(
    target: Path,
    settings: Settings,
    tokenizer: Tokenizer,
    networks: Mapping[str, nn.Module],
    encoder_tokenizer: Tokenizer | None = None,
    *,
    card: Card = UNKNOWN,
    name: str | None = None,  # in the card; default: that of the folder
    bits: Mapping[str, Bits | None] | None = None,  # by network; None: its weights are not rounded
    moments: MomentsByNetwork | None = None,  # what `calibrate` returns
) -> None:
    """Write a model folder with a card. It appears complete or not at all, and never replaces another."""
    if target.exists():
        raise ValueError(f"{target} exists: models are never overwritten, choose another directory")
    with whole_directory(target) as unfinished:
        (unfinished / CARD_FILE).write_text(model_card(name or target.name, settings, networks, card, bits))
        (unfinished / SETTINGS_FILE).write_text(json.dumps(to_json(settings), indent=2) + "\n")
        tokenizer.save(unfinished / TOKENIZER_FILE)
        if encoder_tokenizer is not None:
            encoder_tokenizer.save(unfinished / ENCODER_TOKENIZER_FILE)
        for part, network in networks.items():
            rounding: dict[str, Any] = {"bits": (bits or {}).get(part), "moments": (moments or {}).get(part)}
            save_model(network, unfinished / part, **rounding)  # type: ignore[arg-type]
        write_checksums(unfinished)


def bits_by_network(bits: int | Mapping[str, int] | None, *, int8: bool = False) -> dict[str, Bits | None]:
    """Return the bits of each network, from one number for all or from numbers for some of them."""
    if not isinstance(bits, Mapping):
        return dict.fromkeys(NETWORKS, checked_bits(bits, int8))
    if unknown := sorted(set(bits) - set(NETWORKS)):
        raise ValueError(f"no network {unknown[0]!r}: bits are for {', '.join(NETWORKS)}")
    return {name: checked_bits(bits.get(name), int8) for name in NETWORKS}


def load_networks(
    paths: Mapping[str, StrPath], *, device: Device, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Load networks by the names of `NETWORKS`, frozen and in evaluation mode."""
    if missing := {"demasker", "encoder"} - set(paths):
        raise ValueError(f"a model needs a demasker and an encoder: {' and '.join(sorted(missing))} missing")
    loaded = {}
    for name, path in paths.items():
        network = load_model(path, dtype=dtype, device=device)
        if not isinstance(network, NETWORKS[name]):
            raise ValueError(f"{path} holds a {type(network).__name__}, not a {NETWORKS[name].__name__}")
        loaded[name] = network.eval().requires_grad_(False)
    return loaded


def parts_of(path_or_name: StrPath) -> dict[str, Any]:
    """Return the arguments of `Crocodil.assemble` for a model folder: paths of its parts, and its settings."""
    folder = model_folder(path_or_name)
    check_quickly(folder)
    encoder_tokenizer = folder / ENCODER_TOKENIZER_FILE
    return {
        "networks": {name: folder / name for name in NETWORKS if (folder / name).exists()},
        "tokenizer": folder / TOKENIZER_FILE,
        "encoder_tokenizer": encoder_tokenizer if encoder_tokenizer.exists() else None,
        "settings": read_settings(folder / SETTINGS_FILE),
    }


def check_vocabulary(name: str, vocab_size: int, tokenizer: Tokenizer) -> None:
    if vocab_size < len(tokenizer):  # an embedding may have more rows than its tokenizer uses
        raise ValueError(
            f"the {name} has a vocabulary of {vocab_size} tokens and its tokenizer {len(tokenizer)}: "
            "they do not belong together"
        )


def check_networks(
    demasker: Demasker,
    encoder: RegisterEncoder,
    prior: RegisterDenoiser | None,
    conditional: RegisterDenoiser | None,
    condition_encoder: RegisterEncoder | None,
) -> None:
    """Check that all networks agree on the width and number of registers, and on the condition."""
    width, count = demasker.config.register_width, demasker.config.num_registers
    for network in (encoder, prior, conditional):
        if network is not None and network.config.register_width != width:
            raise ValueError(
                f"a network has registers of width {network.config.register_width}, the demasker of {width}"
            )
    if encoder.config.num_registers > count:
        raise ValueError(f"the encoder has {encoder.config.num_registers} registers, the demasker reads {count}")
    for denoiser in (prior, conditional):
        if denoiser is not None and denoiser.config.num_registers > count:
            raise ValueError(f"a prior has {denoiser.config.num_registers} registers, the demasker reads {count}")
    counts = {denoiser.config.num_registers for denoiser in (prior, conditional) if denoiser is not None}
    if len(counts) > 1:
        raise ValueError(f"the priors draw {' and '.join(map(str, sorted(counts)))} registers: they must be equal")
    if prior is not None and prior.config.condition_width is not None:
        raise ValueError("the prior has cross-attention, like a conditional prior: are the two swapped?")
    if conditional is not None:
        _check_condition(conditional, condition_encoder or encoder)


def check_causal_head(demasker: Demasker, head: CausalHead | None) -> None:
    if head is not None and head.config.backbone != demasker.config.backbone:
        raise ValueError("the causal head was trained with a demasker of another shape: do they belong together?")


def _check_condition(conditional: RegisterDenoiser, encoder: RegisterEncoder) -> None:
    expected = (conditional.config.condition_length, conditional.config.condition_width)
    encoded = (encoder.config.num_registers, encoder.config.register_width)
    if expected[1] is None:
        raise ValueError("the conditional prior has no cross-attention, like a plain prior: are the two swapped?")
    if expected != encoded:
        raise ValueError(f"the conditional prior expects {expected} (registers, width), its encoder has {encoded}")


def check_prompted(
    encoder: RegisterEncoder,
    prompted: RegisterDenoiser | None,
    length_head: LengthHead | None,
    prompt_encoder: RegisterEncoder | None,
) -> None:
    """Check that no network of stage prompted is missing, and that they fit the registers of their encoders."""
    if (prompted is None) != (length_head is None):
        raise ValueError("a model that answers prompts has both a prompted prior and a length head, or neither")
    if prompted is None or length_head is None:
        return
    _check_condition(prompted, encoder)
    reads = (prompted.config.prompt_length, prompted.config.prompt_width)
    prompt_encoder = prompt_encoder or encoder
    if reads != (prompt_encoder.config.num_registers, prompt_encoder.config.register_width):
        raise ValueError(f"the prompted prior reads prompts of {reads} (registers, width), unlike its encoder")
    if length_head.config.prompt_width != prompt_encoder.config.register_width:
        raise ValueError(f"the length head reads registers of width {length_head.config.prompt_width}")


def check_weak_prior(weak: RegisterDenoiser, priors: Iterable[RegisterDenoiser | None]) -> None:
    """Check that the weak prior models the same registers as a prior; its layers and width may differ."""
    if not any(prior is not None and _models_the_same(weak, prior) for prior in priors):
        raise ValueError(
            "the weak prior is unlike every prior of the model in its registers, their statistics, its condition "
            "or self-conditioning: train it on the same cached registers"
        )


def _models_the_same(first: RegisterDenoiser, second: RegisterDenoiser) -> bool:
    size: dict[str, Any] = {
        "width": 1, "num_layers": 1, "num_heads": 1, "mlp_ratio": 1, "body": None, "text_length": 256,
    }  # fmt: skip
    if replace(first.config, **size) != replace(second.config, **size):
        return False
    units = [denoiser.statistics for denoiser in (first, second) if denoiser.statistics is not None]
    return not units or torch.equal(*units)
