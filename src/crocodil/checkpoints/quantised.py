"""Matrices rounded to eight or fewer bits, with scales: a format for storage. Loaded weights are floats again."""

import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Float, Float16, Int8, UInt8
from torch import Tensor

FewBits: TypeAlias = Literal[6, 5, 4, 3]  # with one scale per group of columns
Bits: TypeAlias = Literal[8, 6, 5, 4, 3]

LARGEST = 127  # of int8; -128 is not used: the grid is symmetric
GROUP = 32  # columns that share one scale, if there are fewer bits than 8
CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # shares of a group's largest value that are tried as its range
_DAMPING = 0.01  # of the mean second moment, added to all: inputs that were not seen must not count as impossible

Moments: TypeAlias = Float[Tensor, "C C"]  # the sum of x x^T over inputs x of a matrix

# Matrices of the blocks hold most weights. Tables of tokens and positions and the maps of registers stay in int8.
_MATRIX_OF_A_BLOCK = re.compile(r"(^|\.)((blocks|layers)\.\d+|block)\..*\.weight$")


def quantised(
    tensors: Mapping[str, Tensor], bits: Bits, moments: Mapping[str, Moments] | None = None
) -> dict[str, Tensor]:
    """Round matrices and add their scales; other tensors are small and stay in float32.

    With fewer bits than 8, matrices of blocks whose columns fill whole groups have them; the others are int8.
    `moments` are those of the inputs of some matrices, by name (decision D82).
    """
    converted, moments = {}, moments or {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            converted[name] = tensor.float()
        elif bits != 8 and may_have_few_bits(name, tensor):
            rounded = to_few_bits(tensor, bits, moments=moments.get(name))
            converted[name], converted[scale_name(name)] = rounded
        else:
            converted[name], converted[scale_name(name)] = to_int8(tensor)
    return converted


def may_have_few_bits(name: str, matrix: Tensor) -> bool:
    """Whether a weight is a matrix of a block whose columns fill whole groups."""
    return matrix.ndim == 2 and bool(_MATRIX_OF_A_BLOCK.search(name)) and matrix.shape[1] % GROUP == 0


def checked_bits(bits: int | None, int8: bool = False) -> Bits | None:
    """Return the bits that a user asked for, None for weights as they are; `int8` is short for 8 bits."""
    if bits is not None and bits not in get_args(Bits):
        raise ValueError(f"bits is {bits}: matrices are stored in 8, 6, 5, 4 or 3 bits")
    if int8 and bits not in (None, 8):
        raise ValueError(f"int8 and {bits} bits were both asked for: choose one")
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


# ---------------------------------------------------------------- fewer bits: one scale per group of columns


def to_few_bits(
    matrix: Float[Tensor, "R C"], bits: FewBits = 4, group: int = GROUP, *, moments: Moments | None = None
) -> tuple[UInt8[Tensor, "R P"], Float16[Tensor, "R G"]]:
    """Round a matrix; return it, packed into bytes, and the scale of each group of columns.

    With 4 bits a value becomes the nearest of the 16 points -8..7 times the scale. The grid reaches further on one
    side; the sign of the scale puts the largest value of the group on that side. The range is clipped where this
    lowers the squared error, so errors are at most half a step, except beyond the ends of the grid.

    With the moments of its inputs, a matrix is rounded so that its outputs change little, instead of its values.
    """
    values, end = matrix.float(), 2 ** (bits - 1)
    if not torch.isfinite((values.abs().amax(dim=1) / end).half()).all():
        raise ValueError(f"a matrix with NaN, infinite or huge values cannot be stored as int{bits}")
    if moments is None:
        grouped = values.unflatten(1, (-1, group))
        scale = _best_scale(grouped, end)
        steps, scale = _nearest(grouped, scale, end).flatten(1), scale[:, :, 0]
    else:
        steps, scale = _rounded_for_inputs(values, moments, end, group)
    steps, scale = _largest_below_zero(steps, scale)
    return _packed((steps + end).to(torch.uint8), bits), scale.half()


def _best_scale(values: Float[Tensor, "... S"], end: int) -> Float[Tensor, "... 1"]:
    """Return the scale of each group that has the smallest squared error.

    Ranges above the largest value are tried too: groups that were rounded for inputs may not reach the end of
    their grid, and must stay as they are when they are stored again.
    """
    largest = values.gather(-1, values.abs().argmax(dim=-1, keepdim=True))
    scale, least = torch.zeros_like(largest), torch.full_like(largest, torch.inf)
    for clip in (*CLIPS, *(end / step for step in range(end - 1, end // 2 - 1, -1))):
        candidate = (largest * (-clip / end)).half().float()
        error = (_nearest(values, candidate, end) * candidate - values).square().sum(dim=-1, keepdim=True)
        scale, least = torch.where(error < least, candidate, scale), torch.minimum(error, least)
    return scale


def _rounded_for_inputs(
    values: Float[Tensor, "R C"], moments: Moments, end: int, group: int
) -> tuple[Float[Tensor, "R C"], Float[Tensor, "R G"]]:
    """Round the columns one after the other; each time, the columns that follow make up for the error.

    GPTQ (Frantar et al., 2022, arXiv:2210.17323, Algorithm 1). If inputs are correlated, a change of later columns
    can undo most of what an error of this one does to the outputs.
    """
    values, steps, scales = values.clone(), torch.empty_like(values), []
    factor = _inverse_factor(moments).to(values)
    for start in range(0, values.shape[1], group):
        columns, inside = values[:, start : start + group], factor[start : start + group, start : start + group]
        scale, errors = _best_scale(columns, end), torch.empty_like(columns)
        for number in range(group):
            column = columns[:, number, None]
            step = _nearest(column, scale, end)
            errors[:, number, None] = error = (column - step * scale) / inside[number, number]
            columns[:, number + 1 :] -= error * inside[number, number + 1 :]
            steps[:, start + number, None] = step
        values[:, start + group :] -= errors @ factor[start : start + group, start + group :]
        scales.append(scale)
    return steps, torch.cat(scales, dim=1)


def _largest_below_zero(
    steps: Float[Tensor, "R C"], scale: Float[Tensor, "R G"]
) -> tuple[Float[Tensor, "R C"], Float[Tensor, "R G"]]:
    """Make the largest step of each group negative, so that a matrix that is stored again has the same bytes."""
    grouped = steps.unflatten(1, (scale.shape[1], -1))
    largest = grouped.gather(2, grouped.abs().argmax(dim=2, keepdim=True))
    sign = torch.where(largest > 0, -1.0, 1.0)
    return (grouped * sign).flatten(1), scale * sign[:, :, 0]


def _inverse_factor(moments: Moments) -> Float[Tensor, "C C"]:
    """Return the upper Cholesky factor of the inverse: its row j says how the columns after j make up for j."""
    mean = moments.double().diagonal().mean()
    damping = _DAMPING * mean if mean > 0 else mean.new_ones(())  # without inputs: round to the nearest
    damped = moments.double() + damping * torch.eye(len(moments), dtype=torch.double, device=moments.device)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)


def from_few_bits(
    packed: UInt8[Tensor, "R P"], scale: Float16[Tensor, "R G"], bits: FewBits = 4
) -> Float[Tensor, "R C"]:
    steps = _unpacked(packed, bits).float() - 2 ** (bits - 1)
    return (steps.unflatten(1, (scale.shape[1], -1)) * scale.float()[:, :, None]).flatten(1)


def _nearest(values: Float[Tensor, "... S"], scale: Float[Tensor, "... 1"], end: int) -> Float[Tensor, "... S"]:
    return (values / torch.where(scale == 0, 1.0, scale)).round().clamp(-end, end - 1)  # zeros stay zero


def _packed(steps: UInt8[Tensor, "R C"], bits: FewBits) -> UInt8[Tensor, "R P"]:
    """Put the low four bits of two columns into a byte, then each other bit of eight columns into another."""
    parts = [(steps[:, 0::2] & 15) | (steps[:, 1::2] << 4)] if bits >= 4 else []
    for place in range(_first_plane(bits), bits):
        eight = ((steps >> place) & 1).unflatten(1, (-1, 8))
        parts.append((eight << torch.arange(8, dtype=torch.uint8)).sum(dim=2, dtype=torch.uint8))
    return torch.cat(parts, dim=1)


def _unpacked(packed: UInt8[Tensor, "R P"], bits: FewBits) -> UInt8[Tensor, "R C"]:
    columns = packed.shape[1] * 8 // bits
    first = _first_plane(bits)
    low, *planes = packed.split([columns * first // 8] + [columns // 8] * (bits - first), dim=1)
    steps = torch.stack((low & 15, low >> 4), dim=2).flatten(1) if first else low.new_zeros(len(low), columns)
    for place, plane in enumerate(planes, start=first):
        eight = (plane[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        steps = steps | (eight.flatten(1) << place)
    return steps


def _first_plane(bits: FewBits) -> int:
    """Return the lowest bit that is stored in a byte of eight columns."""
    return 4 if bits >= 4 else 0
