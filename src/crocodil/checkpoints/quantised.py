"""Matrices rounded to eight or four bits, with scales: a format for storage. Loaded weights are floats again."""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Float16, Int8, UInt8
from torch import Tensor

Bits: TypeAlias = Literal[8, 4]

LARGEST = 127  # of int8; -128 is not used: the grid is symmetric
GROUP = 32  # columns that share one scale in int4
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # the shares of the largest value that int4 tries as its range

# Matrices of the blocks hold most weights. Tables of tokens and positions and the maps of registers stay in int8.
_MATRIX_OF_A_BLOCK = re.compile(r"(^|\.)(blocks|layers)\.\d+\..*\.weight$")


def quantised(tensors: Mapping[str, Tensor], bits: Bits) -> dict[str, Tensor]:
    """Round matrices and add their scales; other tensors are small and stay in float32.

    With 4 bits, the matrices of blocks are stored as int4 if their columns fill whole groups, the others as int8.
    """
    converted = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            converted[name] = tensor.float()
        elif bits == 4 and _MATRIX_OF_A_BLOCK.search(name) and tensor.shape[1] % GROUP == 0:
            converted[name], converted[scale_name(name)] = to_int4(tensor)
        else:
            converted[name], converted[scale_name(name)] = to_int8(tensor)
    return converted


def checked_bits(bits: int | None, int8: bool = False) -> Bits | None:
    """Return the bits that a user asked for, None for weights as they are; `int8` is short for 8 bits."""
    if bits not in (None, 8, 4):
        raise ValueError(f"bits is {bits}: matrices are stored in 8 or 4 bits")
    if int8 and bits == 4:
        raise ValueError("int8 and 4 bits were both asked for: choose one")
    return 8 if int8 else bits  # type: ignore[return-value]


def scale_name(name: str) -> str:
    return f"{name}.scale"


# ---------------------------------------------------------------- int8: one scale per row


def to_int8(matrix: Float[Tensor, "R C"]) -> tuple[Int8[Tensor, "R C"], Float[Tensor, "R"]]:
    """Round a matrix to int8; return it and the step size of each row. Errors are at most half a step."""
    if not torch.isfinite(matrix).all():
        raise ValueError("a matrix with NaN or infinite values cannot be stored as int8")
    values = matrix.float()
    scale = values.abs().amax(dim=1) / LARGEST
    steps = values / torch.where(scale > 0, scale, 1.0)[:, None]  # a row of zeros stays zero
    return steps.round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def from_int8(steps: Int8[Tensor, "R C"], scale: Float[Tensor, "R"]) -> Float[Tensor, "R C"]:
    return steps.float() * scale.float()[:, None]


# ---------------------------------------------------------------- int4: one scale per group of columns


def to_int4(
    matrix: Float[Tensor, "R C"], group: int = GROUP
) -> tuple[UInt8[Tensor, "R P"], Float16[Tensor, "R G"]]:
    """Round a matrix to int4; return it, two columns per byte, and the scale of each group of columns.

    A value becomes the nearest of the 16 points -8..7 times the scale. A negative scale has its long side above
    zero: the largest value of a group lies on the long side. The range is clipped where this lowers the squared
    error, so errors are at most half a step, except beyond the ends of the grid.
    """
    values = matrix.float().unflatten(1, (-1, group))
    largest = values.gather(2, values.abs().argmax(dim=2, keepdim=True))
    if not torch.isfinite((largest / 8).half()).all():
        raise ValueError("a matrix with NaN, infinite or huge values cannot be stored as int4")
    scale, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for clip in CLIPS:
        candidate = (largest * (-clip / 8)).half().float()
        error = (_nearest(values, candidate) * candidate - values).square().sum(dim=2, keepdim=True)
        scale, least = torch.where(error < least, candidate, scale), torch.minimum(error, least)
    return _packed(_nearest(values, scale).flatten(1)), scale[:, :, 0].half()


def from_int4(packed: UInt8[Tensor, "R P"], scale: Float16[Tensor, "R G"]) -> Float[Tensor, "R C"]:
    steps = torch.stack((packed & 15, packed >> 4), dim=2).flatten(1).float() - 8
    return (steps.unflatten(1, (scale.shape[1], -1)) * scale.float()[:, :, None]).flatten(1)


def _nearest(values: Float[Tensor, "R G S"], scale: Float[Tensor, "R G 1"]) -> Float[Tensor, "R G S"]:
    return (values / torch.where(scale == 0, 1.0, scale)).round().clamp(-8, 7)  # a group of zeros stays zero


def _packed(steps: Float[Tensor, "R C"]) -> UInt8[Tensor, "R P"]:
    """Put an even column into the low four bits of a byte, and the odd column after it into the high ones."""
    unsigned = (steps + 8).to(torch.uint8)
    return unsigned[:, 0::2] | (unsigned[:, 1::2] << 4)
