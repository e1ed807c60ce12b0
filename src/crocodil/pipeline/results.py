"""Result types of the pipeline: registers, texts with their costs, and snapshots during decoding."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias, overload

import torch

from crocodil.pipeline.batches import Watch
from crocodil.processes.gaussian import OnStep
from crocodil.sampling.cost import Cost
from crocodil.sampling.decode import AfterCall
from crocodil.shapes import LogProbs, RegisterBank, TokenIds
from crocodil.text.tokenizer import Tokenizer

SEPARATOR = "-" * 40  # between texts that are printed
HIDDEN = "░"  # stands for a masked token


@dataclass(frozen=True)
class Registers:
    """The registers of texts, K for each, and the length of the canvas they describe.

    `registers[:, :k]` is a coarser description of all texts, `registers[a:b]` selects texts.
    """

    bank: RegisterBank
    length: int

    def __getitem__(self, index: Any) -> "Registers":
        return Registers(self.bank[index], self.length)

    def __len__(self) -> int:
        return len(self.bank)

    @property
    def shape(self) -> torch.Size:
        return self.bank.shape


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Texts and their cost. It prints as its texts, and is a sequence of them: `for text in made`, `made[0]`."""

    texts: list[str]
    tokens: TokenIds
    registers: RegisterBank | None  # those in use at the end; None without guidance
    cost: Cost  # the calls that were made for all batches
    costs: list[Cost]  # of each sample: its calls if decoded alone
    nfe: float  # per sample, in the paper's unit
    flop_nfe: float  # per sample, in calls of the base over the text alone
    seconds: float
    note: str = ""  # something to tell the user, such as that the model has no base

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.texts[index]

    def __str__(self) -> str:
        return f"\n{SEPARATOR}\n".join(self.texts)


@dataclass(frozen=True)
class Snapshot:
    """A batch after one demasker call, as a callback sees it."""

    tokens: TokenIds
    call: int  # from 0
    num_calls: int
    cost: Cost  # so far
    tokenizer: Tokenizer
    log_prob: LogProbs  # of the tokens that the call proposed where some were hidden; 0 elsewhere

    @property
    def texts(self) -> list[str]:
        """The texts so far, with a block for each masked token."""
        return [partial_text(ids, self.tokenizer) for ids in self.tokens.tolist()]


OnSnapshot: TypeAlias = Callable[[Snapshot], None]


def snapshots(
    on_call: OnSnapshot | None,
    num_calls: int,
    tokenizer: Tokenizer,
    *,
    first: int = 0,
    on_step: OnStep | None = None,
) -> Watch | None:
    """Return callbacks that pass a snapshot of each call to the caller, without positions before `first`."""
    if on_call is None and on_step is None:
        return None

    def take_snapshot(after: AfterCall) -> None:
        if on_call is not None:
            tokens, log_prob = after.tokens[:, first:], after.log_prob[:, first:]
            on_call(Snapshot(tokens, after.call, num_calls, after.cost, tokenizer, log_prob))

    return Watch(take_snapshot, on_step or (lambda *_: None))


def partial_text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    special = tokenizer.special
    text = [token for token in ids if token not in (special.bos, special.eos)]
    pieces = ((is_hidden, list(run)) for is_hidden, run in groupby(text, lambda token: token == special.mask))
    return "".join(HIDDEN * len(run) if is_hidden else tokenizer.decode(run) for is_hidden, run in pieces)
