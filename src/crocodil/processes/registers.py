"""Operations on register banks: normalisation, noise, blocks, nested dropout, interpolation (App. C and D).

A bank is the tensor of all registers of a text; B K D for a batch. Pure tensor mathematics, without networks.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import PrefixLength, RegisterBank


def normalise(registers: RegisterBank) -> RegisterBank:
    """Scale every register to norm sqrt(D): z <- sqrt(d) z / |z|, App. C."""
    return F.normalize(registers.float(), dim=-1).to(registers.dtype) * math.sqrt(registers.shape[-1])


def noise_std_for_cosine(cosine: float) -> float:
    """Return the noise level at which cos(z, z + e) is `cosine` on average (Alg. 1, line 5).

    With |z|^2 = D and |e|^2 ~ std^2 D, and e nearly orthogonal to z in high dimension,
    cos = 1 / sqrt(1 + std^2). The paper's 0.8 gives std = 0.75; 1 gives no noise.
    """
    if not 0 < cosine <= 1:
        raise ValueError(f"the cosine target must lie in (0, 1], not {cosine}")
    return math.sqrt(1 / cosine**2 - 1)


def perturb(registers: RegisterBank, *, std: float | Float[Tensor, "#B #K #D"], streams: Streams) -> RegisterBank:
    """Return z_0 + e with e ~ N(0, std^2 I), Alg. 1, lines 5-6; not renormalised (decision D5)."""
    noise = streams.normal(*registers.shape[1:]).to(registers.dtype)
    return registers + (std * noise).to(registers.dtype)


def replace_by_noise(registers: RegisterBank, *, rate: float, streams: Streams) -> RegisterBank:
    """Replace all registers of a sample by noise of the same norm, with probability `rate` (decision D41)."""
    chosen = streams.at("chosen").uniform() < rate
    noise = normalise(streams.at("noise").normal(*registers.shape[1:])).to(registers.dtype)
    return torch.where(chosen[:, None, None], noise, registers)


def block_ends(num_registers: int) -> list[int]:
    """Return where the blocks end: after 1, 2, 4, 8, ..., K registers (App. E, decision D3).

    Block sizes are 1, 1, 2, 4, 8 ..., so blocks end at powers of two. If K is not such
    a power, the last block is shorter.
    """
    powers = [1 << i for i in range(num_registers.bit_length()) if 1 << i < num_registers]
    return [*powers, num_registers]


def block_index(num_registers: int, device: torch.device | str = "cpu") -> Int[Tensor, "K"]:
    """Return the block of each register, from 0: the number of binary digits of its index."""
    return torch.frexp(torch.arange(num_registers, device=device).float()).exponent


def positions_across_text(num_registers: int, num_tokens: Int[Tensor, "*B"]) -> Int[Tensor, "*B K"]:
    """Return register positions spread over a text, coarse to fine: each block halves the gaps (D26).

    Van der Corput's sequence: 0, 1/2, 1/4, 3/4, 1/8 ... of the text length. The first 2^b registers are spread
    evenly over the text, and each later one describes a smaller part.
    """
    num_bits = (num_registers - 1).bit_length()
    # Created on the device: a copy from the host cannot be part of a CUDA graph.
    index = torch.arange(num_registers, device=num_tokens.device)
    reversed_bits = torch.zeros_like(index)
    for bit in range(num_bits):
        reversed_bits |= ((index >> bit) & 1) << (num_bits - 1 - bit)
    return num_tokens[..., None] * reversed_bits >> num_bits


def sample_prefix_length(num_registers: int, *, streams: Streams) -> PrefixLength:
    """Nested dropout: sample the number of visible registers, uniform over 1..K (decision D2)."""
    return streams.integers(1, num_registers)


def within_prefix(prefix_length: PrefixLength, num_registers: int) -> Bool[Tensor, "B K"]:
    """Return a mask of the first k registers; k is `prefix_length`."""
    return torch.arange(num_registers, device=prefix_length.device) < prefix_length[:, None]


def interpolate(first: RegisterBank, second: RegisterBank, *, mix_weight: float) -> RegisterBank:
    """Return (1 - w) z^(a) + w z^(b), normalised again (App. D); w is `mix_weight`."""
    return normalise((1 - mix_weight) * first + mix_weight * second)
