"""Tensors on disk, and exact loading.

Weights load exactly or not at all: every tensor must match by name and shape, otherwise an error of one line names
the tensor. Only safetensors are read: no pickle, no code from a checkpoint, no network.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from crocodil.checkpoints.quantised import FewBits, from_few_bits, from_int8, scale_name
from crocodil.runtime.config import read_json

StrPath: TypeAlias = str | os.PathLike[str]
Device: TypeAlias = str | torch.device

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def write_tensors(tensors: Mapping[str, Tensor], file: Path, about: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors; a full disk raises OSError."""
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, about)
    except SafetensorError as error:
        raise OSError(f"{file} cannot be written: {error}") from error
    file.chmod(0o644)  # safetensors writes files that only their owner may read


# ---------------------------------------------------------------- exact loading


@contextmanager
def without_values() -> Iterator[None]:
    """Inside the block, networks are built on the meta device: with shapes, but without values."""
    with torch.device("meta"), _NoInitialValues():
        yield


class _NoInitialValues(TorchFunctionMode):
    """Skips `nn.init`: on the meta device it changes nothing, but drawing there imports PyTorch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


Stored: TypeAlias = dict[str, Path]  # name of a tensor -> its file


def load_exactly(
    model: Any, stored: Stored, *, rename: Callable[[str], str], dtype: torch.dtype | None, device: Device
) -> Any:
    """Load weights into a model built on the meta device; `rename` maps our names to the stored names."""
    expected = {rename(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if missing := sorted(set(expected) - set(stored)):
        raise ValueError(f"{_where(stored.values())} lacks {_listed(missing)}")
    scales = {scale_name(name) for name in expected if stored.get(scale_name(name)) == stored[name]}
    if unexpected := sorted(set(stored) - set(expected) - scales):
        raise ValueError(
            f"{stored[unexpected[0]]} holds tensors that this model does not have: {_listed(unexpected)}"
        )
    weights: dict[str, Tensor] = {}
    for file in sorted(set(stored.values())):
        shapes = {name: shape for name, shape in expected.items() if stored[name] == file}
        weights |= _read_tensors(file, shapes, dtype, device)
    model.load_state_dict({name: weights[rename(name)] for name in model.state_dict()}, strict=True, assign=True)
    return model


def _read_tensors(
    file: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None, device: Device
) -> dict[str, Tensor]:
    with _opened(file) as handle:
        names = set(handle.keys())
        return {
            name: _read_weights(handle, file, name, shape, scale_name(name) in names).to(
                device=device, dtype=dtype
            )
            for name, shape in shapes.items()
        }


_QUANTISED = {"I8": "int8", "U8": "packed"}  # safetensors' name of a type -> what we store in it


def _read_weights(handle: Any, file: Path, name: str, shape: tuple[int, ...], has_scale: bool) -> Tensor:
    """Return a tensor as floats, however it is stored."""
    kind = _QUANTISED.get(handle.get_slice(name).get_dtype())
    if kind is None:
        if has_scale:
            raise ValueError(f"{file}: {name} has a scale, but is neither an int8 nor a packed matrix")
        return _read(handle, file, name, shape)
    if not has_scale:
        raise ValueError(f"{file} lacks {scale_name(name)}, which the {kind} matrix {name} needs")
    if len(shape) != 2:
        raise ValueError(f"{file}: {name} is {kind}, but not a matrix")
    read = _read_int8 if kind == "int8" else _read_packed
    return read(handle, file, name, shape)


def _read(handle: Any, file: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    stored_shape = tuple(handle.get_slice(name).get_shape())
    if stored_shape != shape:
        raise ValueError(f"{file}: {name} has shape {stored_shape}, but the config requires {shape}")
    return handle.get_tensor(name)


def _read_int8(handle: Any, file: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the values of a matrix that `to_int8` rounded."""
    steps = _read(handle, file, name, shape)
    scale = _read(handle, file, scale_name(name), shape[:1])
    if not (scale.is_floating_point() and torch.isfinite(scale).all() and (scale >= 0).all()):
        raise ValueError(f"{file}: {scale_name(name)} is damaged: scales must be finite and not negative")
    return from_int8(steps, scale)


def _read_packed(handle: Any, file: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the values of a matrix that `to_few_bits` rounded; the shapes tell its bits and its groups."""
    rows, columns = shape
    stored_shape = handle.get_slice(name).get_shape()
    bits: FewBits = next((bits for bits in get_args(FewBits) if stored_shape == [rows, columns * bits // 8]), 4)
    packed = _read(handle, file, name, (rows, columns * bits // 8))
    scale = handle.get_tensor(scale_name(name))
    if scale.ndim != 2 or len(scale) != rows or not scale.numel() or columns % (2 * scale.shape[1]):
        given = f"{scale_name(name)} has shape {tuple(scale.shape)}"
        raise ValueError(f"{file}: {given}, which does not fit {rows} x {columns} weights")
    if scale.dtype != torch.float16 or not torch.isfinite(scale).all():
        raise ValueError(f"{file}: {scale_name(name)} is damaged: scales of groups must be finite and in float16")
    return from_few_bits(packed, scale, bits)


def stored_tensors(directory: Path) -> Stored:
    """Return the names of all tensors of a checkpoint and their files, as listed in the files themselves."""
    index, single = directory / INDEX_FILE, directory / WEIGHTS_FILE
    if index.exists():
        return _indexed_tensors(index)
    if single.exists():
        return dict.fromkeys(_names_in(single), single)
    if pickles := sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]):
        raise ValueError(f"{pickles[0]} is a pickle file, which can run code: convert it to {WEIGHTS_FILE} first")
    raise ValueError(f"{directory} has neither {WEIGHTS_FILE} nor {INDEX_FILE}")


def _indexed_tensors(index: Path) -> Stored:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map")
    names_by_file: dict[str, set[str]] = {}
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ValueError(f"{index}: {name} points at {file_name!r}, which is not a file beside the index")
        names_by_file.setdefault(file_name, set()).add(name)
    for file_name, names in names_by_file.items():
        if differ := sorted(names ^ set(_names_in(index.parent / file_name))):
            raise ValueError(f"{index} and {file_name} disagree about {_listed(differ)}")
    return {name: index.parent / file_name for name, file_name in weight_map.items()}


def tensors_in(file: Path) -> dict[str, Tensor]:
    """Return all tensors of a file as they are stored; they stay on disk until they are used."""
    with _opened(file) as handle:
        return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  (it is no mapping)


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
