"""Answers to a prompt: several are generated, in several lengths, and ranked by the model's own likelihood bound.

Without a suffix the model ends a text itself. Before a suffix it cannot: every answer has its number of tokens,
and the suffix and EOS follow, so that the canvas need not be full (decision D56).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.metrics.likelihood import negative_elbo
from crocodil.pipeline.answering import PromptedModel, Strengths, fitted_pair, generate_answers
from crocodil.pipeline.canvases import Given, head_that_fits, layout, tail_that_fits
from crocodil.pipeline.results import SEPARATOR
from crocodil.pipeline.settings import Method
from crocodil.sampling.cost import Cost
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RowLogits, TokenIds
from crocodil.text.positions import indentation_after
from crocodil.text.prompts import Split, tokenize_pairs

if TYPE_CHECKING:
    from crocodil.pipeline.crocodil import Crocodil

BOUND_DRAWS = 8  # demasker calls that rank one answer
SHORTEST = 4  # tokens of the shortest answer before a suffix
PREFIX_SHARE, ANSWER_SHARE = 0.5, 0.25  # of the canvas; the rest is for the suffix


@dataclass(frozen=True)
class Answer:
    """A text that was generated between prompt and suffix."""

    text: str
    nats: float  # upper bound on -log p(answer, suffix | prompt) of the model without registers
    cost: Cost  # of generating and ranking it


class Ranking(NamedTuple):
    """What ranking all answers took: calls for each answer, over canvases of `length` tokens."""

    calls: int = 0
    length: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Answers:
    """Answers to one prompt, the most likely first. Printed, it is their texts."""

    answers: list[Answer]
    prompt: str  # the part that the model saw
    suffix: str
    seconds: float  # to generate them
    ranking: Ranking = Ranking()

    def __iter__(self) -> Any:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, number: int) -> Answer:
        return self.answers[number]

    def __str__(self) -> str:
        return f"\n{SEPARATOR}\n".join(answer.text for answer in self.answers)


def complete(
    pipe: "Crocodil",
    prompt: str,
    suffix: str = "",
    *,
    count: int = 4,
    tokens: int | None = None,
    at_column: bool = False,
    length: int | None = None,
    seed: int = 0,
    bound_draws: int = BOUND_DRAWS,
    condition_scale: float = 1.0,
    prompt_scale: float = 1.0,
    **options: Any,
) -> Answers:
    """Generate `count` answers that stand between prompt and suffix, and rank them.

    Args:
        pipe: the model.
        prompt: the text before the answer. Of a long one, the model sees the end.
        suffix: the text after the answer. Of a long one, the model sees the beginning.
        count: the number of answers.
        tokens: the length of an answer. If not given, answers before a suffix have different lengths, evenly
            spaced on a logarithmic scale, and others end where the model ends them.
        at_column: the prompt ends with the indentation of a line, at which the answer starts.
        length: of the canvas; by default the shortest that fits the texts, or the longest.
        seed: of all random draws.
        bound_draws: demasker calls for the likelihood bound of one answer; 0 for a single answer, without a bound.
        condition_scale: guidance of registers by the answer so far, for a model with prompts (decision D57).
        prompt_scale: guidance of registers by the prompt.
        options: those of `Crocodil.generate`.
    """
    if count < 1 or bound_draws < (count > 1):
        raise ValueError("at least one answer is generated, and several are ranked with at least one call")
    if not (prompt or suffix):
        raise ValueError("the prompt is empty: use generate")
    length = pipe.settings.canvas(length) if length is not None else pipe.canvas_length([prompt + suffix])
    strengths, is_base = Strengths(condition_scale, prompt_scale), options.get("method") == Method.BASE
    if pipe.answering is not None and not is_base:
        given = Given(prefix=prompt, suffix=suffix, at_column=at_column)
        return _prompted(pipe, pipe.answering, given, strengths, count, tokens, length, seed, bound_draws, options)
    if strengths != Strengths():
        raise ValueError(
            "condition_scale and prompt_scale need a model with stage prompted, and a method with registers"
        )
    given = _fitted(pipe, Given(prefix=prompt, suffix=suffix, at_column=at_column), length, tokens)
    lengths = answer_lengths(pipe, given, length, count, tokens)
    givens = [replace(given, tokens=number) for number in lengths]
    made = pipe.generate(count, given=givens, length=length, seed=seed, **options)
    texts = [_between(pipe, ids, one, length) for ids, one in zip(made.tokens.tolist(), givens, strict=True)]
    parts = [layout(one, pipe.tokenizer, length=length) for one in givens]
    scored = [
        Scored(len(part.before), part.end - len(part.after), part.end, given.ends)
        if one.tokens is not None
        else Scored.until_eos(len(part.before), ids, pipe.tokenizer.special.eos)
        for part, one, ids in zip(parts, givens, made.tokens.tolist(), strict=True)
    ]
    answers, ranking = _ranked(pipe, made.tokens, scored, texts, made.costs, seed=seed, num_draws=bound_draws)
    return Answers(answers, given.prefix, given.suffix, made.seconds, ranking)


def _prompted(
    pipe: "Crocodil",
    model: PromptedModel,
    given: Given,
    strengths: Strengths,
    count: int,
    tokens: int | None,
    length: int,
    seed: int,
    bound_draws: int,
    options: dict[str, Any],
) -> Answers:
    """Answer with the networks of stage prompted: they know how long an answer is."""
    if tokens is not None and tokens > model.longest:
        raise ValueError(f"this model answers with at most {model.longest} tokens, not {tokens}")
    longest = min(model.longest if tokens is None else tokens, length - 3)
    moved = "" if given.at_column or not given.prefix.endswith("\n") else indentation_after(given.prefix)
    (whole,) = tokenize_pairs([Split(given.prefix + moved, "", given.suffix)], pipe.tokenizer)
    pair = fitted_pair(whole, length=length, longest=longest)
    prompt = model.encode_prompt(whole)
    lengths = model.lengths(prompt, count) if tokens is None else [tokens] * count
    lengths = [min(number, longest) for number in lengths]
    made, seconds = generate_answers(
        pipe, model, pair, prompt, lengths, length=length, seed=seed,
        at_column=given.at_column or given.prefix.endswith("\n"),
        strengths=strengths, **options,
    )  # fmt: skip
    tokenizer = pipe.tokenizer
    texts = [
        tokenizer.decode([tokenizer.special.bos, *one.tokens[one.where.start : one.where.stop]]) for one in made
    ]
    texts = [moved + text for text in texts]
    prefix, suffix = (tokenizer.decode([tokenizer.special.bos, *ids]) for ids in (pair.prefix, pair.suffix))
    prefix = prefix.removesuffix(moved)
    ends = suffix == given.suffix
    scored = [
        Scored(one.where.start, one.where.stop, one.where.stop + len(pair.suffix), ends) for one in made
    ]
    canvases = torch.tensor([one.tokens for one in made], device=pipe.device)
    costs = [one.cost for one in made]
    answers, ranking = _ranked(pipe, canvases, scored, texts, costs, seed=seed, num_draws=bound_draws)
    return Answers(answers, prefix, suffix, seconds, ranking)


def _ranked(
    pipe: "Crocodil",
    canvases: TokenIds,
    scored: "Sequence[Scored]",
    texts: Sequence[str],
    costs: Sequence[Cost],
    *,
    seed: int,
    num_draws: int,
) -> tuple[list[Answer], Ranking]:
    """Return the answers in the order of their bounds, and what finding it took."""
    if not num_draws:
        return [Answer(text, math.nan, cost) for text, cost in zip(texts, costs, strict=True)], Ranking()
    started_at = time.perf_counter()
    nats = bound(pipe, canvases, scored, seed=seed, num_draws=num_draws).tolist()
    ranking = Ranking(num_draws, needed_length(scored, canvases.shape[1]), time.perf_counter() - started_at)
    rows = zip(texts, nats, costs, strict=True)
    answers = [Answer(text, bits, cost + Cost(demasker_calls=num_draws)) for text, bits, cost in rows]
    return sorted(answers, key=lambda answer: answer.nats), ranking


def _fitted(pipe: "Crocodil", given: Given, length: int, tokens: int | None) -> Given:
    """Cut the given text to what fits a canvas beside an answer; a suffix that is cut does not end the text."""
    tokenizer, borders = pipe.tokenizer, 4  # BOS, EOS, and two tokens since a cut may change how a text is split
    for_answer = max(round(ANSWER_SHARE * length), SHORTEST) if tokens is None else tokens
    room = length - for_answer - borders
    if room < 1:
        raise ValueError(f"an answer of {for_answer} tokens leaves no room for the prompt on a canvas of {length}")
    whole_suffix = min(len(tokenizer.encode(given.suffix)), length)
    for_prefix = max(room - whole_suffix, round(PREFIX_SHARE * room)) if given.suffix else room
    prefix = tail_that_fits(given.prefix, tokenizer, room=for_prefix)
    suffix = head_that_fits(given.suffix, tokenizer, room=room - len(tokenizer.encode(prefix)))
    return replace(given, prefix=prefix, suffix=suffix, ends=suffix == given.suffix)


def answer_lengths(
    pipe: "Crocodil", given: Given, length: int, count: int, tokens: int | None
) -> Sequence[int | None]:
    """Return the number of tokens of each answer; None if the model ends the text itself."""
    if tokens is not None:
        return [tokens] * count
    if not given.suffix and given.ends:
        return [None] * count
    longest = min(
        layout(given, pipe.tokenizer, length=length).num_free, max(round(ANSWER_SHARE * length), SHORTEST)
    )
    shortest = min(SHORTEST, longest)
    return [round(shortest * (longest / shortest) ** ((number + 0.5) / count)) for number in range(count)]


def _between(pipe: "Crocodil", ids: list[int], given: Given, length: int) -> str:
    """Return the text between prefix and suffix, which generation keeps byte for byte."""
    end = length if given.tokens is None else layout(given, pipe.tokenizer, length=length).end
    text = pipe.tokenizer.decode(ids[:end])
    if not (text.startswith(given.prefix) and text.endswith(given.suffix)):
        raise ValueError(
            "the model's tokenizer changes the given text, for example its accents: normalise it (NFC)"
        )
    return text[len(given.prefix) : len(text) - len(given.suffix)]


class Scored(NamedTuple):
    """Where answer and suffix stand on a canvas, whose likelihood is bounded."""

    start: int
    suffix: int  # where the suffix starts
    end: int  # where it ends
    ends: bool = True  # the text ends there, which counts too; False: more text follows, which does not

    @classmethod
    def until_eos(cls, start: int, ids: Sequence[int], eos: int) -> "Scored":
        """Return the place of an answer without a suffix, which ends at the first EOS."""
        end = next((place for place in range(start, len(ids)) if ids[place] == eos), len(ids))
        return cls(start, end, end)


def needed_length(scored: Sequence[Scored], length: int) -> int:
    """Return the length of a canvas that holds the longest text and, if texts end, one EOS."""
    return min(length, max(one.end + one.ends for one in scored))


@torch.no_grad()
def bound(
    pipe: "Crocodil", tokens: TokenIds, scored: Sequence[Scored], *, seed: int, num_draws: int
) -> Float[Tensor, "B"]:
    """Return an upper bound on -log p(answer, suffix | prompt) in nats, for generated canvases (decision D56).

    The network is the base, or the demasker with an empty prefix: given registers, answers would be compared under
    different ones. All answers are followed by the same suffix, so answers of different lengths can be compared.
    Where the text goes on after the suffix, the rest stays masked and does not count.

    It is cheap (decision D59): canvases are cut behind the longest text, all answers share the draws, also where
    tokens of the suffix have other positions, and all draws of all answers are one batch.
    """
    length = needed_length(scored, tokens.shape[1])
    start, suffix, end, ends = torch.tensor(scored, device=tokens.device).T[..., None]
    position = torch.arange(length, device=tokens.device)
    filling = torch.where(ends.bool(), pipe.tokenizer.special.eos, pipe.mask_id)
    is_text = position < end
    seen, given = torch.where(is_text, tokens[:, :length], filling), (position < start) | ~(is_text | ends.bool())
    in_answer = (position < suffix) * (position - start)
    after_it = (position >= suffix) * (length * (1 + ~is_text) + position - torch.where(is_text, suffix, end))

    def demask(noisy_tokens: TokenIds, hidden: Positions) -> RowLogits:
        if pipe.base is not None:
            return pipe.base(noisy_tokens, rows=hidden)
        empty = torch.zeros(len(noisy_tokens), 0, pipe.demasker.config.register_width, device=tokens.device)
        return pipe.demasker(noisy_tokens, empty, rows=hidden)

    return negative_elbo(
        demask,
        seen,
        mask_id=pipe.mask_id,
        streams=Streams.of("bound", seed, samples=[0] * len(tokens), device=tokens.device),
        given=given,
        num_draws=num_draws,
        places=(in_answer + after_it).clamp(min=0),  # those before the answer are given
        batch_size=pipe.affordable_batch(length),
    )
