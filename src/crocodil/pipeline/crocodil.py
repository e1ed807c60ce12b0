"""Crocodil: a trained model with its networks and tokenizer. It encodes, decodes, generates and completes text.

Every sample has its own random streams, so it does not depend on the batch size.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from crocodil.pipeline.answering import PromptedModel, prompted_model
from crocodil.pipeline.batches import Job, SampleBatch, Watch
from crocodil.pipeline.canvases import NOTHING, Given, cut_to_fit, split_to_fit, text_canvases
from crocodil.pipeline.completing import Answers, complete
from crocodil.pipeline.generating import check_count, generate, generation_job
from crocodil.pipeline.networks import Networks
from crocodil.pipeline.results import Generation, OnSnapshot, Registers
from crocodil.pipeline.settings import Method, check_interpolation_steps
from crocodil.processes.gaussian import OnStep
from crocodil.processes.registers import interpolate
from crocodil.runtime.progress import progress
from crocodil.sampling import algorithms
from crocodil.sampling.configs import Decoding, Drawing, with_decoding_knobs
from crocodil.sampling.cost import Cost
from crocodil.sampling.decode import decode
from crocodil.sampling.state import Canvas, Draw, Samples
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked

GREEDY = Decoding()


@dataclass(frozen=True, kw_only=True, repr=False)
class Crocodil(Networks):
    """A trained model. The base class `Networks` holds its networks, and loads and saves them.

    `**knobs` of a method are single fields of `Decoding` and, for generation, also of `Drawing`:
    `pipe.generate(4, calls=32, temperature=0.8, prior_steps=16)`.
    """

    # ------------------------------------------------------------ text -> registers -> text

    @torch.no_grad()
    def encode(self, texts: Sequence[str], *, cut: bool = False, batch_size: int | None = None) -> Registers:
        """Return K registers per text. `registers[:, :k]` is a coarser description, which can be decoded too.

        All texts are encoded on canvases of one length, `canvas_length(texts)`, which is stored in the result. A
        text that is too long is an error; with `cut` it is cut.
        """
        tokens = self.tokens_of(texts, cut=cut)
        size = batch_size or self.affordable_batch(tokens.shape[1])
        banks = []
        with progress("encoding", len(tokens), unit="texts", shown=len(tokens) > size) as advance:
            for batch in tokens.split(size):
                banks.append(self._encode(batch))
                advance(len(batch))
        return Registers(torch.cat(banks), tokens.shape[1])

    def _encode(self, tokens: TokenIds) -> RegisterBank:
        return encode_checked(self.encoder, tokens, retokenizer=self.retokenizer)

    def decode(
        self,
        registers: Registers | RegisterBank,
        *,
        length: int | None = None,
        seed: int = 0,
        decoding: Decoding = GREEDY,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
        **knobs: Any,
    ) -> Generation:
        """Decode registers, K or fewer per text, into texts.

        `length` is the length of the canvas. It is needed only if `registers` is a plain tensor.
        """
        registers = self._checked_registers(registers, length)
        decoding = with_decoding_knobs(decoding, knobs)
        bank, demask = registers.bank.to(self.device), self.guided()

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            batch = bank[numbers.start : numbers.stop]
            return decode(
                demask,
                canvas,
                decoding,
                registers=batch,
                streams=streams,
                on_call=watch.on_call,
                engine=self.engine,
            )

        job = self._decoding_job(sample, registers.length, seed, len(registers), decoding)
        return self.runner.run(job, batch_size=batch_size, on_call=on_call, show_progress=show_progress)

    def _checked_registers(self, registers: Registers | RegisterBank, length: int | None) -> Registers:
        """Return registers that this model can decode, with the length of their canvas."""
        bank = registers.bank if isinstance(registers, Registers) else registers
        if not isinstance(bank, torch.Tensor):
            raise ValueError(f"registers should be a torch tensor or Registers, not {type(bank).__name__}")
        if length is None and isinstance(registers, Registers):
            length = registers.length
        if length is None and len(self.settings.lengths) > 1:
            lengths = " or ".join(map(str, self.settings.lengths))
            raise ValueError(f"a bare tensor of registers has no canvas length: pass length={lengths}")
        if bank.ndim != 3:
            hint = ": for one text use registers[0:1]" if bank.ndim == 2 else ""
            raise ValueError(f"registers have shape texts x registers x width, not {tuple(bank.shape)}{hint}")
        _, count, width = bank.shape
        expected = self.demasker.config
        if width != expected.register_width:
            raise ValueError(f"the registers have width {width}, this model's have {expected.register_width}")
        if count > expected.num_registers:
            raise ValueError(f"there are {count} registers per text, this model has {expected.num_registers}")
        if not len(bank):
            raise ValueError("there are no registers to decode")
        return Registers(bank, self.settings.canvas(length))

    def autoencode(
        self,
        texts: Sequence[str],
        *,
        num_registers: int | None = None,
        cut: bool = False,
        seed: int = 0,
        decoding: Decoding = GREEDY,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
        **knobs: Any,
    ) -> Generation:
        """Algorithm 6: encode texts and decode their first `num_registers` registers, by default all."""
        tokens = self.tokens_of(texts, cut=cut)
        check_count(num_registers, self.encoder.config.num_registers, "encodes")
        decoding = with_decoding_knobs(decoding, knobs)

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            return algorithms.autoencode(
                lambda batch: self._encode(batch)[:, :num_registers],
                self.guided(),
                tokens[numbers.start : numbers.stop],
                canvas,
                decoding,
                streams=streams,
                on_call=watch.on_call,
                engine=self.engine,
            )

        job = self._decoding_job(sample, tokens.shape[1], seed, len(texts), decoding)
        return self.runner.run(job, batch_size=batch_size, on_call=on_call, show_progress=show_progress)

    def _decoding_job(self, sample: SampleBatch, length: int, seed: int, count: int, decoding: Decoding) -> Job:
        return Job(sample, self.canvas(length), ("decode", seed), count, decoding.plan(length).num_calls)

    def interpolate(
        self, a: str, b: str, steps: int = 5, *, cut: bool = False, decoding: Decoding = GREEDY, **knobs: Any
    ) -> Generation:
        """App. D: decode `steps` evenly spaced interpolations between the registers of two texts."""
        if not (isinstance(a, str) and isinstance(b, str)):
            raise ValueError("interpolate takes two strings")
        check_interpolation_steps(steps)
        ends = self.encode([a, b], cut=cut)
        first, second = ends.bank.split(1)
        mixed = [interpolate(first, second, mix_weight=step / (steps - 1)) for step in range(steps)]
        return self.decode(Registers(torch.cat(mixed), ends.length), decoding=decoding, **knobs)

    # ------------------------------------------------------------ seeds -> text

    def generate(
        self,
        count: int = 1,
        *,
        method: Method | str | None = None,
        length: int | None = None,
        seed: int = 0,
        given: Given | Sequence[Given] = NOTHING,
        decoding: Decoding | None = None,
        drawing: Drawing | None = None,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        on_step: OnStep | None = None,
        show_progress: bool = True,
        **knobs: Any,
    ) -> Generation:
        """Generate `count` texts.

        By default method and configs are the model's own (`settings.method`, `settings.decoding_for`,
        `settings.drawing`). `given` holds for all texts, or is a list with one for each text. `on_call` is called
        after every demasker call with a `Snapshot` of the batch. `on_step` is called after every diffusion step
        with two numbers: steps done, and all steps of the draw.
        """
        return generate(
            self,
            count,
            method=method,
            length=length,
            seed=seed,
            given=given,
            decoding=decoding,
            drawing=drawing,
            batch_size=batch_size,
            on_call=on_call,
            on_step=on_step,
            show_progress=show_progress,
            **knobs,
        )

    def stream(self, count: int = 1, **options: Any) -> Iterator[str]:
        """Yield texts as they are finished, batch by batch: `for text in pipe.stream(100): ...`.

        The options and the texts are those of `generate`.
        """
        return (text for batch in self.stream_batches(count, **options) for text in batch.texts)

    def stream_batches(
        self,
        count: int = 1,
        *,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
        **options: Any,
    ) -> Iterator[Generation]:
        """Yield what `generate` returns, one batch at a time. The options are those of `generate`."""
        job = generation_job(self, count, **options)
        return self.runner.stream(job, batch_size=batch_size, on_call=on_call, show_progress=show_progress)

    def complete(self, prompt: str, suffix: str = "", **options: Any) -> Answers:
        """Generate answers that stand between prompt and suffix, and rank them: see `completing.complete`."""
        return complete(self, prompt, suffix, **options)

    # ------------------------------------------------------------ registers from the priors

    @cached_property
    def answering(self) -> PromptedModel | None:
        """The networks of stage prompted, if the model has them."""
        return prompted_model(self)

    def draw(
        self,
        streams: Streams,
        *,
        length: int | None = None,
        drawing: Drawing | None = None,
        on_step: OnStep | None = None,
    ) -> Draw:
        """Draw registers of a new text from the prior, for a canvas of this length."""
        length = length or self.settings.length
        return self.priors.draw(streams, drawing or self.settings.drawing, length=length, on_step=on_step)

    def draw_given(
        self,
        tokens: TokenIds,
        streams: Streams,
        *,
        num_steps: int,
        replaced: RegisterBank | None = None,
        drawing: Drawing | None = None,
        on_step: OnStep | None = None,
    ) -> Draw:
        """Draw registers given the visible tokens of a text.

        With `drawing.refresh_from` below 1, the draw starts from the registers that it replaces, partly noised.
        """
        drawing = drawing or self.settings.drawing
        return self.priors.draw_given(
            tokens, streams, drawing, num_steps=num_steps, replaced=replaced, on_step=on_step
        )

    def condition(self, tokens: TokenIds) -> RegisterBank:
        """Encode the visible tokens: the condition of the conditional prior."""
        return self.priors.condition(tokens)

    # ------------------------------------------------------------ canvases

    def at_length(self, length: int) -> "Crocodil":
        """Return the same model for canvases of this length alone."""
        if length not in self.settings.lengths:
            lengths = " and ".join(map(str, self.settings.lengths))
            raise ValueError(f"this model was trained on canvases of {lengths} tokens, not {length}")
        settings = dataclasses.replace(self.settings, length=length, lengths=(length,))
        return dataclasses.replace(self, settings=settings)

    def fitting(self, text: str) -> tuple[str, str]:
        """Split a text into the part that fits on the longest canvas, and the rest."""
        return cut_to_fit(text, self.tokenizer, length=self.settings.lengths[-1])

    def pieces(self, text: str) -> list[str]:
        """Split a text of any length into pieces that fit the longest canvas, at line breaks where possible."""
        return split_to_fit(text, self.tokenizer, length=self.settings.lengths[-1])

    def tokens_of(self, texts: Sequence[str], *, cut: bool = False) -> TokenIds:
        """Tokenize texts on canvases of one length."""
        if isinstance(texts, str):
            raise ValueError("texts is one string: give a list of texts, [text]")
        if not texts:
            raise ValueError("there is no text to encode")
        length = self.canvas_length(texts)
        return text_canvases(texts, self.tokenizer, length=length, cut=cut).to(self.device)

    # ------------------------------------------------------------ batches and costs

    def affordable_batch(self, length: int) -> int:
        """Return the largest useful batch of canvases of this length that memory allows."""
        return self.runner.affordable_batch(length)

    def nfe(self, cost: Cost) -> float:
        """Return the cost in the paper's unit."""
        return self.pricing.nfe(cost)

    def flop_nfe(self, cost: Cost, *, length: int, num_registers: int | None) -> float:
        """Return the cost in units of one call of the base; `num_registers` is None without guidance."""
        return self.pricing.flop_nfe(cost, length=length, num_registers=num_registers)
