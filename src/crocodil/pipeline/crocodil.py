"""Crocodil: a trained family of networks with its tokenizer, from text to text and from seeds to text.

Every sample has its own random streams: sample 7 of a seed is the same in a batch of any size.
"""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from crocodil.checkpoints.hub import UPLOAD, upload
from crocodil.checkpoints.quantised import Bits
from crocodil.checkpoints.tensors import Device, StrPath
from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.answering import PromptedModel
from crocodil.pipeline.batches import Job, SampleBatch, Watch, joined
from crocodil.pipeline.canvases import (
    NOTHING,
    Given,
    cut_to_fit,
    fitting_length,
    masked_canvases,
    split_to_fit,
    text_canvases,
)
from crocodil.pipeline.card import UNKNOWN, Card
from crocodil.pipeline.completing import Answers, complete
from crocodil.pipeline.drawing import Priors
from crocodil.pipeline.engine import affordable_batch, compile_blocks, engine_for
from crocodil.pipeline.folder import (
    NETWORKS,
    bits_by_network,
    check_networks,
    check_prompted,
    check_vocabulary,
    check_weak_prior,
    load_networks,
    parts_of,
    write_folder,
)
from crocodil.pipeline.pricing import Pricing, mean_price
from crocodil.pipeline.results import Generation, OnSnapshot, Registers, snapshots
from crocodil.pipeline.settings import BUILTIN, Method, Settings
from crocodil.processes.gaussian import OnStep
from crocodil.processes.registers import interpolate
from crocodil.runtime.devices import checked_device, default_device, default_dtype
from crocodil.runtime.progress import progress
from crocodil.sampling import algorithms
from crocodil.sampling.configs import Decoding, Drawing, with_decoding_knobs, with_knobs
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import Engine, decode, settle
from crocodil.sampling.guidance import Demask, Guided, Unguided
from crocodil.sampling.state import Canvas, Draw, Samples
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer

GREEDY = Decoding()


@dataclass(frozen=True, kw_only=True)
class Crocodil:
    """The networks of one model, and what they can do together.

    Wherever a method takes `**knobs`, these are single fields of `Decoding` and, for generation, of `Drawing`:
    `pipe.generate(4, calls=32, temperature=0.8, prior_steps=16)`.
    """

    tokenizer: Tokenizer
    settings: Settings
    demasker: Demasker
    encoder: RegisterEncoder
    prior: RegisterDenoiser | None = None  # None: the conditional prior, given a bare canvas (decision D15)
    conditional: RegisterDenoiser | None = None
    weak_prior: RegisterDenoiser | None = None  # a less trained prior, for autoguidance (decision D43)
    condition_encoder: RegisterEncoder | None = None  # None: the encoder (Sec. 4.3.2, comment iii)
    prompted: RegisterDenoiser | None = None  # the prior of answers, given a prompt (decision D57)
    prompt_encoder: RegisterEncoder | None = None  # h_kappa; None: the encoder
    length_head: LengthHead | None = None  # of answers
    prompted_demasker: Demasker | None = None  # None: the demasker
    base: LLaDA | None = None  # trained by itself; None: the demasker with an empty prefix (decision D14)
    encoder_tokenizer: Tokenizer | None = None  # of an encoder with another vocabulary (decision D7)
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer.special.mask is None:
            raise ValueError("the tokenizer has no mask token: a demasker needs one")
        config = self.demasker.config
        check_vocabulary("demasker", config.backbone.vocab_size, self.tokenizer)
        check_vocabulary("encoder", self.encoder.config.vocab_size, self.encoder_tokenizer or self.tokenizer)
        check_networks(self.demasker, self.encoder, self.prior, self.conditional, self.condition_encoder)
        check_prompted(self.encoder, self.prompted, self.length_head, self.prompt_encoder)
        if self.weak_prior is not None:
            check_weak_prior(self.weak_prior, (self.prior, self.conditional))

    # ------------------------------------------------------------ files

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: StrPath = BUILTIN,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> "Crocodil":
        """Load the model in a folder, on the hub (`owner/name` or `owner/name@revision`), or the built-in one.

        It goes to the GPU if there is one, in bfloat16. Compiling takes up to a minute at first use and pays off
        for thousands of texts.
        """
        return cls.assemble(**parts_of(path_or_name), device=device, dtype=dtype, compiled=compiled)

    @classmethod
    def assemble(
        cls,
        networks: Mapping[str, StrPath],
        *,
        tokenizer: StrPath,
        encoder_tokenizer: StrPath | None = None,
        settings: Settings,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> "Crocodil":
        """Load networks that were saved one by one, such as the finished stages of a training run."""
        device = torch.device(checked_device(str(device or default_device())))
        loaded = load_networks(networks, device=device, dtype=dtype or default_dtype(device))
        if compiled:
            compile_blocks(loaded.values())
        return cls(
            tokenizer=Tokenizer.load(tokenizer),
            encoder_tokenizer=None if encoder_tokenizer is None else Tokenizer.load(encoder_tokenizer),
            settings=settings,
            compiled=compiled,
            **loaded,
        )

    def save_pretrained(
        self,
        directory: StrPath,
        *,
        bits: int | Mapping[str, int] | None = None,
        int8: bool = False,
        card: Card = UNKNOWN,
    ) -> None:
        """Write a model folder; an existing folder is never overwritten.

        With 8 bits (or `int8`) it takes a quarter of the size, with 4 bits about a sixth. Each network may have
        its own: `bits={"demasker": 8, "encoder": 4}`. README.md is its model card: shapes and use, and what `card`
        adds to them.
        """
        self._write(Path(directory), Path(directory).name, bits_by_network(bits, int8=int8), card)

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        token: str | None = None,
        commit_message: str = UPLOAD,
        bits: int | Mapping[str, int] | None = None,
        int8: bool = False,
        card: Card = UNKNOWN,
    ) -> str:
        """Save the model to a repository `owner/name` of the hub; return the address of the commit."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            self._write(folder, repository, bits_by_network(bits, int8=int8), card)
            return upload(folder, repository, private=private, token=token, message=commit_message)

    def _write(self, directory: Path, name: str, bits: Mapping[str, Bits | None], card: Card) -> None:
        networks = {part: getattr(self, part) for part in NETWORKS if getattr(self, part) is not None}
        write_folder(
            directory,
            self.settings,
            self.tokenizer,
            networks,
            self.encoder_tokenizer,
            card=card,
            name=name,
            bits=bits,
        )

    # ------------------------------------------------------------ text -> registers -> text

    @torch.no_grad()
    def encode(self, texts: Sequence[str], *, cut: bool = False, batch_size: int | None = None) -> Registers:
        """Return K registers per text; `registers[:, :k]` is a coarser description that decodes as well.

        All texts are encoded on canvases of one length, `canvas_length(texts)`, which the result remembers. A text
        that is too long is an error, unless `cut`.
        """
        if not texts:
            raise ValueError("there is no text to encode")
        tokens = self.tokens_of(texts, cut=cut)
        size = batch_size or self.affordable_batch(tokens.shape[1])
        banks = []
        with progress("encoding", len(tokens), unit="texts", shown=len(tokens) > size) as advance:
            for batch in tokens.split(size):
                banks.append(self._encode(batch))
                advance(len(batch))
        return Registers(torch.cat(banks), tokens.shape[1])

    def _encode(self, tokens: TokenIds) -> RegisterBank:
        return encode_checked(self.encoder, tokens, retokenizer=self._retokenizer)

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
        """Decode registers, K or fewer per text, to texts.

        `length` is that of the canvas; it is needed for a bare tensor only.
        """
        registers = self._checked_registers(registers, length)
        decoding = with_decoding_knobs(decoding, knobs)
        bank, demask = registers.bank.to(self.device), Guided(self.demasker)

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

        job = self._job(sample, self.canvas(registers.length), ("decode", seed), len(registers), decoding)
        return self._run(job, decoding, batch_size, on_call, show_progress)

    def _checked_registers(self, registers: Registers | RegisterBank, length: int | None) -> Registers:
        """Return registers that this model can decode, with the length of their canvas."""
        bank = registers.bank if isinstance(registers, Registers) else registers
        if length is None and isinstance(registers, Registers):
            length = registers.length
        if length is None and len(self.settings.lengths) > 1:
            lengths = " or ".join(map(str, self.settings.lengths))
            raise ValueError(f"a bare tensor of registers has no canvas length: pass length={lengths}")
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
        decoding = with_decoding_knobs(decoding, knobs)

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            return algorithms.autoencode(
                lambda batch: self._encode(batch)[:, :num_registers],
                Guided(self.demasker),
                tokens[numbers.start : numbers.stop],
                canvas,
                decoding,
                streams=streams,
                on_call=watch.on_call,
                engine=self.engine,
            )

        job = self._job(sample, self.canvas(tokens.shape[1]), ("decode", seed), len(texts), decoding)
        return self._run(job, decoding, batch_size, on_call, show_progress)

    def interpolate(
        self, a: str, b: str, steps: int = 5, *, cut: bool = False, decoding: Decoding = GREEDY, **knobs: Any
    ) -> Generation:
        """App. D: decode `steps` evenly spaced interpolations between the registers of two texts."""
        if steps < 2:
            raise ValueError(f"an interpolation has at least its two ends, not {steps} steps")
        ends = self.encode([a, b], cut=cut)
        first, second = ends.bank.split(1)
        mixed = [interpolate(first, second, mix_weight=step / (steps - 1)) for step in range(steps)]
        return self.decode(Registers(torch.cat(mixed), ends.length), decoding=decoding, **knobs)

    # ------------------------------------------------------------ seeds -> text

    def generate(
        self,
        count: int = 1,
        *,
        method: Method | str = Method.CON_WITHIN_DISC,
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

        The configs are by default those of the model's settings (`settings.decoding_for`, `settings.drawing`).
        `given` is for all texts, or one for each. `on_call` is called after every demasker call with a `Snapshot`
        of the batch, `on_step` after every diffusion step of a draw with the number of steps done and of all.
        """
        decoding, drawing = self._sampling(Method(method), decoding, drawing, knobs)
        job = self._generation_job(count, Method(method), length, seed, given, decoding, drawing)
        return self._run(job, decoding, batch_size, on_call, show_progress, on_step)

    def stream(self, count: int = 1, **options: Any) -> Iterator[str]:
        """Yield texts as they are finished, batch by batch: `for text in pipe.stream(100): ...`.

        The options and the texts are those of `generate`.
        """
        return (text for batch in self.stream_batches(count, **options) for text in batch.texts)

    def stream_batches(
        self,
        count: int = 1,
        *,
        method: Method | str = Method.CON_WITHIN_DISC,
        length: int | None = None,
        seed: int = 0,
        given: Given | Sequence[Given] = NOTHING,
        decoding: Decoding | None = None,
        drawing: Drawing | None = None,
        batch_size: int | None = None,
        on_call: OnSnapshot | None = None,
        show_progress: bool = True,
        **knobs: Any,
    ) -> Iterator[Generation]:
        """Yield what `generate` returns, one batch at a time."""
        decoding, drawing = self._sampling(Method(method), decoding, drawing, knobs)
        job = self._generation_job(count, Method(method), length, seed, given, decoding, drawing)
        batches = self._batches(job, decoding, batch_size, on_call, show_progress)
        return (self._generation(samples, seconds, job) for samples, seconds in batches)

    def complete(self, prompt: str, suffix: str = "", **options: Any) -> Answers:
        """Generate answers that stand between prompt and suffix, and rank them: see `completing.complete`."""
        return complete(self, prompt, suffix, **options)

    def _sampling(
        self, method: Method, decoding: Decoding | None, drawing: Drawing | None, knobs: dict[str, Any]
    ) -> tuple[Decoding, Drawing]:
        return with_knobs(decoding or self.settings.decoding_for(method), drawing or self.settings.drawing, knobs)

    def _generation_job(
        self,
        count: int,
        method: Method,
        length: int | None,
        seed: int,
        given: Given | Sequence[Given],
        decoding: Decoding,
        drawing: Drawing,
    ) -> Job:
        if count < 1:
            raise ValueError(f"at least one text is generated, not {count}")
        if not isinstance(given, Given) and len(given) != count:
            raise ValueError(f"{count} texts are generated, and {len(given)} are given")
        canvas = self.canvas(self.settings.canvas(length), given)
        if method is Method.BASE:
            note = "no base of its own: the demasker with an empty prefix" if self.base is None else ""
            return self._job(self._sample_base(decoding), canvas, ("generate", seed), count, decoding, note=note)
        if method is Method.CON_THEN_DISC:
            drawing = dataclasses.replace(drawing, refresh_at=())
        refreshes = algorithms.calls_at(drawing.refresh_at, decoding.plan(canvas.length).num_calls)
        num_steps = len(refreshes) * drawing.refresh_steps + (0 if 0 in refreshes else drawing.prior_steps)
        sample = self._sample_guided(decoding, drawing, has_given_text=bool(given))
        return self._job(sample, canvas, ("generate", seed), count, decoding, num_steps=num_steps)

    def _sample_base(self, decoding: Decoding) -> SampleBatch:
        demask = Guided(self.demasker) if self.base is None else Unguided(self.base)

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            canvas, spent = self._settled(demask, canvas, decoding, streams)
            return decode(
                demask, canvas, decoding, streams=streams, spent=spent, on_call=watch.on_call, engine=self.engine
            )

        return sample

    def _sample_guided(self, decoding: Decoding, drawing: Drawing, *, has_given_text: bool) -> SampleBatch:
        """Algorithms 2 and 3. With given text, the first registers are drawn given it (decision D24)."""
        demask = Guided(self.demasker, drawing.num_registers)

        def sample(numbers: range, canvas: Canvas, streams: Streams, watch: Watch) -> Samples:
            canvas, spent = self._settled(demask, canvas, decoding, streams)

            def draw(streams: Streams) -> Draw:
                if has_given_text:
                    return draw_given(canvas.tokens, streams, drawing.prior_steps)
                return self.draw(streams, length=canvas.length, drawing=drawing, on_step=watch.on_step)

            def redraw(tokens: TokenIds, registers: RegisterBank | None, streams: Streams) -> Draw:
                return draw_given(tokens, streams, drawing.refresh_steps, registers)

            def draw_given(
                tokens: TokenIds, streams: Streams, num_steps: int, replaced: RegisterBank | None = None
            ) -> Draw:
                return self.draw_given(
                    tokens,
                    streams,
                    num_steps=num_steps,
                    replaced=replaced,
                    drawing=drawing,
                    on_step=watch.on_step,
                )

            samples = algorithms.con_within_disc(
                draw,
                redraw,
                demask,
                canvas,
                decoding,
                streams=streams,
                refresh_at=drawing.refresh_at,
                spent=spent,
                on_call=watch.on_call,
                engine=self.engine,
            )
            return samples.with_registers(drawing.num_registers)

        return sample

    def _settled(
        self, demask: Demask, canvas: Canvas, decoding: Decoding, streams: Streams
    ) -> tuple[Canvas, Cost]:
        """Fill the positions where given text was healed."""
        return (canvas, NO_COST) if canvas.allowed is None else settle(demask, canvas, decoding, streams=streams)

    # ------------------------------------------------------------ registers from the priors

    @cached_property
    def priors(self) -> Priors:
        return Priors(
            prior=self.prior,
            conditional=self.conditional,
            weak=self.weak_prior,
            encoder=self.encoder if self.condition_encoder is None else self.condition_encoder,
            tokenizer=self.tokenizer,
            retokenizer=self._retokenizer,
            engine=self.engine,
        )

    @cached_property
    def answering(self) -> PromptedModel | None:
        """The networks of stage prompted, if the model has them."""
        if self.prompted is None or self.length_head is None:
            return None
        return PromptedModel(
            denoiser=self.prompted,
            length_head=self.length_head,
            encoder=self.encoder,
            prompt_encoder=self.prompt_encoder or self.encoder,
            demasker=self.prompted_demasker or self.demasker,
            tokenizer=self.tokenizer,
            retokenizer=self._retokenizer,
            engine=self.engine,
        )

    def draw(
        self,
        streams: Streams,
        *,
        length: int | None = None,
        drawing: Drawing | None = None,
        on_step: OnStep | None = None,
    ) -> Draw:
        """Draw registers of a text like those of the training data, for a canvas of this length."""
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

    @property
    def device(self) -> torch.device:
        return self.demasker.boundaries.device

    @property
    def mask_id(self) -> int:
        assert self.tokenizer.special.mask is not None
        return self.tokenizer.special.mask

    @cached_property
    def _retokenizer(self) -> Retokenizer | None:
        return None if self.encoder_tokenizer is None else Retokenizer(self.tokenizer, self.encoder_tokenizer)

    def at_length(self, length: int) -> "Crocodil":
        """Return the same model for canvases of this length alone."""
        if length not in self.settings.lengths:
            lengths = " and ".join(map(str, self.settings.lengths))
            raise ValueError(f"this model was trained on canvases of {lengths} tokens, not {length}")
        settings = dataclasses.replace(self.settings, length=length, lengths=(length,))
        return dataclasses.replace(self, settings=settings)

    def fitting(self, text: str) -> tuple[str, str]:
        """Return the part of a text that fits the longest canvas, and the rest."""
        return cut_to_fit(text, self.tokenizer, length=self.settings.lengths[-1])

    def pieces(self, text: str) -> list[str]:
        """Split a text of any length into pieces that fit the longest canvas, at line breaks where possible."""
        return split_to_fit(text, self.tokenizer, length=self.settings.lengths[-1])

    def canvas_length(self, texts: Sequence[str]) -> int:
        """Return the default length if all texts fit, else the next longer one that fits, or the longest."""
        longer = [length for length in self.settings.lengths if length >= self.settings.length]
        return fitting_length(texts, self.tokenizer, longer)

    def tokens_of(self, texts: Sequence[str], *, cut: bool = False) -> TokenIds:
        """Tokenize texts on canvases of one length."""
        length = self.canvas_length(texts)
        return text_canvases(texts, self.tokenizer, length=length, cut=cut).to(self.device)

    def canvas(self, length: int, given: Given | Sequence[Given] = NOTHING) -> Canvas:
        """Return one canvas: BOS and the given text, the rest masked. A base without BOS cannot tell positions."""
        givens = [given] if isinstance(given, Given) else given
        return masked_canvases(givens, self.tokenizer, length=length).to(self.device)

    # ------------------------------------------------------------ batches and costs

    @cached_property
    def engine(self) -> Engine:
        """On CUDA calls are recorded once as graphs and replayed."""
        return engine_for(self.device, compiled=self.compiled)

    def affordable_batch(self, length: int) -> int:
        config = self.demasker.config
        return affordable_batch(config.backbone, length, self.device, prefix=config.num_registers + 2)

    def _job(
        self,
        sample: SampleBatch,
        canvas: Canvas,
        key: tuple[str, int],
        count: int,
        decoding: Decoding,
        *,
        num_steps: int = 0,
        note: str = "",
    ) -> Job:
        num_ticks = decoding.plan(canvas.length).num_calls + num_steps
        return Job(sample, canvas, key, count, num_ticks, note)

    def _run(
        self,
        job: Job,
        decoding: Decoding,
        batch_size: int | None,
        on_call: OnSnapshot | None,
        show_progress: bool,
        on_step: OnStep | None = None,
    ) -> Generation:
        batches = list(self._batches(job, decoding, batch_size, on_call, show_progress, on_step))
        seconds = sum(seconds for _, seconds in batches)
        return self._generation(joined([samples for samples, _ in batches]), seconds, job)

    def _batches(
        self,
        job: Job,
        decoding: Decoding,
        batch_size: int | None,
        on_call: OnSnapshot | None,
        show_progress: bool,
        on_step: OnStep | None = None,
    ) -> Iterator[tuple[Samples, float]]:
        size = batch_size or self.affordable_batch(job.canvas.length)
        num_calls = decoding.plan(job.canvas.length).num_calls
        watch = snapshots(on_call, num_calls, self.tokenizer, on_step=on_step)
        return job.batches(size, show_progress=show_progress, watch=watch)

    def _generation(self, samples: Samples, seconds: float, job: Job) -> Generation:
        length = job.canvas.length
        num_registers = None if samples.registers is None else samples.registers.shape[1]
        return Generation(
            texts=[self.tokenizer.decode(ids) for ids in samples.tokens.tolist()],
            tokens=samples.tokens,
            registers=samples.registers,
            cost=samples.cost,
            costs=samples.costs,
            nfe=mean_price(self.nfe, samples.costs),
            flop_nfe=mean_price(
                lambda cost: self.flop_nfe(cost, length=length, num_registers=num_registers), samples.costs
            ),
            seconds=seconds,
            note=job.note,
        )

    @cached_property
    def pricing(self) -> Pricing:
        return Pricing(self.demasker, self.encoder, (self.prior, self.conditional))

    def nfe(self, cost: Cost) -> float:
        """Return the cost in the paper's unit."""
        return self.pricing.nfe(cost)

    def flop_nfe(self, cost: Cost, *, length: int, num_registers: int | None) -> float:
        """Return the cost in calls of the base over the text alone; `num_registers` is None without guidance."""
        has_no_prefix = num_registers is None and self.base is not None  # else there is one, possibly empty
        return self.pricing.flop_nfe(cost, length=length, prefix=None if has_no_prefix else num_registers or 0)
