"""Answers to prompts of held-out packages: App. H measured (decision D58).

Every kind of pair is answered by ConWithinDisc and ConThenDisc, by the base's infilling at the cost of the former,
by a causal language model as an upper anchor, and by answers that copy nothing: the empty one and the most common
one. The real answers show what is best.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from crocodil.corpus.pairs import Pair, Pairs
from crocodil.judges import LanguageModel
from crocodil.judges.continuing import can_infill, continued
from crocodil.judges.judged_answers import AnswerJudge, JudgedPairs
from crocodil.metrics.answer_quality import ended
from crocodil.pipeline import Crocodil, Method
from crocodil.pipeline.completing import Answers, complete_all
from crocodil.pipeline.pricing import Pricing
from crocodil.pipeline.ranking import BOUND_DRAWS
from crocodil.reproduce.context import FOR_PROMPTS, GENERATION_PARTS, Context, fingerprint, parts_of_base
from crocodil.reproduce.document import Block, Listing, Section, Table, Text, number, percent, with_spread
from crocodil.reproduce.experiments.quality import display_name
from crocodil.reproduce.store import Job, Row, distinct, select
from crocodil.reproduce.sweep import whole_decoding
from crocodil.runtime.config import Count, Length, config
from crocodil.sampling.cost import NO_COST, Cost, num_parameters
from crocodil.text.positions import Place, indentation_after
from crocodil.text.tokenizer import Tokenizer

NAME = "completions"  # of the experiment and its file of rows
SPLIT = "test"
REAL, EMPTY, COMMON, CAUSAL = "real", "empty", "most common", "causal"
NUM_SHOWN = 4  # answers that a row holds, the first ones
MOST_READ = 100_000  # training pairs that the most common answer is found in


@config
class Prompting:
    """How much is measured."""

    num_prompts: Count = 1000  # of each kind
    calls: tuple[Length, ...] = (16, 64)  # of guided methods
    num_answers: Count = 4  # to each prompt; the one that the model ranks first is measured


AMOUNTS: Mapping[str, Prompting] = {  # by the name of the protocol; others have the default
    "quick": Prompting(num_prompts=200, calls=(16,)),
    "tiny": Prompting(num_prompts=2, calls=(2,), num_answers=2),
}


class Answered(NamedTuple):
    """One answer to each prompt, and the mean cost per prompt in the three units."""

    texts: list[str]
    nfe: float = 0.0
    flop_nfe: float = 0.0
    seconds: float = 0.0
    ranking_flop_nfe: float = 0.0  # the part of `flop_nfe` that ranking took
    note: str = ""


def compute(context: Context) -> list[Row]:
    """Compute the rows of all kinds of pairs; none without pairs."""
    if context.pairs is None:
        return []
    amounts = AMOUNTS.get(context.protocol.name, Prompting())
    rows = []
    for kind, pairs in sorted(pairs_by_kind(context.pairs, context.pipe.tokenizer, amounts.num_prompts).items()):
        rows += _Kind(context, context.pairs, kind, JudgedPairs(pairs), amounts).rows()
    return rows


def pairs_by_kind(pairs: Pairs, tokenizer: Tokenizer, count: int) -> dict[str, list[Pair]]:
    """Return the first `count` test pairs of each kind, without those whose text the tokenizer would change."""
    by_kind: dict[str, list[Pair]] = {}
    for pair in pairs.split(SPLIT):
        texts = (pair.prompt, pair.suffix)
        if len(by_kind.get(pair.kind, ())) < count and all(
            tokenizer.decode(tokenizer.encode(text)) == text for text in texts
        ):
            by_kind.setdefault(pair.kind, []).append(pair)
    if not by_kind:
        raise ValueError(f"{pairs.directory} has no pairs of split {SPLIT}: nothing can be measured")
    return by_kind


@dataclass(frozen=True)
class _Kind:
    """The rows of one kind of pair."""

    context: Context
    source: Pairs
    kind: str
    judged: JudgedPairs
    amounts: Prompting

    def rows(self) -> list[Row]:
        store, causal = self.context.store, self.context.causal
        plain: dict[str, Callable[[], Answered]] = {
            REAL: lambda: Answered(self.judged.real),
            EMPTY: lambda: Answered([""] * len(self.pairs)),
            COMMON: lambda: Answered(most_common(self.source, self.kind, self.pairs)),
        }
        jobs = [
            Job(self._key(method), partial(self._row, answer, self._judge), uses=())
            for method, answer in plain.items()
        ]
        if causal is not None:
            key = {**self._key(CAUSAL), "causal": causal.name}
            is_related = self._judge is not None and set(causal.families) & set(self._judge.families)
            judge = None if is_related else self._judge  # no model judges its own texts
            # Its cost is in calls of a network of the demasker's size.
            jobs.append(Job(key, partial(self._row, partial(self._by_causal, causal), judge), uses=("demasker",)))
        rows = store.compute(NAME, [*jobs, *self._guided_jobs()])
        equal = [self._base_job(row) for row in rows if row["method"] == Method.CON_WITHIN_DISC]
        return [*rows, *store.compute(NAME, equal)]

    @property
    def _judge(self) -> AnswerJudge | None:
        judge = self.context.evaluator.judge
        return judge if isinstance(judge, AnswerJudge) else None

    @property
    def pairs(self) -> Sequence[Pair]:
        return self.judged.pairs

    def _key(self, method: str) -> Row:
        return {
            "kind": self.kind,
            "method": str(method),
            "split": SPLIT,
            "pairs": self.source.description["sha256"][f"{SPLIT}.jsonl"][:12],
            "num_prompts": self.amounts.num_prompts,
        }

    def _guided_jobs(self) -> Iterator[Job]:
        pipe, counts = self.context.pipe, {"num_answers": self.amounts.num_answers}
        networks = {name: fingerprint(getattr(pipe, name)) for name in FOR_PROMPTS}
        for method in (Method.CON_WITHIN_DISC, Method.CON_THEN_DISC):
            how = self._decoding(method)
            for calls in sorted({min(calls, self.context.length) for calls in self.amounts.calls}):
                key = {**self._key(method), "calls": calls, **counts, **networks}
                compute = partial(self._row, partial(self._by_model, method, calls), self._judge, how)
                yield Job(key, compute, work=calls, uses=GENERATION_PARTS, chosen=how)

    def _base_job(self, guided: Row) -> Job:
        """Return the job of infilling with the base, with so many calls that it costs as much as a guided row."""
        calls = equal_calls(self.context.pipe, guided, self.amounts.num_answers, self.context.length)
        key = {
            **self._key(Method.BASE),
            "calls": calls,
            "num_answers": self.amounts.num_answers,
            "at_cost_of": f"{guided['method']} with {guided['calls']} calls",
        }
        how = self._decoding(Method.BASE)
        compute = partial(self._row, partial(self._by_model, Method.BASE, calls), self._judge, how)
        return Job(key, compute, work=calls, uses=parts_of_base(self.context.pipe), chosen=how)

    def _decoding(self, method: Method) -> Row:
        return whole_decoding(self.context.pipe.settings.decoding_for(method))

    # ------------------------------------------------------------ answers

    def _by_model(self, method: Method, calls: int) -> Answered:
        places = [place_of(pair) for pair in self.pairs]
        count = self.amounts.num_answers
        made = complete_all(
            self.context.pipe, places, count=count, bound_draws=BOUND_DRAWS if count > 1 else 0, method=method,
            calls=calls, length=self.context.length, seed=self.context.seed, show_progress=False,
        )  # fmt: skip
        texts = [
            place.prefix.removeprefix(pair.prompt) + answers[0].text
            for pair, place, answers in zip(self.pairs, places, made, strict=True)
        ]
        prices = [price(self.context.pipe, method, answers, self.context.length) for answers in made]
        has_no_base = method == Method.BASE and self.context.pipe.base is None
        return Answered(
            [ended(pair.prompt, text, self.kind) for pair, text in zip(self.pairs, texts, strict=True)],
            nfe=fmean(per_prompt.nfe for per_prompt in prices),
            flop_nfe=fmean(per_prompt.flop_nfe for per_prompt in prices),
            seconds=fmean(answers.seconds + answers.ranking.seconds for answers in made),
            ranking_flop_nfe=fmean(per_prompt.ranking_flop_nfe for per_prompt in prices),
            note="no base of its own: the demasker without registers" if has_no_base else "",
        )

    def _by_causal(self, causal: LanguageModel) -> Answered:
        pipe = self.context.pipe
        started_at = time.perf_counter()
        answers = continued(
            causal,
            [(pair.prompt, pair.suffix) for pair in self.pairs],
            max_tokens=self.context.length,
            batch_size=self.context.evaluator.batch_size,
        )
        seconds = time.perf_counter() - started_at
        size, base = num_parameters(causal.network), num_parameters(pipe.demasker.backbone)
        positions = sum(answer.num_positions for answer in answers)
        return Answered(
            [ended(pair.prompt, answer.text, self.kind) for pair, answer in zip(self.pairs, answers, strict=True)],
            nfe=sum(answer.num_calls for answer in answers) / len(answers) * size / num_parameters(pipe.demasker),
            flop_nfe=positions / len(answers) * size / (base * self.context.length),
            seconds=seconds / len(answers),
            note="sees the suffix" if can_infill(causal) else "does not see the suffix",
        )

    # ------------------------------------------------------------ numbers

    def _row(self, answer: Callable[[], Answered], judge: AnswerJudge | None, how: Row | None = None) -> Row:
        texts, *costs = answer()
        names = Answered._fields[1:]
        return {
            **(how or {}),
            **self.judged.judge(texts, judge, batch_size=self.context.evaluator.batch_size),
            **dict(zip(names, costs, strict=True)),
            "answers": list(islice(self._shown(texts), NUM_SHOWN)),
        }

    def _shown(self, texts: Sequence[str]) -> Iterator[Row]:
        for pair, text in zip(self.pairs, texts, strict=True):
            where = {"package": pair.package, "path": pair.path, "licence": pair.licence}
            yield {**where, "prompt": pair.prompt, "answer": text, "suffix": pair.suffix, "real": pair.answer}


def place_of(pair: Pair) -> Place:
    """Return where the answer stands, as an editor knows it: on a new line, at the column that Python expects."""
    if not pair.prompt.endswith("\n"):
        return Place(pair.prompt, pair.suffix, at_column=False)
    return Place(pair.prompt + indentation_after(pair.prompt), pair.suffix, at_column=True)


def most_common(source: Pairs, kind: str, pairs: Sequence[Pair]) -> list[str]:
    """Return the most common training answer of a kind, at the column that Python expects behind each prompt."""
    counts: Counter[str] = Counter()
    for pair in islice(source.split("train"), MOST_READ):
        if pair.kind == kind:
            counts[_at_column_zero(pair.answer)] += 1
    answer = min(counts, key=lambda text: (-counts[text], text)) if counts else ""
    return [_indented(answer, place_of(pair).prefix.removeprefix(pair.prompt)) for pair in pairs]


def _at_column_zero(answer: str) -> str:
    indentation = answer[: len(answer) - len(answer.lstrip(" \t"))]
    return "\n".join(row.removeprefix(indentation) for row in answer.split("\n"))


def _indented(answer: str, indentation: str) -> str:
    return "\n".join(f"{indentation}{row}" if row.strip() else row for row in answer.split("\n"))


# ---------------------------------------------------------------- cost


class Price(NamedTuple):
    """What all answers to a prompt cost, ranking included."""

    nfe: float
    flop_nfe: float
    ranking_flop_nfe: float


def price(pipe: Crocodil, method: Method, answers: Answers, length: int) -> Price:
    """Return the price of all answers to a prompt; ranking runs over a shorter canvas than generation."""
    ranking, model = answers.ranking, None if method == Method.BASE else pipe.answering
    generating = sum((answer.cost + Cost(demasker_calls=-ranking.calls) for answer in answers), NO_COST)
    ranking_calls = ranking.calls * len(answers)
    ranking_flop_nfe = ranking_calls * ranking.length / length
    guiding = pipe.settings.drawing.num_registers  # None: all that are drawn
    if model is None:
        prior = pipe.first_prior
        registers = None if method == Method.BASE or prior is None else guiding or prior.config.num_registers
        nfe, flop_nfe = pipe.nfe(generating), pipe.flop_nfe(generating, length=length, num_registers=registers)
    else:
        pricing = Pricing(model.demasker, model.encoder, (model.denoiser,))
        registers = guiding or model.denoiser.config.num_registers
        nfe = pricing.nfe(generating)
        flop_nfe = pricing.flop_nfe(generating, length=length, num_registers=registers)
    return Price(nfe + ranking_calls, flop_nfe + ranking_flop_nfe, ranking_flop_nfe)


def equal_calls(pipe: Crocodil, guided: Row, num_answers: int, length: int) -> int:
    """Return the calls per answer with which infilling by the base costs as much as a guided row, by FLOPs.

    Both rank equally many answers, and both fill the first token of an answer in a separate call. An answer with
    fewer tokens than calls takes fewer calls.
    """
    unit = pipe.flop_nfe(Cost(demasker_calls=1), length=length, num_registers=None)
    per_answer = (guided["flop_nfe"] - guided["ranking_flop_nfe"]) / num_answers
    return max(1, min(length, round(per_answer / unit) - 1))


# ---------------------------------------------------------------- report

TITLE = "Answers to prompts"
KINDS = {
    "body": "signature and docstring -> body",
    "middle": "prefix and suffix -> middle",
    "block": "comment -> block",
    "own": "pairs of a file",
}
METHODS = {
    REAL: "real answers",
    EMPTY: "empty answer",
    COMMON: "most common answer",
    CAUSAL: "causal model",
    "base": "base, infilling",
}
HEADS = [
    "", "calls", "exact match", "edit similarity", "parses in place", "column", "column and indentation",
    "bits per byte", "checks pass", "empty", "NFE", "NFE by FLOPs", "seconds", "prompts",
]  # fmt: skip


def show(rows: Sequence[Row]) -> Section:
    """Show the rows of the pairs and networks that were measured last."""
    last = next((row for row in reversed(rows) if FOR_PROMPTS[0] in row), rows[-1])
    names = ("pairs", *(name for name in FOR_PROMPTS if name in last))
    rows = [row for row in rows if all(row.get(name, last[name]) == last[name] for name in names)]
    blocks: list[Block] = [
        Text(
            """Prompts of held-out packages, and what stood there. Of several answers, the one that the model ranks
            first is measured. Shares that parse, that have the column and indentation of the place, and whose
            checks (doctests, asserts) pass are of the pairs whose real answer does; a share of few pairs says
            little. An answer is cut where one of its kind ends. Bits per byte are the judge's, of the answer given
            the prompt; a judge does not judge its own texts. Costs are per prompt, with all answers and their
            ranking."""
        )
    ]
    for length in distinct(rows, "length"):
        for kind in distinct(rows, "kind"):
            some = select(rows, length=length, kind=kind)
            caption = f"{KINDS.get(kind, kind)}, length {length}"
            blocks.append(Table(HEADS, [_line(row) for row in some], caption))
    return Section(TITLE, [*blocks, *_examples(rows)])


def _line(row: Row) -> list[str]:
    name = METHODS.get(row["method"]) or display_name(row["method"])
    name = f"{name} {row['causal']}, {row['note']}" if row["method"] == CAUSAL else name
    name = f"{name}, at the cost of {row['at_cost_of']}" if "at_cost_of" in row else name
    shares = [with_spread(row[name], row[f"{name}_spread"]) for name in ("exact_match", "edit_similarity")]
    placed = [_share(row, name) for name in ("parse", "column", "indentation")]
    return [
        name, number(row.get("calls")), *shares, *placed,
        with_spread(row["bits_per_byte"], row["bits_per_byte_spread"]), _share(row, "pass"),
        percent(row["empty_share"]), number(row["nfe"]), number(row["flop_nfe"]), number(row["seconds"]),
        str(row["num_samples"]),
    ]  # fmt: skip


def _share(row: Row, name: str) -> str:
    share = row[f"{name}_share"]
    return number(None) if share is None else f"{share:.1%} of {row[f'num_{name}']}"


def _examples(rows: Sequence[Row]) -> Iterator[Listing]:
    """Yield the first answers of ConWithinDisc for each kind, not selected, at the largest number of calls."""
    for kind in distinct(rows, "kind"):
        some = select(rows, kind=kind, method=str(Method.CON_WITHIN_DISC))
        if some:
            row = max(some, key=lambda row: row["calls"])
            for shown in row["answers"]:
                text = f"{shown['prompt']}# >>> the answer\n{shown['answer']}\n# <<<{shown['suffix']}"
                title = f"{KINDS.get(kind, kind)}: {shown['path']}, {row['calls']} calls"
                yield Listing(title, text)
