"""Answer a prompt: generate several answers and rank them by the model's own likelihood bound.

Without a suffix, the model ends the answer with EOS. With a suffix it cannot, so answers of several fixed lengths
are generated. The suffix and EOS tokens follow each answer (decision D56).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from crocodil.pipeline.answering import (
    Answered,
    PromptedModel,
    Strengths,
    fitted_pair,
    generate_answers,
    prompted_model,
)
from crocodil.pipeline.canvases import Given, head_that_fits, layout, tail_that_fits
from crocodil.pipeline.generating import generate
from crocodil.pipeline.networks import Networks
from crocodil.pipeline.ranking import BOUND_DRAWS, Answer, Ranking, Scored, Unranked, ranked
from crocodil.pipeline.results import SEPARATOR
from crocodil.pipeline.settings import Method
from crocodil.text.positions import Place, indentation_after
from crocodil.text.prompts import Split, TokenizedPair, tokenize_pairs

SHORTEST = 4  # tokens of the shortest answer before a suffix
PREFIX_SHARE, ANSWER_SHARE = 0.5, 0.25  # of the canvas; the rest is for the suffix


@dataclass(frozen=True)
class Answers:
    """Answers to one prompt, the most likely first. It prints as their texts."""

    answers: list[Answer]
    prompt: str  # the part that the model saw
    suffix: str
    seconds: float  # to generate them
    ranking: Ranking

    def __iter__(self) -> Any:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, number: int) -> Answer:
        return self.answers[number]

    def __str__(self) -> str:
        return f"\n{SEPARATOR}\n".join(answer.text for answer in self.answers)


def complete(
    pipe: Networks,
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
        prompt: the text before the answer. If it is too long, the model sees only its end.
        suffix: the text after the answer. If it is too long, the model sees only its beginning.
        count: the number of answers.
        tokens: the length of an answer. By default, answers before a suffix have different lengths, evenly spaced
            on a logarithmic scale, and answers without a suffix end where the model ends them.
        at_column: whether the prompt ends with the indentation of the line where the answer starts.
        length: the length of the canvas; by default the shortest that fits the texts, or the longest.
        seed: the seed of all random draws.
        bound_draws: demasker calls for the likelihood bound of one answer; 0 skips the ranking of a single answer.
        condition_scale: guidance of registers by the answer so far, for models trained on prompts (decision D57).
        prompt_scale: guidance of registers by the prompt, for the same models.
        options: those of `Crocodil.generate`.
    """
    place = Place(prompt, suffix, at_column)
    scales = {"condition_scale": condition_scale, "prompt_scale": prompt_scale}
    (answers,) = complete_all(
        pipe, [place], count=count, tokens=tokens, length=length, seed=seed, bound_draws=bound_draws, **scales,
        **options,
    )  # fmt: skip
    return answers


def complete_all(
    pipe: Networks,
    places: Sequence[Place],
    *,
    count: int = 4,
    tokens: int | None = None,
    length: int | None = None,
    seed: int = 0,
    bound_draws: int = BOUND_DRAWS,
    condition_scale: float = 1.0,
    prompt_scale: float = 1.0,
    **options: Any,
) -> list[Answers]:
    """Like `complete`, for many places in files: in large batches, on canvases of one length."""
    if count < 1 or bound_draws < (count > 1):
        raise ValueError("at least one answer is generated, and several are ranked with at least one call")
    if not places or not all(place.prefix or place.suffix for place in places):
        raise ValueError("the prompt is empty: use generate without one")
    texts = [place.prefix + place.suffix for place in places]
    length = pipe.settings.canvas(length) if length is not None else pipe.canvas_length(texts)
    asked, strengths = _Asked(count, tokens, length, seed, options), Strengths(condition_scale, prompt_scale)
    is_base = (method := options.get("method")) is not None and Method(method) is Method.BASE
    givens = [Given(prefix=place.prefix, suffix=place.suffix, at_column=place.at_column) for place in places]
    if (answering := prompted_model(pipe)) is not None and not is_base:
        made = _prompted(pipe, answering, givens, strengths, asked)
    elif strengths != Strengths():
        raise ValueError(
            "condition_scale and prompt_scale need a model with stage prompted, and a method with registers"
        )
    else:
        made = _infilled(pipe, givens, asked)
    orders = ranked(pipe, [unranked.answers for unranked in made], seed=seed, num_draws=bound_draws)
    return [
        Answers(answers, unranked.prompt, unranked.suffix, unranked.seconds, ranking)
        for unranked, (answers, ranking) in zip(made, orders, strict=True)
    ]


class _Asked(NamedTuple):
    """What is asked for every prompt."""

    num_answers: int
    tokens: int | None  # of an answer; None: several lengths
    length: int  # of the canvas
    seed: int
    options: dict[str, Any]  # of `generate`


class _Made(NamedTuple):
    """The answers to one prompt, before they are ranked."""

    answers: list[Unranked]
    prompt: str  # the part that the model saw
    suffix: str
    seconds: float


def _infilled(pipe: Networks, givens: Sequence[Given], asked: _Asked) -> list[_Made]:
    """Answer by infilling: prompt and suffix are given tokens (decision D24)."""
    count, tokens, length, seed, options = asked
    fitted = [_fitted(pipe, given, length, tokens) for given in givens]
    wanted = [
        replace(given, tokens=number)
        for given in fitted
        for number in answer_lengths(pipe, given, length, count, tokens)
    ]
    made = generate(pipe, len(wanted), given=wanted, length=length, seed=seed, **options)
    rows = zip(wanted, made.tokens.tolist(), made.costs, strict=True)
    answers = [
        Unranked(_between(pipe, ids, given, length), ids, _place_on_canvas(pipe, ids, given, length), cost)
        for given, ids, cost in rows
    ]
    seconds = made.seconds / len(givens)
    return [
        _Made(answers[count * number : count * (number + 1)], given.prefix, given.suffix, seconds)
        for number, given in enumerate(fitted)
    ]


def _place_on_canvas(pipe: Networks, ids: list[int], given: Given, length: int) -> Scored:
    part = layout(given, pipe.tokenizer, length=length)
    if given.tokens is None:
        return Scored.until_eos(len(part.before), ids, pipe.tokenizer.special.eos)
    return Scored(len(part.before), part.end - len(part.after), part.end, given.ends)


def _prompted(
    pipe: Networks, model: PromptedModel, givens: Sequence[Given], strengths: Strengths, asked: _Asked
) -> list[_Made]:
    """Answer with the networks of stage prompted, which also predict the length of an answer."""
    count, tokens, length, seed, options = asked
    if tokens is not None and tokens > model.longest:
        raise ValueError(f"this model answers with at most {model.longest} tokens, not {tokens}")
    longest = min(model.longest if tokens is None else tokens, length - 3)
    moved = [
        "" if given.at_column or not given.prefix.endswith("\n") else indentation_after(given.prefix)
        for given in givens
    ]
    splits = [Split(given.prefix + blank, "", given.suffix) for given, blank in zip(givens, moved, strict=True)]
    wholes = tokenize_pairs(splits, pipe.tokenizer)
    prompts = model.encode_prompts(wholes, options.get("batch_size") or pipe.runner.affordable_batch(length))
    drawn = [model.lengths(prompt, count) if tokens is None else [tokens] * count for prompt in prompts.split(1)]
    lengths = [[min(number, longest) for number in numbers] for numbers in drawn]
    pairs = [  # all that the longest of its answers leaves is for the prompt
        fitted_pair(whole, length=length, longest=max(numbers))
        for whole, numbers in zip(wholes, lengths, strict=True)
    ]
    made, seconds = generate_answers(
        pipe, model, pairs, prompts, lengths, length=length, seed=seed,
        at_column=[given.at_column or given.prefix.endswith("\n") for given in givens],
        strengths=strengths, **options,
    )  # fmt: skip
    return [
        _Made(*_texts_of(pipe, pair, given, blank, answered), seconds / len(givens))
        for pair, given, blank, answered in zip(pairs, givens, moved, made, strict=True)
    ]


def _texts_of(
    pipe: Networks, pair: TokenizedPair, given: Given, moved: str, answered: Sequence[Answered]
) -> tuple[list[Unranked], str, str]:
    """Return the answers to a prompt, and the parts of prompt and suffix that the model saw."""

    def text_of(ids: Sequence[int]) -> str:
        return pipe.tokenizer.decode([pipe.tokenizer.special.bos, *ids])

    prefix, suffix = text_of(pair.prefix).removesuffix(moved), text_of(pair.suffix)
    answers = []
    for ids, where, cost in answered:
        scored = Scored(where.start, where.stop, where.stop + len(pair.suffix), ends=suffix == given.suffix)
        answers.append(Unranked(moved + text_of(ids[where.start : where.stop]), ids, scored, cost))
    return answers, prefix, suffix


def _fitted(pipe: Networks, given: Given, length: int, tokens: int | None) -> Given:
    """Cut the given text so that it fits on a canvas with an answer. A cut suffix does not end the text."""
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
    pipe: Networks, given: Given, length: int, count: int, tokens: int | None
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


def _between(pipe: Networks, ids: list[int], given: Given, length: int) -> str:
    """Return the text between prefix and suffix, which generation keeps byte for byte."""
    end = length if given.tokens is None else layout(given, pipe.tokenizer, length=length).end
    text = pipe.tokenizer.decode(ids[:end])
    if not (text.startswith(given.prefix) and text.endswith(given.suffix)):
        raise ValueError(
            "the model's tokenizer changes the given text, for example its accents: normalise it (NFC)"
        )
    return text[len(given.prefix) : len(text) - len(given.suffix)]
