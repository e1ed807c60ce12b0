"""The registers that the prior models, encoded once for the whole corpus (decision D19)."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crocodil.corpus.shards import Programs
from crocodil.runtime.distributed import Ranks, whole_directory_of_all
from crocodil.runtime.progress import progress
from crocodil.shapes import RegisterBank, TokenIds

_FILE = "registers.npy"


@dataclass(frozen=True)
class CachedRegisters:
    """The first registers of every program of a view, in its order, in half precision on disk."""

    directory: Path

    @cached_property
    def bank(self) -> np.ndarray:
        file = self.directory / _FILE
        try:
            return np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(
                f"{file} is damaged ({error}): remove its folder, run stage registers again"
            ) from None

    def check(self, shape: tuple[int, int, int]) -> None:
        """Whether these are so many banks of so many registers of this width."""
        if self.bank.shape != shape or self.bank.dtype != np.float16:
            raise ValueError(
                f"{self.directory} holds registers of shape {self.bank.shape}, this run needs {shape}: "
                "run stage registers with another --out"
            )

    def __len__(self) -> int:
        return len(self.bank)

    def batch(self, numbers: np.ndarray, device: str) -> Tensor:
        if self.fits(device):
            return self.resident(device)[to_device(numbers, device)].float()
        return to_device(np.asarray(self.bank[numbers]), device).float()

    @cache  # noqa: B019 (a run keeps its banks to its end)
    def fits(self, device: str) -> bool:
        """Whether an accelerator can hold all of it beside its work."""
        return device.startswith("cuda") and 8 * self.bank.nbytes < torch.cuda.mem_get_info(device)[0]

    @cache  # noqa: B019
    def resident(self, device: str) -> Tensor:
        return torch.from_numpy(np.array(self.bank)).to(device)


def to_device(array: np.ndarray, device: str) -> Tensor:
    """Without waiting for what the device is doing."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.startswith("cuda") else tensor.to(device)


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
    """Encode every program once, each rank its share; `target` appears whole or not at all.

    `shape` is that of a kept bank: how many of the first registers, and their width.
    """
    if ranks.any(target.exists()):
        return CachedRegisters(target)
    share = ranks.share(range(len(programs)))
    autocast = torch.autocast(ranks.device.split(":")[0], dtype=torch.bfloat16, enabled=bf16)
    with (
        whole_directory_of_all(target, ranks) as unfinished,
        progress(f"encoding {target.name}", len(share), unit="programs", shown=ranks.is_main) as advance,
        autocast,
    ):
        bank = _open_bank(unfinished / _FILE, (len(programs), *shape), ranks)
        waiting: list[tuple[np.ndarray, Tensor]] = []
        for start in range(share.start, share.stop, batch_size):
            # The last batch reaches back for programs that are done: of another size it would compile anew.
            first = max(share.start, min(start, share.stop - batch_size))
            numbers = np.arange(first, min(first + batch_size, share.stop))
            tokens = to_device(programs.batch(numbers), ranks.device)
            waiting.append((numbers, encode(tokens)[:, : shape[0]].half()))
            # Written down a batch late: an accelerator is at work on one while the next is made.
            if len(waiting) > 1:
                _write(bank, *waiting.pop(0))
            advance(min(batch_size, share.stop - start))
        for numbers, registers in waiting:
            _write(bank, numbers, registers)
        bank.flush()
    return CachedRegisters(target)


def _write(bank: np.memmap, numbers: np.ndarray, registers: Tensor) -> None:
    bank[numbers] = registers.cpu().numpy()


def _open_bank(file: Path, shape: tuple[int, int, int], ranks: Ranks) -> np.memmap:
    if ranks.is_main:
        np.lib.format.open_memmap(file, mode="w+", dtype=np.float16, shape=shape)
        _reserve(file)
    ranks.wait()
    return np.lib.format.open_memmap(file, mode="r+")


def _reserve(file: Path) -> None:
    """The file's space on disk: a process that writes to a map when the disk is full is killed without a word."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as handle:
            os.posix_fallocate(handle.fileno(), 0, file.stat().st_size)
