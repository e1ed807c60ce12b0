"""Teacher texts: texts that a model decoded in many calls, with the registers that they were decoded from (D77).

From them a demasker learns to decode in few calls. `crocodil teach` writes one folder per length and setting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crocodil.corpus.order import Order
from crocodil.runtime.atomic import whole_directory
from crocodil.shapes import PrefixLength, RegisterBank, TokenIds
from crocodil.training.data import REGISTERS_FILE, to_device

TEACHER_FILE, TOKENS_FILE = "teacher.json", "tokens.npy"


@dataclass(frozen=True)
class TeacherTexts:
    """A folder of texts of one length, stored with their registers as float16."""

    directory: Path

    @cached_property
    def tokens(self) -> np.ndarray:
        return self._array(TOKENS_FILE, num_axes=2)

    @cached_property
    def registers(self) -> np.ndarray:
        return self._array(REGISTERS_FILE, num_axes=3)

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])

    def _array(self, name: str, num_axes: int) -> np.ndarray:
        file = self.directory / name
        if not file.is_file():
            raise ValueError(f"{file} is missing: teacher_texts are folders that `crocodil teach` wrote")
        try:
            array = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, OSError) as error:
            raise ValueError(f"{file} is damaged ({error}): write it again with `crocodil teach`") from None
        if array.ndim != num_axes or not len(array):
            raise ValueError(f"{file} has shape {array.shape}: write it again with `crocodil teach`")
        return array

    def check(self, *, vocab_size: int, num_registers: int, register_width: int) -> None:
        """Refuse texts that do not fit the networks of a run."""
        _, count, width = self.registers.shape
        if len(self.registers) != len(self.tokens):
            raise ValueError(f"{self.directory} is damaged: {len(self.tokens)} texts, {len(self.registers)} banks")
        if count > num_registers or width != register_width:
            raise ValueError(
                f"{self.directory} holds {count} registers of width {width}, the run has {num_registers} of width "
                f"{register_width}: teach with a model of the same shape"
            )
        if self.tokens.min() < 0 or self.tokens.max() >= vocab_size:
            raise ValueError(f"{self.directory} was written with another vocabulary than that of the run")


def write_teacher_texts(
    directory: Path, tokens: Sequence[Tensor], registers: Sequence[Tensor], about: Mapping[str, Any]
) -> None:
    """Write a folder of teacher texts, complete or not at all."""
    with whole_directory(directory) as unfinished:
        np.save(unfinished / TOKENS_FILE, torch.cat(list(tokens)).to(torch.int32).cpu().numpy())
        np.save(unfinished / REGISTERS_FILE, torch.cat(list(registers)).half().cpu().numpy())
        (unfinished / TEACHER_FILE).write_text(json.dumps(about, indent=2) + "\n")


# ---------------------------------------------------------------- batches


class TaughtBatch(NamedTuple):
    tokens: TokenIds
    registers: RegisterBank  # padded to the number of the demasker, so that all batches have one shape
    prefix_length: PrefixLength  # how many of them are registers


@dataclass(frozen=True)
class TeacherData:
    """Teacher texts in a fixed random order. They are a share `rate` of the batches of their length."""

    folders: Sequence[TeacherTexts]
    num_registers: int  # of the demasker
    rate: float
    seed: int = 0
    device: str = "cpu"

    @cached_property
    def _by_length(self) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Tokens, padded registers and numbers of registers, by length."""
        views = {}
        for length in sorted({folder.length for folder in self.folders}):
            folders = [folder for folder in self.folders if folder.length == length]
            counts = [np.full(len(folder.tokens), folder.registers.shape[1]) for folder in folders]
            banks = [_padded(folder.registers, self.num_registers) for folder in folders]
            tokens = np.concatenate([folder.tokens for folder in folders])
            views[length] = tokens, np.concatenate(banks), np.concatenate(counts)
        return views

    def share(self, length: int) -> float:
        """Return the share of teacher texts in a batch of this length."""
        return self.rate if length in self._by_length else 0.0

    def count(self, length: int, batch_size: int) -> int:
        """Return the number of teacher texts in a batch; at least one text is of the corpus."""
        return min(round(self.share(length) * batch_size), batch_size - 1)

    def batch(self, length: int, step: int, indices: range, *, batch_size: int) -> TaughtBatch:
        tokens, registers, counts = self._by_length[length]
        first = step * batch_size
        order = Order(len(tokens), f"teacher {self.seed} {length}")
        chosen = order.at(np.arange(first + indices.start, first + indices.stop))
        return TaughtBatch(
            to_device(tokens[chosen].astype(np.int64), self.device),
            to_device(registers[chosen], self.device).float(),
            to_device(counts[chosen], self.device),
        )


def _padded(registers: np.ndarray, count: int) -> np.ndarray:
    return np.pad(registers, ((0, 0), (0, count - registers.shape[1]), (0, 0)))
