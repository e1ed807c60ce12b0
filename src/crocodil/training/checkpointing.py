"""The state of a run on disk: weights, averages and moments, checksummed, rotated, and never half-written.

There is no random state to keep: every draw is named by its step (see `crocodil.seeding`).
"""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from crocodil.atomic import remove_unfinished, whole_directory

STATE_FILE = "state.json"


@dataclass
class TrainState:
    """Everything that a step changes."""

    modules: Mapping[str, nn.Module]
    optimiser: torch.optim.Optimizer
    averages: dict[str, Tensor]  # exponential moving averages of the weights, by parameter name
    step: int = 0

    def parameters(self) -> dict[str, Tensor]:
        return {
            f"{module_name}.{name}": parameter
            for module_name, module in self.modules.items()
            for name, parameter in module.named_parameters()
        }


def save(state: TrainState, root: Path, *, keep: int) -> None:
    """Write the state as a new checkpoint; only the newest `keep` stay."""
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"step-{state.step:08d}"
    if not target.exists():
        with whole_directory(target) as unfinished:
            weights = {name: parameter.detach().contiguous() for name, parameter in state.parameters().items()}
            save_file(weights, unfinished / "weights.safetensors")
            save_file(
                {name: one.contiguous() for name, one in state.averages.items()},
                unfinished / "averages.safetensors",
            )
            save_file(_moments(state), unfinished / "moments.safetensors")
            sums = {file.name: _digest(file) for file in sorted(unfinished.glob("*.safetensors"))}
            (unfinished / STATE_FILE).write_text(json.dumps({"step": state.step, "sha256": sums}) + "\n")
    for old in sorted(root.glob("step-*"))[:-keep]:
        shutil.rmtree(old)


def restore(state: TrainState, root: Path) -> bool:
    """Load the newest checkpoint that is whole; False where there is none."""
    if not root.exists():
        return False
    remove_unfinished(root)
    for directory in sorted(root.glob("step-*"), reverse=True):
        damage = _damage(directory)
        if damage is None:
            _load(state, directory)
            return True
        warnings.warn(f"{directory} is not used: {damage}; falling back to the one before", stacklevel=2)
    return False


def _load(state: TrainState, directory: Path) -> None:
    weights = load_file(directory / "weights.safetensors")
    parameters = state.parameters()
    if differ := sorted(set(weights) ^ set(parameters)):
        raise ValueError(f"{directory} is of another model: it differs in {differ[0]} and {len(differ) - 1} more")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if weights[name].shape != parameter.shape:
                found = tuple(weights[name].shape)
                raise ValueError(f"{directory}: {name} has shape {found}, not {tuple(parameter.shape)}")
            parameter.copy_(weights[name])
        for name, average in load_file(directory / "averages.safetensors").items():
            state.averages[name].copy_(average)
    _set_moments(state, load_file(directory / "moments.safetensors"))
    state.step = json.loads((directory / STATE_FILE).read_text())["step"]


def _damage(directory: Path) -> str | None:
    try:
        expected = json.loads((directory / STATE_FILE).read_text())["sha256"]
    except (OSError, ValueError, KeyError):
        return f"no readable {STATE_FILE}"
    for name, digest in expected.items():
        if not (directory / name).is_file() or _digest(directory / name) != digest:
            return f"{name} is missing or damaged"
    return None


def _moments(state: TrainState) -> dict[str, Tensor]:
    """The optimiser's own tensors, by parameter name; a parameter that was never trained has none."""
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in state.parameters().items()
        for key, value in state.optimiser.state.get(parameter, {}).items()
    }


def _set_moments(state: TrainState, moments: Mapping[str, Tensor]) -> None:
    parameters = state.parameters()
    state.optimiser.state.clear()
    for path, value in moments.items():
        name, key = path.rsplit("/", 1)
        parameter = parameters[name]
        state.optimiser.state[parameter][key] = value.to(parameter.device)


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return file_digest(handle, "sha256").hexdigest()
