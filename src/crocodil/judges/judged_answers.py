"""Judge answers to prompts beside the real answers: every number of a row about prompts comes from here.

An answer is only asked to parse in place, to keep the column and the indentation, or to pass checks, if the real
answer does so too. Every such share stands beside the number of pairs that count (decision D58).
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Protocol, TypeAlias, runtime_checkable

from crocodil.corpus.pairs import Pair
from crocodil.judges.evaluator import NUM_PARTS, bits_per_byte
from crocodil.judges.language_model import TextScore
from crocodil.metrics.answer_quality import (
    edit_similarity,
    exact_match,
    has_checks,
    is_indented_well,
    parses_in_place,
    program_of,
    starts_at_column,
)
from crocodil.runtime.sandbox import can_run_checks, run_checks

Row: TypeAlias = dict[str, Any]


@runtime_checkable
class AnswerJudge(Protocol):
    """A language model that scores texts given what stands before them."""

    @property
    def name(self) -> str: ...
    @property
    def families(self) -> tuple[str, ...]: ...
    def scores_given(
        self, prompts: Sequence[str], texts: Sequence[str], *, batch_size: int = 8
    ) -> Sequence[TextScore]: ...


@dataclass(frozen=True)
class JudgedPairs:
    """Pairs, and which checks each of them allows."""

    pairs: Sequence[Pair]
    runs_checks: bool = True  # run doctests and asserts, where this system can do so safely

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError("there are no pairs to judge answers with")

    @cached_property
    def real(self) -> list[str]:
        return [pair.answer for pair in self.pairs]

    @cached_property
    def parsing(self) -> list[bool]:
        """Whether the real answer parses in place."""
        return self._parse(self.real)

    @cached_property
    def placed(self) -> list[bool]:
        """Whether the real answer starts a line and is indented as Python asks."""
        return [pair.prompt.endswith("\n") and is_indented_well(pair.prompt, pair.answer) for pair in self.pairs]

    @cached_property
    def running(self) -> list[bool]:
        """Whether there are checks, which the real answer passes."""
        if not (self.runs_checks and can_run_checks()):
            return [False] * len(self.pairs)
        return self.passing(self.real, [has_checks(pair.prompt, pair.suffix) for pair in self.pairs])

    def passing(self, answers: Sequence[str], wanted: Sequence[bool]) -> list[bool]:
        """Return which of the answers pass the checks of their pairs; those not wanted are not run."""

        def passes(pair: Pair, answer: str, is_wanted: bool) -> bool:
            return is_wanted and run_checks(program_of(pair.prompt, answer, pair.suffix)) == "passed"

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(passes, self.pairs, answers, wanted))

    def judge(self, answers: Sequence[str], judge: AnswerJudge | None = None, *, batch_size: int = 8) -> Row:
        """Return all numbers about answers, one for each pair. Without a judge, bits per byte are None."""
        pairs = list(zip(self.pairs, answers, strict=True))
        columns = [starts_at_column(pair.prompt, answer, pair.answer) for pair, answer in pairs]
        indented = [is_indented_well(pair.prompt, answer) for pair, answer in pairs]
        both = [column and well for column, well in zip(columns, indented, strict=True)]
        return {
            **_mean("exact_match", [exact_match(answer, pair.answer) for pair, answer in pairs]),
            **_mean("edit_similarity", [edit_similarity(answer, pair.answer) for pair, answer in pairs]),
            **_share("parse", self._parse(answers), self.parsing),
            **_share("column", columns, self.placed),
            **_share("indentation", both, self.placed),
            **_share("pass", self.passing(answers, self.running), self.running),
            **self._bits(answers, judge, batch_size),
            "empty_share": fmean(not answer.strip() for answer in answers),
            "num_samples": len(answers),
        }

    def _parse(self, answers: Sequence[str]) -> list[bool]:
        return [
            parses_in_place(pair.prompt, answer, pair.suffix)
            for pair, answer in zip(self.pairs, answers, strict=True)
        ]

    def _bits(self, answers: Sequence[str], judge: AnswerJudge | None, batch_size: int) -> Row:
        """Return the judge's bits per byte of all answers given their prompts, and its standard error."""
        scores: list[TextScore] = []
        if judge is not None:
            prompts = [pair.prompt for pair in self.pairs]
            scores = [
                score for score in judge.scores_given(prompts, answers, batch_size=batch_size) if score.num_tokens
            ]
        if not scores:
            return {"bits_per_byte": None, "bits_per_byte_spread": None}
        parts = [bits_per_byte(part) for start in range(NUM_PARTS) if (part := scores[start::NUM_PARTS])]
        return {"bits_per_byte": bits_per_byte(scores), "bits_per_byte_spread": _standard_error(parts)}


def _share(name: str, values: Sequence[bool], counted: Sequence[bool]) -> Row:
    """Return a share of the pairs that count, and their number; None if there are none."""
    kept = [value for value, counts in zip(values, counted, strict=True) if counts]
    return {**_mean(f"{name}_share", kept), f"num_{name}": len(kept)}


def _mean(name: str, values: Sequence[float]) -> Row:
    """Return a mean over prompts and its standard error."""
    spread = _standard_error(values)
    return {name: fmean(values) if values else None, f"{name}_spread": spread}


def _standard_error(values: Sequence[float]) -> float | None:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
