"""A batch that gets smaller: samples leave it when nothing of them is masked any more.

It keeps canvases, registers and streams of the same samples together, and puts those that have left back in their
places at the end. It knows neither networks nor rules, nor in which order anything is revealed.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from crocodil.processes.categorical import Allowed
from crocodil.sampling.cost import Numbers
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RegisterBank, TokenIds

BATCH_SIZES = 4  # in how many sizes a batch is decoded on a device as samples get fewer


@dataclass
class Batch:
    """The samples that are still decoded, out of those asked for."""

    numbers: Numbers
    tokens: TokenIds
    given: Positions
    allowed: Allowed | None
    registers: RegisterBank | None
    streams: Streams
    mask_id: int
    left_tokens: TokenIds  # of all samples; right for those that were left out
    left_registers: RegisterBank | None
    step_size: int  # sizes of a batch are multiples of it: a device records each size anew

    @classmethod
    def of(
        cls,
        canvas: TokenIds,
        registers: RegisterBank | None,
        streams: Streams,
        *,
        mask_id: int,
        allowed: Allowed | None = None,
    ) -> "Batch":
        numbers = torch.arange(len(canvas), device=canvas.device)
        step_size = 1 if canvas.device.type == "cpu" else -(-len(canvas) // BATCH_SIZES)
        given = canvas != mask_id
        if allowed is not None:  # what was put there may be another token in the end
            given = given & ~allowed.restricted()
        return cls(numbers, canvas, given, allowed, registers, streams, mask_id, canvas, registers, step_size)

    def masked(self) -> Positions:
        return self.tokens == self.mask_id

    def unfinished(self) -> Bool[Tensor, "B"]:
        return self.masked().any(dim=1)

    def leave_out_finished(self) -> None:
        finished = ~self.unfinished()
        num_left = int((~finished).sum())
        size = -(-num_left // self.step_size) * self.step_size
        if size >= len(self.numbers):
            return
        self.left_tokens, self.left_registers = self.all_tokens(), self.all_registers()
        kept = finished.int().argsort(stable=True)[:size].sort().values
        self.numbers, self.tokens, self.given = self.numbers[kept], self.tokens[kept], self.given[kept]
        self.allowed = None if self.allowed is None else self.allowed.of_samples(kept)
        self.registers = None if self.registers is None else self.registers[kept]
        self.streams = self.streams[kept]

    def all_tokens(self) -> TokenIds:
        return self.left_tokens.index_copy(0, self.numbers, self.tokens)

    def all_registers(self) -> RegisterBank | None:
        if self.registers is None:
            return None
        left = self.left_registers
        if left is None:  # who was left out before there were any has none
            left = self.registers.new_zeros(len(self.left_tokens), *self.registers.shape[1:])
        return left.index_copy(0, self.numbers, self.registers)
