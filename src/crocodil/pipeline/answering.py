"""Answers of a model that was trained on prompts (stage prompted): Algorithms 2 and 3 as App. H changes them.

The prompt is encoded by h_kappa; the length of an answer comes from the length head; registers of the answer are
drawn given the prompt and, for a refresh, given h_phi of the answer so far; and the demasker fills the answer
between the visible prompt and suffix, on the canvas of training (`text/prompts.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.register_denoiser import Condition, RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.batches import SampleBatch
from crocodil.pipeline.canvases import allowed_at, starts_text
from crocodil.pipeline.generating import Draws, guided_sampler, seed_job
from crocodil.pipeline.networks import Networks
from crocodil.pipeline.settings import Method
from crocodil.processes.gaussian import OnStep
from crocodil.sampling import algorithms
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.decode import Engine
from crocodil.sampling.state import Canvas, Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.prompts import TokenizedPair, next_to
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer


class Strengths(NamedTuple):
    """Guidance by the text so far and by the prompt; 1 is none, and any other value adds a call per step."""

    condition: float = 1.0
    prompt: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PromptedModel:
    """The networks that answer prompts."""

    denoiser: RegisterDenoiser
    length_head: LengthHead
    encoder: RegisterEncoder  # h_phi
    prompt_encoder: RegisterEncoder  # h_kappa
    demasker: Demasker
    tokenizer: Tokenizer
    retokenizer: Retokenizer | None
    engine: Engine

    @property
    def device(self) -> torch.device:
        return self.demasker.boundaries.device

    @property
    def longest(self) -> int:
        """Tokens of the longest answer."""
        return self.length_head.config.max_length

    def encode_prompt(self, pair: TokenizedPair) -> RegisterBank:
        """Return h_kappa(c)."""
        ids = pair.prompt_canvas(self.tokenizer.special, self.length_head.config.prompt_length)
        return self._encode(self.prompt_encoder, torch.tensor([ids], device=self.device))

    @torch.no_grad()
    def _encode(self, encoder: RegisterEncoder, tokens: TokenIds) -> RegisterBank:
        hidden = tokens.eq(self.demasker.config.backbone.mask_id)
        return encode_checked(encoder, tokens, hidden, retokenizer=self.retokenizer)

    @torch.no_grad()
    def lengths(self, prompt: Condition, count: int) -> list[int]:
        """Return the lengths of answers: evenly spaced quantiles of the length head. Likely ones repeat."""
        shares = (torch.arange(count, device=self.device) + 0.5) / count
        return self.length_head.quantiles(prompt, shares).tolist()

    @torch.no_grad()
    def draw(
        self,
        prompt: Condition,
        drawing: Drawing,
        strengths: Strengths,
        streams: Streams,
        *,
        num_steps: int,
        answers: TokenIds | None = None,
        replaced: RegisterBank | None = None,
        on_step: OnStep | None = None,
    ) -> Draw:
        """G(eps, h_phi(x_t), h_kappa(c)): draw registers of answers; without `answers`, given the prompt alone."""
        denoiser, dropped = self.denoiser, list[tuple[float, Tensor]]()
        condition = None if answers is None else self._encode(self.encoder, answers)
        if condition is not None and strengths.condition != 1:
            dropped.append((strengths.condition, denoiser.cross_attention_kv(None, prompt=prompt)))
        if strengths.prompt != 1:
            dropped.append((strengths.prompt, denoiser.cross_attention_kv(condition)))
        drawn = algorithms.draw_registers(
            denoiser,
            replace(drawing, autoguidance=1.0),  # a weak prior knows no prompts
            shape=(denoiser.config.num_registers, denoiser.config.register_width),
            num_steps=num_steps,
            self_conditioned=denoiser.config.self_conditioned,
            unstandardise=denoiser.unstandardise,
            condition_kv=denoiser.cross_attention_kv(condition, prompt=prompt),
            dropped=dropped,
            replaced=None if replaced is None else denoiser.standardise(replaced),
            streams=streams,
            on_step=on_step,
            engine=self.engine,
        )
        return Draw(drawn.registers, drawn.cost + Cost(encoder_calls=int(answers is not None)))

    def answer_canvases(self, texts: TokenIds, where: range) -> Int[Tensor, "B M"]:
        """Return the answers of texts, each on a canvas of its own, as h_phi read them in training."""
        special, length = self.tokenizer.special, self.length_head.config.answer_length
        canvases = torch.full((len(texts), length), special.eos, device=texts.device)
        canvases[:, 0] = special.bos
        canvases[:, 1 : 1 + len(where)] = texts[:, where.start : where.stop]
        return canvases

    def sampler(
        self, prompt: Condition, where: range, decoding: Decoding, drawing: Drawing, strengths: Strengths
    ) -> SampleBatch:
        """Return Algorithm 3 with a prompt, for answers that stand at one place; without refreshes Algorithm 2."""

        def first(texts: TokenIds, streams: Streams, on_step: OnStep) -> Draw:
            return self.draw(prompt, drawing, strengths, streams, num_steps=drawing.prior_steps, on_step=on_step)

        def again(texts: TokenIds, registers: RegisterBank | None, streams: Streams, on_step: OnStep) -> Draw:
            return self.draw(
                prompt,
                drawing,
                strengths,
                streams,
                num_steps=drawing.refresh_steps,
                answers=self.answer_canvases(texts, where),
                replaced=registers,
                on_step=on_step,
            )

        spent = Cost(encoder_calls=1)  # the prompt
        draws = Draws(first, again)
        return guided_sampler(self.demasker, draws, decoding, drawing, engine=self.engine, spent=spent)


class Answered(NamedTuple):
    """A generated canvas, and where the answer stands on it."""

    tokens: list[int]
    where: range
    cost: Cost


def fitted_pair(pair: TokenizedPair, *, length: int, longest: int) -> TokenizedPair:
    """Cut a prompt to what fits a canvas beside the longest answer."""
    room = length - longest - 2
    if room < 1:
        raise ValueError(f"an answer of {longest} tokens leaves no room for the prompt on a canvas of {length}")
    prefix, suffix = next_to(pair.prefix, pair.suffix, room)
    return TokenizedPair(prefix, [], suffix)


def generate_answers(
    pipe: Networks,
    model: PromptedModel,
    pair: TokenizedPair,
    prompt: Condition,
    lengths: Sequence[int],
    *,
    length: int,
    seed: int,
    at_column: bool,
    strengths: Strengths,
    method: Method | str = Method.CON_WITHIN_DISC,
    decoding: Decoding | None = None,
    drawing: Drawing | None = None,
    batch_size: int | None = None,
    show_progress: bool = True,
    **knobs: Any,
) -> tuple[list[Answered], float]:
    """Generate one answer for each of these lengths; return them in order, and the seconds that it took.

    Answers of one length share a batch. Answer 7 of a seed and a length does not depend on the others.
    """
    decoding, drawing = pipe.settings.sampling(Method(method), decoding, drawing, knobs)
    answered: dict[int, Answered] = {}
    seconds = 0.0
    for number_of_tokens in sorted(set(lengths)):
        canvas, where = _canvas(model, pair, number_of_tokens, length=length, at_column=at_column)
        numbers = [number for number, tokens in enumerate(lengths) if tokens == number_of_tokens]
        sample = model.sampler(prompt, where, decoding, drawing, strengths)
        job = seed_job(sample, canvas, seed, len(numbers), decoding, drawing, numbers=numbers)
        made = pipe.runner.run(job, batch_size=batch_size, show_progress=show_progress)
        seconds += made.seconds
        for number, ids, cost in zip(numbers, made.tokens.tolist(), made.costs, strict=True):
            answered[number] = Answered(ids, where, cost)
    return [answered[number] for number in range(len(lengths))], seconds


def _canvas(
    model: PromptedModel, pair: TokenizedPair, number_of_tokens: int, *, length: int, at_column: bool
) -> tuple[Canvas, range]:
    special = model.tokenizer.special
    assert special.mask is not None
    masked = pair._replace(answer=[special.mask] * number_of_tokens)
    ids, where = masked.text_canvas(special, length)
    allowed = None
    if at_column:
        allowed = allowed_at({where.start: starts_text(model.tokenizer)}, length, model.tokenizer)
    return Canvas(torch.tensor([ids]), special.mask, special.eos, allowed).to(model.device), where
