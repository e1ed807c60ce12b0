"""The register bank as geometry: its sphere, its noise, its nested order (App. C and D).

Pure tensor mathematics. Knows neither the encoder that fills a bank nor the demasker that reads it.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from crocodil.seeding import Streams
from crocodil.shapes import PrefixLength, RegisterBank


def normalise(registers: RegisterBank) -> RegisterBank:
    """Bring every register to norm sqrt(D): z <- sqrt(d) z / |z|, App. C."""
    return F.normalize(registers.float(), dim=-1).to(registers.dtype) * math.sqrt(registers.shape[-1])


def noise_std_for_cosine(cosine: float) -> float:
    """Noise level at which cos(z, z + e) is `cosine` on average (Alg. 1, line 5).

    With |z|^2 = D and |e|^2 ~ std^2 D, and e nearly orthogonal to z in high dimension,
    cos = 1 / sqrt(1 + std^2). The paper's 0.8 gives std = 0.75; 1 gives no noise.
    """
    if not 0 < cosine <= 1:
        raise ValueError(f"a cosine target lies in (0, 1], not at {cosine}")
    return math.sqrt(1 / cosine**2 - 1)


def perturb(registers: RegisterBank, *, std: float, streams: Streams) -> RegisterBank:
    """z_0 + e with e ~ N(0, std^2 I), Alg. 1, lines 5-6; not renormalised (decision D5)."""
    noise = streams.normal(*registers.shape[1:]).to(registers.dtype)
    return registers + std * noise


def block_ends(num_registers: int) -> list[int]:
    """How many registers the first 1, 2, 3 ... blocks hold: 1, 2, 4, 8, ..., K (App. E, decision D3).

    Blocks grow geometrically, 1, 1, 2, 4, 8 ..., so that they end at the powers of two; the last is cut where K is
    none.
    """
    powers = [1 << i for i in range(num_registers.bit_length()) if 1 << i < num_registers]
    return [*powers, num_registers]


def block_index(num_registers: int, device: torch.device | str = "cpu") -> Int[Tensor, "K"]:
    """The block that each register belongs to, from 0: how many binary digits its number has."""
    return torch.frexp(torch.arange(num_registers, device=device).float()).exponent


def places_across(num_registers: int, num_tokens: Int[Tensor, "*B"]) -> Int[Tensor, "*B K"]:
    """Places all over a text, coarse to fine: every block of registers halves the gaps (decision D26).

    Van der Corput's sequence: 0, 1/2, 1/4, 3/4, 1/8 ... of the text, so that the first 2^b registers are spread
    evenly over it, and each later one describes a smaller part.
    """
    num_bits = (num_registers - 1).bit_length()
    # On the device from the start: what is copied there cannot be part of a recorded call.
    number = torch.arange(num_registers, device=num_tokens.device)
    turned_round = torch.zeros_like(number)
    for bit in range(num_bits):
        turned_round |= ((number >> bit) & 1) << (num_bits - 1 - bit)
    return num_tokens[..., None] * turned_round >> num_bits


def sample_prefix_length(num_registers: int, *, streams: Streams) -> PrefixLength:
    """Nested dropout: how many registers the demasker sees, uniform over 1..K (decision D2)."""
    return streams.integers(1, num_registers)


def sample_block_end(num_registers: int, *, streams: Streams) -> PrefixLength:
    """Nested dropout that stops at ends of blocks only: 1, 2, 4, ..., K alike (decision D2)."""
    ends = torch.tensor(block_ends(num_registers), device=streams.keys.device)
    return ends[streams.integers(0, len(ends) - 1)]


def within_prefix(prefix_length: PrefixLength, num_registers: int) -> Bool[Tensor, "B K"]:
    """The registers that a prefix of this length shows."""
    return torch.arange(num_registers, device=prefix_length.device) < prefix_length[:, None]


def interpolate(first: RegisterBank, second: RegisterBank, *, mix_weight: float) -> RegisterBank:
    """z_a = (1 - a) z^(a) + a z^(b), brought back to the sphere (App. D); `mix_weight` is a."""
    return normalise((1 - mix_weight) * first + mix_weight * second)
