"""One optimiser with Muon (Jordan et al., 2024) for the matrices of repeated blocks and AdamW for all else.

Muon's update is the momentum of a matrix with its singular values brought close to 1 by Newton-Schulz iterations.
torch.optim.Muon processes one matrix at a time; here all matrices of one shape are processed as one batch (D37).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.adamw import adamw

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan's: fast at first, but the singular values end near 1, not at 1
_NUM_ITERATIONS = 5
_MOMENTUM = 0.95
_ADAMW_RMS = 0.2  # approximate RMS of an AdamW update (Liu et al., 2025, arXiv:2502.16982, Sec. 2.2)

Matrices = Float[Tensor, "N R C"]


class Muon(torch.optim.Optimizer):
    """Use Muon for parameter groups with `hidden=True` and AdamW for the others, with the same learning rate."""

    def __init__(
        self, groups: Sequence[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float = 1e-8
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "hidden": False})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            parameters: list[Tensor] = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = zero_moments(parameter, moment_names(group))
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            moments = [[self.state[parameter][name] for parameter in parameters] for name in moment_names(group)]
            (_step_muon if group["hidden"] else _step_adamw)(group, parameters, gradients, *moments)


def _step_muon(
    group: Mapping[str, Any], matrices: list[Tensor], gradients: list[Tensor], momenta: list[Tensor]
) -> None:
    torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
    nesterov = torch._foreach_lerp(gradients, momenta, _MOMENTUM)
    torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
    for shape, indices in _by_shape(matrices).items():
        stack = torch.stack([nesterov[index] for index in indices])
        update = orthogonalise(stack.bfloat16() if stack.is_cuda else stack).to(stack.dtype)
        torch._foreach_add_(
            [matrices[index] for index in indices],
            list(update.contiguous().unbind()),
            alpha=-group["lr"] * _ADAMW_RMS * math.sqrt(max(shape)),
        )


def _step_adamw(
    group: Mapping[str, Any],
    parameters: list[Tensor],
    gradients: list[Tensor],
    steps: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
) -> None:
    beta1, beta2 = group["betas"]
    adamw(
        parameters, gradients, means, squares, [], steps, fused=True, amsgrad=False, maximize=False,
        lr=group["lr"], beta1=beta1, beta2=beta2, eps=group["eps"], weight_decay=group["weight_decay"],
    )  # fmt: skip


def orthogonalise(matrices: Matrices) -> Matrices:
    """Return approximately U V^T for each matrix U S V^T: the singular values end between 0.7 and 1.2.

    bfloat16 is precise enough. A matrix that combines two projections (keys and values) is treated as one matrix.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    wide = wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp(min=1e-7)
    first, third, fifth = _COEFFICIENTS
    for _ in range(_NUM_ITERATIONS):
        gram = wide @ wide.mT
        factor = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        wide = torch.baddbmm(wide, factor, wide, beta=first)
    return wide.mT if tall else wide


def hidden_matrices(blocks: Iterable[nn.Module]) -> set[Tensor]:
    """Return the weights of the linear layers in blocks; tables, which are matrices too, are left to AdamW."""
    return {module.weight for block in blocks for module in block.modules() if isinstance(module, nn.Linear)}


def moment_names(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the optimiser state of each parameter in a group."""
    return ("momentum",) if group.get("hidden") else ("step", "exp_avg", "exp_avg_sq")


def zero_moments(parameter: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
    return {
        name: torch.zeros((), device=parameter.device)
        if name == "step"
        else torch.zeros_like(parameter, requires_grad=False)
        for name in names
    }


def _by_shape(parameters: Sequence[Tensor]) -> dict[torch.Size, list[int]]:
    indices = defaultdict(list)
    for index, parameter in enumerate(parameters):
        indices[parameter.shape].append(index)
    return indices
