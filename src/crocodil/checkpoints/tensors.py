"""Tensors on disk: exact loading, and int8 rounding.

Weights load exactly or not at all. Every tensor of a file must match by name and shape; otherwise one line says
which does not. Only safetensors are read: no pickle, no code from a checkpoint, no network.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int8
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crocodil.runtime.config import read_json

StrPath: TypeAlias = str | os.PathLike[str]
Device: TypeAlias = str | torch.device

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def write_tensors(tensors: Mapping[str, Tensor], file: Path, about: dict[str, str] | None = None) -> None:
    """As safetensors; a full disk is an OSError as everywhere else."""
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, about)
    except SafetensorError as error:
        raise OSError(f"{file} cannot be written: {error}") from error


def as_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8, each with its scales beside it; what is no matrix is small and stays exact."""
    stored = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            stored[name], stored[scale_name(name)] = to_int8(tensor)
        else:
            stored[name] = tensor.float()
    return stored


def scale_name(name: str) -> str:
    return f"{name}.scale"


# ---------------------------------------------------------------- exact loading

Stored: TypeAlias = dict[str, Path]  # a tensor's name -> the file that holds it


def load_exactly(
    model: Any, stored: Stored, *, rename: Callable[[str], str], dtype: torch.dtype | None, device: Device
) -> Any:
    """Give a model built on the meta device its weights; `rename` is our name -> the stored one."""
    expected = {rename(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if missing := sorted(set(expected) - set(stored)):
        raise ValueError(f"{_where(stored.values())} lacks {_listed(missing)}")
    scales = {scale_name(name) for name in expected if stored.get(scale_name(name)) == stored[name]}
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
            tensor, has_scale = _read(handle, file, name, shape), scale_name(name) in names
            if has_scale and tensor.dtype != torch.int8:
                raise ValueError(f"{file}: {name} has a scale, and is no int8 matrix")
            if tensor.dtype == torch.int8:
                if not has_scale:
                    raise ValueError(f"{file} lacks {scale_name(name)}: {name} is int8")
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
    scale = _read(handle, file, scale_name(name), (len(steps),))
    if not (scale.is_floating_point() and torch.isfinite(scale).all() and (scale >= 0).all()):
        raise ValueError(f"{file}: {scale_name(name)} is damaged: a scale is a finite number, 0 or more")
    return from_int8(steps, scale)


def stored_tensors(directory: Path) -> Stored:
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


LARGEST = 127  # -128 is not used: the grid is symmetric


def to_int8(matrix: Float[Tensor, "R C"]) -> tuple[Int8[Tensor, "R C"], Float[Tensor, "R"]]:
    """Whole numbers and the step of each row; no value moves by more than half a step."""
    if not torch.isfinite(matrix).all():
        raise ValueError("a matrix with values that are not finite cannot be stored as int8")
    values = matrix.float()
    scale = values.abs().amax(dim=1) / LARGEST
    steps = values / torch.where(scale > 0, scale, 1.0)[:, None]  # a row of zeros stays one
    return steps.round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def from_int8(steps: Int8[Tensor, "R C"], scale: Float[Tensor, "R"]) -> Float[Tensor, "R C"]:
    return steps.float() * scale.float()[:, None]
