"""Training data: programs in a fixed random order, and registers that are encoded once for all programs (D19)."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.corpus.order import Order
from crocodil.corpus.shards import Programs
from crocodil.processes.masking import stratified_times
from crocodil.runtime.distributed import Ranks, whole_directory_for_ranks
from crocodil.runtime.progress import progress
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.training.work import Work

NUM_VALID = 128  # programs of each length that are validated
REGISTERS_FILE = "registers.npy"
ROWS_AT_ONCE = 4096  # of cached registers, for their statistics
SMALLEST_STD = 1e-3  # of a coordinate; float16 does not resolve less in registers, whose entries are about 1


# ---------------------------------------------------------------- programs


@dataclass(frozen=True, kw_only=True)
class Data:
    """The training and validation programs of a stage, and the seed of their order and of all random draws.

    `train` and `valid` hold one view per length. Lengths take turns, so that a batch has one shape; a length that
    is listed twice has two turns. Indices are positions within the batch of one step.
    """

    train: Sequence[Programs]
    valid: Sequence[Programs]
    batch_size: int
    seed: int = 0
    num_valid: int = NUM_VALID
    device: str = "cpu"
    steps_per_turn: int = 1

    def __post_init__(self) -> None:
        for split, views in (("train", self.train), ("valid", self.valid)):
            for programs in views:
                if not len(programs):
                    raise ValueError(f"the {split} split holds no program of at most {programs.length} tokens")

    @cached_property
    def orders(self) -> list[Order]:
        return [Order(len(programs), f"train {self.seed} turn {turn}") for turn, programs in enumerate(self.train)]

    def turn(self, step: int) -> int:
        """Return which of the lengths a step uses."""
        return step // self.steps_per_turn % len(self.train)

    def length(self, step: int) -> int:
        """Return the length of a step's programs."""
        return self.train[self.turn(step)].length

    def length_share(self, step: int) -> float:
        """Return the length of a step's programs as a share of the longest."""
        return self.length(step) / max(programs.length for programs in self.train)

    def program_ids(self, step: int, indices: range) -> np.ndarray:
        """Return which programs of the step's length are in its batch."""
        rounds, rest = divmod(step, self.steps_per_turn * len(self.train))
        first = (rounds * self.steps_per_turn + rest % self.steps_per_turn) * self.batch_size
        return self.orders[self.turn(step)].at(np.arange(first + indices.start, first + indices.stop))

    def tokens(self, step: int, indices: range) -> Tensor:
        programs = self.train[self.turn(step)]
        return to_device(programs.batch(self.program_ids(step, indices)), self.device)

    def streams(self, step: int, indices: range) -> Streams:
        return Streams.of("train", self.seed, step, samples=indices, device=self.device)

    def times(self, step: int, indices: range) -> Tensor:
        """Return diffusion times, stratified over the whole batch."""
        shift = Streams.of("times", self.seed, samples=[step]).uniform().item()
        index = torch.arange(indices.start, indices.stop, device=self.device)
        return stratified_times(index, batch_size=self.batch_size, shift=shift)

    def mean_work(self, work_at: Callable[[int], Work]) -> Work:
        """Return the work per sample, averaged over the lengths."""
        works = [work_at(programs.length) for programs in self.train]
        return Work(fmean(work.tokens for work in works), fmean(work.flops for work in works))

    def validation_batches(self) -> Iterator["ValidationBatch"]:
        """Yield one batch of validation programs per length; they are the same every time."""
        turns = {programs.length: turn for turn, programs in enumerate(self.valid)}
        for turn in turns.values():
            programs = self.valid[turn]
            program_ids = Order(len(programs), "valid").at(np.arange(min(self.num_valid, len(programs))))
            tokens = torch.from_numpy(programs.batch(program_ids)).to(self.device)
            suffix = f", length {programs.length}" if len(turns) > 1 else ""
            yield ValidationBatch(turn, program_ids, tokens, suffix)


class ValidationBatch(NamedTuple):
    """Validation programs of one length."""

    turn: int
    program_ids: np.ndarray
    tokens: Tensor
    suffix: str  # appended to the names of metrics, where there are several lengths


def to_device(array: np.ndarray, device: str) -> Tensor:
    """Copy an array to a device; on CUDA the copy does not block the host."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.to(device)


# ---------------------------------------------------------------- cached registers


@dataclass(frozen=True)
class CachedRegisters:
    """The first registers of every program of a view, in its order, stored as float16."""

    directory: Path

    @cached_property
    def bank(self) -> np.ndarray:
        file = self.directory / REGISTERS_FILE
        try:
            return np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{file} is damaged ({error}): remove its folder and run stage registers again"
            ) from None

    def check(self, shape: tuple[int, int, int]) -> None:
        """Refuse a file whose shape is not (programs, registers, register width)."""
        if self.bank.shape != shape or self.bank.dtype != np.float16:
            raise ValueError(
                f"{self.directory} holds registers of shape {self.bank.shape}, but this run needs {shape}: "
                "run stage registers with another --out"
            )

    def __len__(self) -> int:
        return len(self.bank)

    def batch(self, program_ids: np.ndarray, device: str) -> Tensor:
        if self.fits(device):
            return self.resident(device)[to_device(program_ids, device)].float()
        return to_device(np.asarray(self.bank[program_ids]), device).float()

    @cache  # noqa: B019 (a run uses its registers until it ends)
    def fits(self, device: str) -> bool:
        """Whether the registers take less than an eighth of a GPU's free memory."""
        return device.startswith("cuda") and 8 * self.bank.nbytes < torch.cuda.mem_get_info(device)[0]

    @cache  # noqa: B019
    def moments(self) -> np.ndarray:
        """Return the means of z and of z^2 for every coordinate of every register, in float64."""
        sums = np.zeros((2, *self.bank.shape[1:]))
        for start in range(0, len(self), ROWS_AT_ONCE):
            rows = self.bank[start : start + ROWS_AT_ONCE].astype(np.float64)
            sums += rows.sum(axis=0), np.square(rows).sum(axis=0)
        return sums / len(self)

    @cache  # noqa: B019
    def resident(self, device: str) -> Tensor:
        """Return all registers as one tensor on the device."""
        return torch.from_numpy(np.array(self.bank)).to(device)


def register_statistics(views: Sequence[CachedRegisters]) -> Float[Tensor, "2 K D"]:
    """Return mean and standard deviation of every coordinate (decision D40); all lengths count alike."""
    mean, mean_square = np.mean([view.moments() for view in views], axis=0)
    variance = np.maximum(mean_square - mean**2, SMALLEST_STD**2)
    return torch.from_numpy(np.stack([mean, np.sqrt(variance)])).float()


@torch.no_grad()
def cache_registers(
    encode: Callable[[TokenIds], RegisterBank],
    programs: Programs,
    target: Path,
    *,
    shape: tuple[int, int],
    batch_size: int,
    ranks: Ranks,
    bf16: bool = False,
) -> CachedRegisters:
    """Encode all programs once, split among the ranks; `target` appears complete or not at all.

    `shape` is the number of registers that are kept per program, and their width.
    """
    if ranks.any(target.exists()):
        return CachedRegisters(target)
    share = ranks.share(range(len(programs)))
    autocast = torch.autocast(ranks.device.split(":")[0], dtype=torch.bfloat16, enabled=bf16)
    with (
        whole_directory_for_ranks(target, ranks) as unfinished,
        progress(f"encoding {target.name}", len(share), unit="programs", shown=ranks.is_main) as advance,
        autocast,
    ):
        bank = _open_bank(unfinished / REGISTERS_FILE, (len(programs), *shape), ranks)
        pending: list[tuple[np.ndarray, Tensor]] = []
        for start in range(share.start, share.stop, batch_size):
            # The last batch overlaps the one before: another batch size would compile the encoder again.
            first = max(share.start, min(start, share.stop - batch_size))
            program_ids = np.arange(first, min(first + batch_size, share.stop))
            tokens = to_device(programs.batch(program_ids), ranks.device)
            pending.append((program_ids, encode(tokens)[:, : shape[0]].half()))
            # Written one batch late, so that a GPU encodes one batch while the host prepares the next.
            if len(pending) > 1:
                _write(bank, *pending.pop(0))
            advance(min(batch_size, share.stop - start))
        for program_ids, registers in pending:
            _write(bank, program_ids, registers)
        bank.flush()
    return CachedRegisters(target)


def _write(bank: np.memmap, program_ids: np.ndarray, registers: Tensor) -> None:
    bank[program_ids] = registers.cpu().numpy()


def _open_bank(file: Path, shape: tuple[int, int, int], ranks: Ranks) -> np.memmap:
    if ranks.is_main:
        np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
        _reserve_space(file)
    ranks.barrier()
    return np.lib.format.open_memmap(file, mode="r+")


def _reserve_space(file: Path) -> None:
    """Allocate the file on disk, since writing to a memory map on a full disk kills the process (SIGBUS)."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)
