"""Canvases, and the state of the decode loop: tokens, registers, random streams and costs of a batch.

Finished samples leave the batch, and are put back at their position in the end. This module does not know networks
or reveal rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from crocodil.processes.categorical import Allowed
from crocodil.runtime.devices import check_all
from crocodil.sampling.cost import Cost, Ledger
from crocodil.seeding import Streams
from crocodil.shapes import LogProbs, Positions, ReadLength, RegisterBank, TokenIds

BATCH_SIZES = 4  # on a GPU a batch shrinks in this many steps: every size is recorded as a graph of its own


@dataclass(frozen=True)
class Canvas:
    """Token sequences with masks to fill. Visible tokens never change, except at restricted positions."""

    tokens: TokenIds
    mask_id: int
    eos_id: int | None = None  # positions after an EOS are filled with EOS; None: it is a token like any other
    allowed: Allowed | None = None  # positions where only some tokens are allowed

    @classmethod
    def empty(
        cls,
        num_samples: int,
        length: int,
        *,
        mask_id: int,
        eos_id: int | None = None,
        device: str | torch.device = "cpu",
    ) -> "Canvas":
        """Return canvases on which every position is masked."""
        return cls(torch.full((num_samples, length), mask_id, device=device), mask_id, eos_id)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @property
    def device(self) -> torch.device:
        return self.tokens.device

    def masked(self) -> Positions:
        return self.tokens == self.mask_id

    def restricted(self) -> Positions:
        """Return the positions where only some tokens are allowed."""
        return torch.zeros_like(self.masked()) if self.allowed is None else self.allowed.restricted()

    def given(self) -> Positions:
        """Return the positions whose token never changes. A token at a restricted position may."""
        return ~self.masked() & ~self.restricted()

    def repeated(self, count: int) -> "Canvas":
        """Return `count` copies of a canvas of one sample."""
        allowed = None if self.allowed is None else self.allowed.repeated(count)
        return replace(self, tokens=self.tokens.expand(count, -1), allowed=allowed)

    def rows(self, numbers: range) -> "Canvas":
        """Return the canvases of these samples."""
        index = torch.arange(numbers.start, numbers.stop, device=self.device)
        allowed = None if self.allowed is None else self.allowed.of_samples(index)
        return replace(self, tokens=self.tokens[index], allowed=allowed)

    def to(self, device: torch.device) -> "Canvas":
        allowed = None if self.allowed is None else Allowed(*(part.to(device) for part in self.allowed))
        return replace(self, tokens=self.tokens.to(device), allowed=allowed)


class Draw(NamedTuple):
    """Drawn registers and what they cost."""

    registers: RegisterBank
    cost: Cost

    def first(self, count: int | None) -> "Draw":
        """Keep the first registers only: they are nested, coarse to fine."""
        return Draw(self.registers[:, :count], self.cost)


# (visible tokens, registers to replace or None, streams) -> new registers
Refresh: TypeAlias = Callable[[TokenIds, RegisterBank | None, Streams], Draw]


def refresh_streams(streams: Streams, call: int) -> Streams:
    """Return the random streams for a refresh before this call; their keys also identify the samples."""
    return streams.at("call", call, "refresh")


class Samples(NamedTuple):
    tokens: TokenIds
    cost: Cost  # of the batch
    costs: list[Cost]  # of each sample until it was finished: its cost if decoded alone
    registers: RegisterBank | None  # those in use at the end

    def with_registers(self, count: int | None) -> "Samples":
        """Return the samples with their first registers only: those that guided them."""
        return self if self.registers is None else self._replace(registers=self.registers[:, :count])

    def refunded(self, cost: Cost, rows: Sequence[bool]) -> "Samples":
        """Take a cost back from these samples: it was spent for others of the batch."""
        return self._replace(costs=[own - cost if row else own for own, row in zip(self.costs, rows, strict=True)])


class Revealed(NamedTuple):
    """The canvas after a demasker call."""

    tokens: TokenIds
    was_hidden: Bool[Tensor, "B"]  # samples that had hidden tokens in the block
    is_finite: Bool[Tensor, ""]  # whether all log-probabilities were
    log_prob: LogProbs  # of the proposed tokens; 0 where nothing was hidden
    read_length: ReadLength | None  # of the next call; None: all of the canvas


class State:
    """The samples that are still being decoded.

    Methods read no tensor value unless they say so, because reading waits for the device.
    """

    def __init__(self, canvas: Canvas, registers: RegisterBank | None, streams: Streams, spent: Cost) -> None:
        self.mask_id = canvas.mask_id
        self.index: Int[Tensor, B] = torch.arange(len(canvas), device=canvas.device)  # in the full batch
        self.tokens, self.given, self.allowed = canvas.tokens, canvas.given(), canvas.allowed
        self.registers, self.streams = registers, streams
        self.read_length: ReadLength = torch.full_like(canvas.tokens[:, 0], canvas.length)
        self.ledger = Ledger(canvas.tokens, spent)
        self._all_tokens, self._all_registers = canvas.tokens, registers
        self._log_prob: LogProbs | None = None  # of the last call
        self._unchecked: list[Bool[Tensor, ""]] = []
        self._size_step = 1 if canvas.device.type == "cpu" else -(-len(canvas) // BATCH_SIZES)

    def __len__(self) -> int:
        return len(self.index)

    def unfinished(self) -> Bool[Tensor, "B"]:
        return (self.tokens == self.mask_id).any(dim=1)

    def drop_finished(self) -> None:
        """Remove finished samples from the batch. Reads tensor values."""
        self.check_finite()
        finished = ~self.unfinished()
        num_left = int((~finished).sum())
        size = -(-num_left // self._size_step) * self._size_step
        if size >= len(self):
            return
        self._all_tokens, self._all_registers = self.all_tokens(), self.all_registers()
        kept = finished.int().argsort(stable=True)[:size].sort().values
        self.index, self.tokens, self.given = self.index[kept], self.tokens[kept], self.given[kept]
        self.allowed = None if self.allowed is None else self.allowed.of_samples(kept)
        self.registers = None if self.registers is None else self.registers[kept]
        self.streams, self.read_length = self.streams[kept], self.read_length[kept]

    def refresh(self, refresh: Refresh, call: int) -> None:
        """Replace the registers, given the tokens visible so far."""
        registers, cost = refresh(self.tokens, self.registers, refresh_streams(self.streams, call))
        unfinished = self.unfinished()
        self.ledger.enter(cost, self.index, unfinished)
        # On a GPU finished samples may still be in the batch. They keep their registers, as they do on a CPU.
        old = registers.new_zeros(()) if self.registers is None else self.registers
        self.registers = registers.where(unfinished[:, None, None], old)

    def update(self, revealed: Revealed, cost: Cost) -> None:
        self.tokens, self._log_prob = revealed.tokens, revealed.log_prob
        left_out = None
        if revealed.read_length is not None:
            left_out = cost.demasker_calls * (self.tokens.shape[1] - self.read_length)
            self.read_length = revealed.read_length
        self.ledger.enter(cost, self.index, revealed.was_hidden, left_out)
        self._unchecked.append(revealed.is_finite)

    def check_finite(self) -> None:
        """Raise if any call so far gave logits that are not finite. Reads tensor values."""
        check_all(self._unchecked, "the demasker's logits")
        self._unchecked.clear()

    def all_tokens(self) -> TokenIds:
        return self._all_tokens.index_copy(0, self.index, self.tokens)

    def all_log_probs(self) -> LogProbs:
        """Return the log-probabilities of the tokens that the last call proposed; 0 where it proposed none."""
        assert self._log_prob is not None
        nothing = torch.zeros(self._all_tokens.shape, device=self._all_tokens.device)
        return nothing.index_copy(0, self.index, self._log_prob)

    def all_registers(self) -> RegisterBank | None:
        if self.registers is None:
            return None
        registers = self._all_registers
        if registers is None:  # samples that finished before the first draw have none
            registers = self.registers.new_zeros(len(self._all_tokens), *self.registers.shape[1:])
        return registers.index_copy(0, self.index, self.registers)

    def samples(self) -> Samples:
        self.check_finite()
        return Samples(self.all_tokens(), self.ledger.total(), self.ledger.costs(), self.all_registers())
