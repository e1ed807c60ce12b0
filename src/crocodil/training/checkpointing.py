"""Checkpoints of training: weights, averages and moments, with checksums. Old ones are removed.

A checkpoint appears complete or not at all, and any number of ranks can resume from it. There is no random state
to save, since every draw is named by its step (see `crocodil.seeding`).
"""

import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from crocodil.checkpoints.checksums import sha256
from crocodil.checkpoints.format import name_in_version_1
from crocodil.runtime.config import Amount, config, read_as
from crocodil.runtime.distributed import Ranks, load_tensors, save_tensors, whole_directory_for_ranks
from crocodil.training.optimisers import moment_names, zero_moments
from crocodil.training.record import read_checksummed, write_checksummed

STATE_FILE = "state.json"


@config
class Contents:
    """The contents of state.json."""

    step: Amount
    sha256: dict[str, str]  # checksums of the checkpoint's files, by name


@dataclass
class TrainState:
    """Everything that a step changes."""

    parameters: Mapping[str, nn.Parameter]  # those that any phase trains, by name
    optimiser: torch.optim.Optimizer
    averages: dict[str, Tensor]  # exponential moving averages of the weights
    step: int = 0
    ranks: Ranks = field(default_factory=Ranks)
    was_stopped: bool = False  # by a signal, not by a time limit

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device


def save(state: TrainState, root: Path, *, keep: int) -> None:
    """Write the state as a new checkpoint, and remove all but the newest `keep` checkpoints."""
    target, ranks = root / _name(state.step), state.ranks
    if not ranks.any(target.exists()):
        with whole_directory_for_ranks(target, ranks) as unfinished:
            save_tensors(_tensors(state), unfinished)
            ranks.barrier()
            if ranks.is_main:
                sums = {file.name: sha256(file) for file in sorted(unfinished.glob("*.safetensors"))}
                write_checksummed(unfinished / STATE_FILE, {"step": state.step, "sha256": sums})
    if ranks.is_main:
        for old in checkpoints_in(root)[:-keep]:
            shutil.rmtree(old)


def checkpoints_in(root: Path) -> list[Path]:
    """Return all checkpoints, the oldest first."""
    return sorted(root.glob("step-*"))


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint; 0 for a folder that is none."""
    number = checkpoint.name.removeprefix("step-")
    return int(number) if number.isdecimal() else 0


def restore(state: TrainState, root: Path) -> bool:
    """Load the newest undamaged checkpoint; return False if there are no checkpoints.

    Newer, damaged ones are removed, so that they are written again when their step comes.
    """
    checkpoints = checkpoints_in(root)
    damaged: list[Path] = []
    for directory in reversed(checkpoints):
        damage = state.ranks.broadcast(_damage(directory) if state.ranks.is_main else "")
        if not damage:
            _load(state, directory)
            _remove(damaged, state.ranks)
            return True
        damaged.append(directory)
        if state.ranks.is_main:
            warnings.warn(f"{directory} is damaged: {damage}; using the checkpoint before it", stacklevel=2)
    if checkpoints:
        raise ValueError(f"all checkpoints in {root} are damaged: start again with another --out")
    return False


def _remove(directories: list[Path], ranks: Ranks) -> None:
    if ranks.is_main:
        for directory in directories:
            shutil.rmtree(directory)
    ranks.barrier()


def stored_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors; shards of a tensor are joined along the first dimension."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with _open(file) as handle:
            for name in handle.keys():  # noqa: SIM118
                shape = tuple(handle.get_slice(name).get_shape())
                shapes[name] = (shapes[name][0] + shape[0], *shape[1:]) if name in shapes else shape
    return shapes


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or truncated: {error}") from error


def _tensors(state: TrainState) -> dict[str, Tensor]:
    """Return all tensors of the state by name; a parameter that has not been trained yet has no moments."""
    tensors = {name: parameter.detach() for name, parameter in state.parameters.items()}
    tensors |= {f"average/{name}": average for name, average in state.averages.items()}
    for name, parameter in state.parameters.items():
        tensors |= {f"{key}/{name}": value for key, value in state.optimiser.state.get(parameter, {}).items()}
    return tensors


def _load(state: TrainState, directory: Path) -> None:
    stored = stored_shapes(directory)
    stored_name = _name_in_version_1 if "denoiser.enter.weight" in stored else str
    weights = {name for name in stored if "/" not in name}
    if differ := sorted(weights ^ set(map(stored_name, state.parameters))):
        raise ValueError(f"{directory} holds another model: {differ[0]} and {len(differ) - 1} more tensors differ")
    state.optimiser.state.clear()
    groups = state.optimiser.param_groups
    moments = {parameter: moment_names(group) for group in groups for parameter in group["params"]}
    for name, parameter in state.parameters.items():
        shape = stored[stored_name(name)]
        if shape != tuple(parameter.shape):
            raise ValueError(f"{directory}: {name} has shape {shape}, not {tuple(parameter.shape)}")
        if f"{moments[parameter][0]}/{stored_name(name)}" in stored:
            state.optimiser.state[parameter] = zero_moments(parameter, moments[parameter])
    tensors = {stored_name(name): tensor for name, tensor in _tensors(state).items()}
    if foreign := sorted(set(stored) - set(tensors)):
        raise ValueError(f"{directory} was written with another optimiser: it holds {foreign[0]}")
    load_tensors(tensors, directory)
    state.step = _contents(directory).step


def _name_in_version_1(name: str) -> str:
    """Return the name of a tensor in a checkpoint that is older than format 2."""
    prefix, denoiser, weight = name.rpartition("denoiser.")
    return prefix + denoiser + name_in_version_1("RegisterDenoiser", weight) if denoiser else name


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _damage(directory: Path) -> str:
    """Describe what is wrong with a checkpoint; an empty text means that it is undamaged."""
    try:
        expected = _contents(directory).sha256
    except (OSError, ValueError) as error:
        return f"no readable {STATE_FILE} ({error})"
    for name in sorted({file.name for file in directory.glob("*.safetensors")} ^ set(expected)):
        return f"{name} is missing, or is not part of the checkpoint"
    for name, digest in expected.items():
        if not (directory / name).is_file() or sha256(directory / name) != digest:
            return f"{name} is missing or damaged"
    return ""


def _contents(directory: Path) -> Contents:
    file = directory / STATE_FILE
    contents = read_as(Contents, read_checksummed(file), file)
    if directory.name != _name(contents.step):
        raise ValueError(f"{file} is from step {contents.step}: the folder was renamed")
    return contents
