"""The state of a run on disk: weights, averages and moments, checksummed, rotated, and never half-written.

Any number of ranks can go on from it. There is no random state to keep: every draw is named by its step (see
`crocodil.seeding`).
"""

import json
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import file_digest
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from crocodil.atomic import remove_unfinished
from crocodil.distributed import Ranks, load_tensors, save_tensors, whole_directory_of_all
from crocodil.training.optimisers import fresh_moments, moment_names

STATE_FILE = "state.json"


@dataclass
class TrainState:
    """Everything that a step changes."""

    parameters: Mapping[str, nn.Parameter]  # all that is trained at some time, by name
    optimiser: torch.optim.Optimizer
    averages: dict[str, Tensor]  # exponential moving averages of the weights
    step: int = 0
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device


def save(state: TrainState, root: Path, *, keep: int) -> None:
    """Write the state as a new checkpoint; only the newest `keep` stay."""
    target, ranks = root / f"step-{state.step:08d}", state.ranks
    if not ranks.any(target.exists()):
        with whole_directory_of_all(target, ranks) as unfinished:
            save_tensors(_tensors(state), unfinished)
            ranks.wait()
            if ranks.speaks:
                sums = {file.name: _digest(file) for file in sorted(unfinished.glob("*.safetensors"))}
                (unfinished / STATE_FILE).write_text(json.dumps({"step": state.step, "sha256": sums}) + "\n")
    if ranks.speaks:
        for old in sorted(root.glob("step-*"))[:-keep]:
            shutil.rmtree(old)


def restore(state: TrainState, root: Path) -> bool:
    """Load the newest checkpoint that is whole; False where there is none."""
    if not root.exists():
        return False
    if state.ranks.speaks:
        remove_unfinished(root)
    state.ranks.wait()
    for directory in sorted(root.glob("step-*"), reverse=True):
        damage = _damage(directory)
        if damage is None:
            _load(state, directory)
            return True
        warnings.warn(f"{directory} is not used: {damage}; falling back to the one before", stacklevel=2)
    return False


def stored_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """What a checkpoint holds; shards of one tensor lie along its first dimension."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(directory.glob("*.safetensors")):
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                shape = tuple(handle.get_slice(name).get_shape())
                shapes[name] = (shapes[name][0] + shape[0], *shape[1:]) if name in shapes else shape
    return shapes


def _tensors(state: TrainState) -> dict[str, Tensor]:
    """Every tensor of the state under one name; a parameter that was never trained has no moments."""
    found = {name: parameter.detach() for name, parameter in state.parameters.items()}
    found |= {f"average/{name}": average for name, average in state.averages.items()}
    for name, parameter in state.parameters.items():
        found |= {f"{key}/{name}": value for key, value in state.optimiser.state.get(parameter, {}).items()}
    return found


def _load(state: TrainState, directory: Path) -> None:
    stored = stored_shapes(directory)
    weights = {name for name in stored if "/" not in name}
    if differ := sorted(weights ^ set(state.parameters)):
        raise ValueError(f"{directory} is of another model: it differs in {differ[0]} and {len(differ) - 1} more")
    state.optimiser.state.clear()
    moments = {one: moment_names(group) for group in state.optimiser.param_groups for one in group["params"]}
    for name, parameter in state.parameters.items():
        if stored[name] != tuple(parameter.shape):
            raise ValueError(f"{directory}: {name} has shape {stored[name]}, not {tuple(parameter.shape)}")
        if f"{moments[parameter][0]}/{name}" in stored:
            state.optimiser.state[parameter] = fresh_moments(parameter, moments[parameter])
    if foreign := sorted(set(stored) - set(_tensors(state))):
        raise ValueError(f"{directory} was written with another optimiser: it holds {foreign[0]}")
    load_tensors(_tensors(state), directory)
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


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return file_digest(handle, "sha256").hexdigest()
