"""Load any masked diffusion model as a base: LLaDA, iLLaDA and Dream in their public formats, and our own."""

from pathlib import Path

import torch

from crocodil.checkpoints.causal import CAUSAL_TYPES, DREAM, SpecialRows, causal_config, load_in_layout
from crocodil.checkpoints.format import FORMAT, load_model, model_config
from crocodil.checkpoints.hub import JSON_FILES, local_folder
from crocodil.checkpoints.llada import LLADA_TYPES, llada_config, load_llada
from crocodil.checkpoints.tensors import CONFIG_FILE, Device, StrPath
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.runtime.config import read_json


def load_base(directory: StrPath, *, dtype: torch.dtype | None = None, device: Device = "cpu") -> LLaDA:
    """Load a base from a folder or the hub: config.json and safetensors."""
    kind = _kind_of(local_folder(directory, patterns=JSON_FILES))  # before the weights are fetched
    directory = local_folder(directory)
    if kind == FORMAT:
        model = load_model(directory, dtype=dtype, device=device)
        if not isinstance(model, LLaDA):
            raise ValueError(f"{directory} holds a {type(model).__name__}, not a base")
        return model
    if kind == DREAM:
        config = base_config(directory)
        return load_in_layout(directory, config, num_rows=config.vocab_size, dtype=dtype, device=device)
    return load_llada(directory, dtype=dtype, device=device)


def base_config(directory: StrPath) -> LLaDAConfig:
    """Read the shape of a base without its weights."""
    directory = local_folder(directory, patterns=JSON_FILES)
    source = directory / CONFIG_FILE
    kind, values = _kind_of(directory), read_json(source)
    if kind == FORMAT:
        config = model_config(directory)
        if not isinstance(config, LLaDAConfig):
            raise ValueError(f"{directory} holds a {values['kind']}, not a base")
        return config
    if kind == DREAM:
        special = {name: values.get(f"{name}_token_id") for name in ("mask", "eos", "pad")}
        for name, token in special.items():
            if not isinstance(token, int):
                raise ValueError(f"{source} has no {name}_token_id")
        rows = SpecialRows(**special, num_rows=values.get("vocab_size"))  # type: ignore[arg-type]
        return causal_config(values, special=rows, source=source)
    return llada_config(values, source=source)


def _kind_of(directory: Path) -> str:
    """Return what a folder holds: our format, or a model type that can be read."""
    values = read_json(directory / CONFIG_FILE)
    if values.get("format") == FORMAT:
        return FORMAT
    kind = values.get("model_type")
    if kind in CAUSAL_TYPES:
        raise ValueError(
            f"{directory} is a causal language model ({kind}), not a base: train one from it with "
            "`crocodil train base --causal`"
        )
    known = (*LLADA_TYPES, DREAM)
    if kind not in known:
        raise ValueError(f"{directory / CONFIG_FILE}: model_type is {kind!r}; a base is one of {', '.join(known)}")
    return str(kind)
