"""Which inputs the matrices of a model see in use, so that they can be rounded for these (decision D82)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from crocodil.checkpoints.quantised import Moments, may_have_few_bits
from crocodil.pipeline.crocodil import Crocodil
from crocodil.pipeline.settings import Method

_CALLS = 4  # canvases between fully masked and complete
_SEED = 0


def calibrate(model: Crocodil, texts: Sequence[str]) -> dict[str, dict[str, Moments]]:
    """Copy the texts and generate as many; return the moments of the inputs of all matrices, by network and name.

    Networks that this does not use, such as a prior of prompts, are rounded to the nearest values then.
    """
    if model.device.type != "cpu":
        raise ValueError("calibration runs on a CPU: load the model with device='cpu'")
    if not texts:
        raise ValueError("calibration needs at least one text")
    with ExitStack() as stack:
        found = {name: stack.enter_context(_input_moments(network)) for name, network in model.networks.items()}
        model.autoencode(texts, cut=True, calls=_CALLS)
        for method in _methods(model):
            model.generate(len(texts), method=method, calls=_CALLS, seed=_SEED)
    return found


def _methods(model: Crocodil) -> list[Method]:
    """Return the methods that use each network of generation at least once."""
    methods = [] if model.base is None else [Method.BASE]
    if model.conditional is not None:
        return [*methods, Method.CON_WITHIN_DISC]
    return methods if model.prior is None else [*methods, Method.CON_THEN_DISC]


@contextmanager
def _input_moments(network: nn.Module) -> Iterator[dict[str, Moments]]:
    """Collect the sum of x x^T over all inputs x of each linear layer that may have few bits."""
    layers = {
        f"{name}.weight": layer
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and may_have_few_bits(f"{name}.weight", layer.weight)
    }
    moments = {name: torch.zeros(layer.in_features, layer.in_features) for name, layer in layers.items()}

    def add(name: str, inputs: Tensor) -> None:
        rows = inputs.flatten(0, -2).float()
        moments[name] += rows.T @ rows

    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: add(name, args[0]))
        for name, layer in layers.items()
    ]
    try:
        yield moments
    finally:
        for hook in hooks:
            hook.remove()
