"""Answer prompts with a model that was trained on prompts (stage prompted): Algorithms 2 and 3 with App. H.

1. h_kappa encodes the prompt.
2. The length head predicts the length of the answer.
3. The prior draws registers of the answer given the prompt. A refresh also reads h_phi of the answer so far.
4. The demasker fills in the answer between the visible prompt and suffix, on a canvas like those of training
   (`text/prompts.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.register_denoiser import Condition, RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.batches import SampleBatch, Watch
from crocodil.pipeline.canvases import allowed_at, stacked, starts_text
from crocodil.pipeline.generating import Draws, guided_sampler, seed_job
from crocodil.pipeline.networks import Networks
from crocodil.pipeline.settings import Method
from crocodil.processes.gaussian import OnStep
from crocodil.sampling import algorithms
from crocodil.sampling.call import Engine
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.guidance import Guided
from crocodil.sampling.register_draw import Conditions, Prior, draw_registers
from crocodil.sampling.state import Canvas, Draw, Samples, refresh_streams
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.prompts import TokenizedPair, next_to
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer


class Strengths(NamedTuple):
    """Scales of guidance by the text so far and by the prompt. Any value but 1 adds a denoiser call per step."""

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

    def encode_prompts(self, pairs: Sequence[TokenizedPair], batch_size: int) -> RegisterBank:
        """Return h_kappa(c) of each prompt."""
        length = self.length_head.config.prompt_length
        ids = [pair.prompt_canvas(self.tokenizer.special, length) for pair in pairs]
        batches = torch.tensor(ids, device=self.device).split(batch_size)
        return torch.cat([self._encode(self.prompt_encoder, batch) for batch in batches])

    @torch.no_grad()
    def _encode(self, encoder: RegisterEncoder, tokens: TokenIds) -> RegisterBank:
        hidden = tokens.eq(self.demasker.config.backbone.mask_id)
        return encode_checked(encoder, tokens, hidden, retokenizer=self.retokenizer)

    @torch.no_grad()
    def lengths(self, prompt: Condition, count: int) -> list[int]:
        """Return lengths for answers to a prompt: evenly spaced quantiles of the length head, possibly equal."""
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
        drawn = draw_registers(
            Prior.of(denoiser),
            replace(drawing, autoguidance=1.0),  # the weak prior was trained without prompts
            num_steps=num_steps,
            conditions=Conditions(denoiser.cross_attention_kv(condition, prompt=prompt), dropped=dropped),
            replaced=None if replaced is None else denoiser.standardise(replaced),
            streams=streams,
            on_step=on_step,
            engine=self.engine,
        )
        return Draw(drawn.registers, drawn.cost + Cost(encoder_calls=int(answers is not None)))

    def answer_canvases(self, texts: TokenIds, answers_at: Sequence[range]) -> Int[Tensor, "B M"]:
        """Cut the answers out of texts and put each on its own canvas, as h_phi read them in training."""
        special, length = self.tokenizer.special, self.length_head.config.answer_length
        ranges = torch.tensor([(where.start, where.stop) for where in answers_at], device=texts.device)
        start, stop = ranges.T[..., None]
        position = start + torch.arange(length - 1, device=texts.device)
        answers = texts.gather(1, position.clamp(max=texts.shape[1] - 1)).where(position < stop, special.eos)
        return F.pad(answers, (1, 0), value=special.bos)

    def sampler(
        self,
        prompts: RegisterBank,
        answers_at: Sequence[range],
        decoding: Decoding,
        drawing: Drawing,
        strengths: Strengths,
    ) -> SampleBatch:
        """Return a sampler: Algorithm 3 with one prompt per sample, or Algorithm 2 if there is no refresh."""

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            rows_of_batch = slice(numbers.start, numbers.stop)
            prompt, batch_answers_at = prompts[rows_of_batch], answers_at[rows_of_batch]
            calls = algorithms.calls_at(drawing.refresh_at, decoding.plan(canvas.length).num_calls)
            row_of = {
                key: row for call in calls for row, key in enumerate(refresh_streams(streams, call).keys.tolist())
            }

            def first(texts: TokenIds, streams: Streams, on_step: OnStep) -> Draw:
                steps = drawing.prior_steps
                return self.draw(prompt, drawing, strengths, streams, num_steps=steps, on_step=on_step)

            def again(texts: TokenIds, registers: RegisterBank | None, streams: Streams, on_step: OnStep) -> Draw:
                rows = [row_of[key] for key in streams.keys.tolist()]  # finished samples have left the batch
                return self.draw(
                    prompt[rows],
                    drawing,
                    strengths,
                    streams,
                    num_steps=drawing.refresh_steps,
                    answers=self.answer_canvases(texts, [batch_answers_at[row] for row in rows]),
                    replaced=registers,
                    on_step=on_step,
                )

            spent = Cost(encoder_calls=1)  # the prompt
            draws = Draws(first, again)
            demask = Guided(self.demasker, drawing.num_registers)
            batch = guided_sampler(demask, draws, decoding, drawing, engine=self.engine, spent=spent)
            return batch(numbers, canvas, streams, watch)

        return sample


def prompted_model(networks: Networks) -> PromptedModel | None:
    """Return the networks of stage prompted, if the model has them."""
    if networks.prompted is None or networks.length_head is None:
        return None
    return PromptedModel(
        denoiser=networks.prompted,
        length_head=networks.length_head,
        encoder=networks.encoder,
        prompt_encoder=networks.prompt_encoder or networks.encoder,
        demasker=networks.prompted_demasker or networks.demasker,
        tokenizer=networks.tokenizer,
        retokenizer=networks.retokenizer,
        engine=networks.engine,
    )


class Answered(NamedTuple):
    """A generated canvas, and the position of the answer on it."""

    tokens: list[int]
    where: range
    cost: Cost


def fitted_pair(pair: TokenizedPair, *, length: int, longest: int) -> TokenizedPair:
    """Cut a prompt so that it fits on a canvas together with the longest answer."""
    room = length - longest - 2
    if room < 1:
        raise ValueError(f"an answer of {longest} tokens leaves no room for the prompt on a canvas of {length}")
    prefix, suffix = next_to(pair.prefix, pair.suffix, room)
    return TokenizedPair(prefix, [], suffix)


def generate_answers(
    pipe: Networks,
    model: PromptedModel,
    pairs: Sequence[TokenizedPair],
    prompts: RegisterBank,
    lengths: Sequence[Sequence[int]],
    *,
    length: int,
    seed: int,
    at_column: Sequence[bool],
    strengths: Strengths,
    method: Method | str | None = None,
    decoding: Decoding | None = None,
    drawing: Drawing | None = None,
    batch_size: int | None = None,
    show_progress: bool = True,
    **knobs: Any,
) -> tuple[list[list[Answered]], float]:
    """Generate answers of these lengths to each prompt. Return them in order, and the seconds used.

    Answers of similar lengths share a batch. An answer depends only on its seed, index and length, not on others.
    """
    method, drawing = pipe.settings.method_or_own(method), drawing or answer_drawing(pipe)
    # A causal head is trained with the demasker of texts, not with that of answers.
    decoding = decoding or replace(pipe.settings.decoding_for(method), in_turn="no")
    decoding, drawing = pipe.settings.sampling(method, decoding, drawing, knobs)
    requested = [(prompt, num_tokens) for prompt, its_lengths in enumerate(lengths) for num_tokens in its_lengths]
    order = sorted(range(len(requested)), key=lambda number: requested[number][1])
    canvases, answers_at = [], []
    for prompt, num_tokens in (requested[number] for number in order):
        canvas, where = _canvas(model, pairs[prompt], num_tokens, length=length, at_column=at_column[prompt])
        canvases.append(canvas)
        answers_at.append(where)
    sorted_prompts = prompts[[requested[number][0] for number in order]]
    sample = model.sampler(sorted_prompts, answers_at, decoding, drawing, strengths)
    canvas = stacked(canvases).to(model.device)
    job = seed_job(sample, canvas, seed, len(order), decoding, drawing, numbers=order)
    made = pipe.runner.run(job, batch_size=batch_size, show_progress=show_progress)
    rows = zip(order, made.tokens.tolist(), answers_at, made.costs, strict=True)
    answered = {number: Answered(ids, where, cost) for number, ids, where, cost in rows}
    numbers = iter(range(len(order)))
    return [[answered[next(numbers)] for _ in its_lengths] for its_lengths in lengths], made.seconds


def answer_drawing(pipe: Networks) -> Drawing:
    """Return how registers of answers are drawn by default: as those of texts, with steps for an ordinary prior.

    The prior of answers is not distilled. Where the model's own prior is, its few steps are replaced by the usual
    number. The noise at which its draws stop stays: an ordinary prior may stop there too (decision D63).
    """
    drawing, usual = pipe.settings.drawing, Drawing()
    first, again = pipe.first_prior, pipe.conditional
    if first is not None and first.config.is_distilled:
        drawing = replace(drawing, prior_steps=usual.prior_steps)
    if again is not None and again.config.is_distilled:
        drawing = replace(drawing, refresh_steps=usual.refresh_steps)
    return drawing


def _canvas(
    model: PromptedModel, pair: TokenizedPair, num_tokens: int, *, length: int, at_column: bool
) -> tuple[Canvas, range]:
    special = model.tokenizer.special
    assert special.mask is not None
    masked = pair._replace(answer=[special.mask] * num_tokens)
    ids, where = masked.text_canvas(special, length)
    allowed = None
    if at_column:
        allowed = allowed_at({where.start: starts_text(model.tokenizer)}, length, model.tokenizer)
    return Canvas(torch.tensor([ids]), special.mask, special.eos, allowed), where
