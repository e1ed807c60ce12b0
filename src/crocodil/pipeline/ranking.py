"""Rank answers to a prompt by the model's own likelihood bound, at low cost (decisions D56, D59).

The bound is a mean over random maskings. All answers use the same maskings, even if the suffix starts at another
position. So differences between answers have little noise, and few maskings are enough. Canvases are cut after
the longest text.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from crocodil.metrics.likelihood import negative_elbo
from crocodil.pipeline.networks import Networks
from crocodil.sampling.cost import Cost
from crocodil.seeding import Streams
from crocodil.shapes import Positions, RowLogits, TokenIds

BOUND_DRAWS = 8  # demasker calls that rank one answer


@dataclass(frozen=True)
class Answer:
    """A text that was generated between prompt and suffix."""

    text: str
    nats: float  # upper bound on -log p(answer, suffix | prompt) of the model without registers
    cost: Cost  # of generating and ranking it


class Ranking(NamedTuple):
    """The cost of ranking the answers to a prompt: calls per answer, on canvases of `length` tokens."""

    calls: int = 0
    length: int = 0
    seconds: float = 0.0


class Scored(NamedTuple):
    """The positions of answer and suffix on a canvas: the tokens whose likelihood is bounded."""

    start: int
    suffix: int  # where the suffix starts
    end: int  # where it ends
    ends: bool = True  # the text ends there, which counts too; False: more text follows, which does not

    @classmethod
    def until_eos(cls, start: int, ids: Sequence[int], eos: int) -> "Scored":
        """Return the positions of an answer without a suffix, which ends at the first EOS."""
        end = next((position for position in range(start, len(ids)) if ids[position] == eos), len(ids))
        return cls(start, end, end)


def needed_length(scored: Sequence[Scored], length: int) -> int:
    """Return the length of a canvas that holds the longest text and, if texts end, one EOS."""
    return min(length, max(text.end + text.ends for text in scored))


@torch.no_grad()
def bound(
    pipe: Networks, tokens: TokenIds, scored: Sequence[Scored], *, seed: int, num_draws: int
) -> Float[Tensor, "B"]:
    """Return an upper bound on -log p(answer, suffix | prompt) in nats, for generated canvases (decision D56).

    The network is the base, or the demasker without registers: with registers, each answer would be scored under
    different ones. The same suffix follows all answers, so answers of different lengths can be compared. If the
    text continues after the suffix, the rest of the canvas stays masked and does not count.

    The cost is low (decision D59): canvases are cut after the longest text, all answers share the random maskings,
    even if the suffix has other positions, and all maskings of all answers are one batch.
    """
    length = needed_length(scored, tokens.shape[1])
    start, suffix, end, ends = torch.tensor(scored, device=tokens.device).T[..., None]
    position = torch.arange(length, device=tokens.device)
    filling = torch.where(ends.bool(), pipe.tokenizer.special.eos, pipe.mask_id)
    is_text = position < end
    seen, given = torch.where(is_text, tokens[:, :length], filling), (position < start) | ~(is_text | ends.bool())
    place_in_answer = (position < suffix) * (position - start)
    place_after_it = (position >= suffix) * (
        length * (1 + ~is_text) + position - torch.where(is_text, suffix, end)
    )

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
        places=(place_in_answer + place_after_it).clamp(min=0),  # tokens before the answer are never hidden
        batch_size=pipe.runner.affordable_batch(length),
    )


@dataclass(frozen=True)
class Unranked:
    """A generated answer."""

    text: str
    tokens: list[int]  # its canvas
    scored: Scored
    cost: Cost


def ranked(
    pipe: Networks, prompts: Sequence[Sequence[Unranked]], *, seed: int, num_draws: int
) -> list[tuple[list[Answer], Ranking]]:
    """Return the answers to each prompt, the most likely first, and the cost. Without draws they are not sorted.

    Prompts whose canvases have the same length share batches, so the order does not depend on other prompts.
    """
    if not num_draws:
        return [
            ([Answer(answer.text, math.nan, answer.cost) for answer in answers], Ranking()) for answers in prompts
        ]
    by_length: dict[int, list[int]] = {}
    for number, answers in enumerate(prompts):
        length = needed_length([answer.scored for answer in answers], len(answers[0].tokens))
        by_length.setdefault(length, []).append(number)
    started_at = time.perf_counter()
    nats: dict[int, list[float]] = {}
    for numbers in by_length.values():
        batch = [answer for number in numbers for answer in prompts[number]]
        canvases = torch.tensor([answer.tokens for answer in batch], device=pipe.device)
        scored = [answer.scored for answer in batch]
        bounds = iter(bound(pipe, canvases, scored, seed=seed, num_draws=num_draws).tolist())
        nats |= {number: [next(bounds) for _ in prompts[number]] for number in numbers}
    seconds, spent = (time.perf_counter() - started_at) / len(prompts), Cost(demasker_calls=num_draws)
    orders: dict[int, tuple[list[Answer], Ranking]] = {}
    for length, numbers in by_length.items():
        for number in numbers:
            rows = zip(prompts[number], nats[number], strict=True)
            ranked_answers = [Answer(answer.text, its_nats, answer.cost + spent) for answer, its_nats in rows]
            ranked_answers.sort(key=lambda answer: answer.nats)
            orders[number] = ranked_answers, Ranking(num_draws, length, seconds)
    return [orders[number] for number in range(len(prompts))]
