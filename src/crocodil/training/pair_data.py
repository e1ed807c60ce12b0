"""The pairs of stage prompted: which of them fit, and their canvases at any step (decision D57)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from crocodil.corpus.order import Order
from crocodil.corpus.pair_tokens import PairTokens, Room, fitting_pairs, tokens_of
from crocodil.corpus.pairs import Pairs
from crocodil.objectives import PromptedBatch, PromptedObjective
from crocodil.processes.masking import Masked
from crocodil.runtime.distributed import Ranks
from crocodil.runtime.workers import process_count
from crocodil.seeding import Streams
from crocodil.text.prompts import TokenizedPair
from crocodil.text.tokenizer import SpecialIds, Tokenizer
from crocodil.training.data import NUM_VALID, to_device


@dataclass(frozen=True)
class PairSource:
    """A folder of pairs, the tokenizer to read them with, and the canvases that they should fit."""

    folder: Path
    tokenizer_file: Path
    objective: PromptedObjective
    text_length: int

    @property
    def room(self) -> Room:
        """All canvases have BOS and EOS; that of the text has at least one token of the prompt."""
        longest_answer = min(self.objective.answer_length - 2, self.text_length - 3)
        return Room(longest_answer, max(self.objective.prompt_length, self.text_length))

    def check(self) -> None:
        """Refuse a split of which no pair fits. The first pair that fits ends the search."""
        tokenizer = Tokenizer.load(self.tokenizer_file)
        for split in ("train", "valid"):
            pairs = Pairs(self.folder).split(split)
            if next(fitting_pairs(pairs, tokenizer, self.room), None) is None:
                raise ValueError(
                    f"the {split} split has no pair whose answer has at most {self.room.answer} tokens: cut "
                    "more pairs, or raise prompted_objective.answer_length"
                )

    def tokens(self, split: str, ranks: Ranks) -> PairTokens:
        """Tokenize the pairs of a split that fit. Every rank does this, so they share the cores."""
        num_processes = max(1, process_count(None) // ranks.count)
        pairs = Pairs(self.folder).split(split)
        return tokens_of(pairs, self.tokenizer_file, self.room, num_processes=num_processes, shown=ranks.is_main)


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Training and validation pairs, in an order that follows from the seed."""

    train: PairTokens
    valid: PairTokens
    special: SpecialIds
    objective: PromptedObjective
    text_length: int
    batch_size: int
    seed: int = 0
    device: str = "cpu"

    @cached_property
    def _order(self) -> Order:
        return Order(len(self.train), f"prompted {self.seed}")

    def batch(self, step: int, indices: range) -> PromptedBatch:
        first = step * self.batch_size
        numbers = self._order.at(np.arange(first + indices.start, first + indices.stop))
        return self._canvases([self.train[number] for number in numbers.tolist()])

    def streams(self, step: int, indices: range) -> Streams:
        return Streams.of("train", self.seed, step, samples=indices, device=self.device)

    def validation_batch(self) -> PromptedBatch:
        """Return validation pairs; they are the same every time."""
        numbers = Order(len(self.valid), "valid").at(np.arange(min(NUM_VALID, len(self.valid))))
        return self._canvases([self.valid[number] for number in numbers.tolist()])

    def _canvases(self, pairs: Sequence[TokenizedPair]) -> PromptedBatch:
        special, objective = self.special, self.objective
        prompts = np.array([pair.prompt_canvas(special, objective.prompt_length) for pair in pairs])
        answers = np.array([pair.answer_canvas(special, objective.answer_length) for pair in pairs])
        placed = [pair.text_canvas(special, self.text_length) for pair in pairs]
        position = np.arange(self.text_length)
        is_answer = np.array([(position >= where.start) & (position < where.stop) for _, where in placed])
        return PromptedBatch(
            Masked(to_device(prompts, self.device), to_device(prompts == special.mask, self.device)),
            to_device(answers, self.device),
            to_device(np.array([ids for ids, _ in placed]), self.device),
            to_device(is_answer, self.device),
        )
