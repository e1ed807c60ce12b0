"""Matrices as int8 with one scale a row: a quarter of the size of float32.

A row's scale spans its largest value. Clipping that value to 0.95 or less of itself was measured and left out: it
lessens the squared error of no row, neither of trained matrices nor of random ones with heavier tails.
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor

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
