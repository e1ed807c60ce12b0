"""Crocodil: a family of trained networks with its tokenizer, from text to text and from seeds to text.

Every sample has its own streams of random numbers: sample 7 of a seed is the same in a batch of any size.
"""

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from crocodil.checkpoints.tensors import Device, StrPath
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline import results as costs
from crocodil.pipeline.batches import Sample, Tick, in_batches
from crocodil.pipeline.canvases import (
    NOTHING,
    Given,
    cut_to_fit,
    fitting_length,
    masked_canvas,
    split_to_fit,
    text_canvases,
)
from crocodil.pipeline.drawing import Priors
from crocodil.pipeline.engine import affordable_batch, compile_blocks, engine_for
from crocodil.pipeline.folder import (
    NETWORKS,
    check_networks,
    check_vocabulary,
    load_networks,
    parts_of,
    write_folder,
)
from crocodil.pipeline.results import GREEDY, Choices, Generation, Registers
from crocodil.pipeline.settings import BUILTIN, Method, Settings
from crocodil.processes.categorical import Allowed
from crocodil.processes.registers import interpolate
from crocodil.processes.reveal import RULES
from crocodil.runtime.devices import checked_device, default_device, default_dtype
from crocodil.runtime.progress import progress
from crocodil.sampling import algorithms
from crocodil.sampling.cost import NO_COST, Cost
from crocodil.sampling.decode import Decoding, Draw, Engine, OnCall, Samples, decode, settle
from crocodil.sampling.guidance import Demask, Guided, Unguided
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.encode import encode_checked
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Crocodil:
    """The networks of one model, and what can be done with them together."""

    tokenizer: Tokenizer
    settings: Settings
    demasker: Demasker
    encoder: RegisterEncoder
    prior: RegisterDenoiser | None = None  # None: the conditional prior, given a bare canvas (decision D15)
    conditional: RegisterDenoiser | None = None
    condition_encoder: RegisterEncoder | None = None  # None: the encoder (Sec. 4.3.2, comment iii)
    base: LLaDA | None = None  # trained by itself; None: the demasker with an empty prefix (decision D14)
    encoder_tokenizer: Tokenizer | None = None  # of an encoder with a vocabulary of its own (decision D7)
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.tokenizer.special.mask is None:
            raise ValueError("the tokenizer has no mask token: a demasker cannot work with it")
        config = self.demasker.config
        check_vocabulary("demasker", config.backbone.vocab_size, self.tokenizer)
        check_vocabulary("encoder", self.encoder.config.vocab_size, self.encoder_tokenizer or self.tokenizer)
        check_networks(self.demasker, self.encoder, self.prior, self.conditional, self.condition_encoder)

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
        """The model in a folder, or the one that is built in.

        On the accelerator where there is one, and there in bfloat16. Compiling takes up to a minute at first use,
        and pays for thousands of texts.
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
        """A model of networks that were saved one by one: the finished stages of a training run, say."""
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

    def save_pretrained(self, directory: StrPath, *, int8: bool = False) -> None:
        """Write a model folder; an existing one is never overwritten. With `int8`, a quarter of the size."""
        networks = {name: getattr(self, name) for name in NETWORKS if getattr(self, name) is not None}
        write_folder(Path(directory), self.settings, self.tokenizer, networks, self.encoder_tokenizer, int8=int8)

    # ------------------------------------------------------------ text -> registers -> text

    @torch.no_grad()
    def encode(self, texts: Sequence[str], *, cut: bool = False, batch_size: int | None = None) -> Registers:
        """Registers, K for each text; `registers[:, :k]` is the coarser description that decodes as well.

        All are of canvases of one length, `canvas_length(texts)`, which the registers remember.
        """
        if not texts:
            raise ValueError("there is no text to encode")
        tokens = self.tokens_of(texts, cut=cut)
        size = batch_size or self.affordable_batch(tokens.shape[1])
        banks = []
        with progress("encoding", len(tokens), unit="texts", shown=len(tokens) > size) as advance:
            for some in tokens.split(size):
                banks.append(self._encode(some))
                advance(len(some))
        return Registers(torch.cat(banks), tokens.shape[1])

    def _encode(self, tokens: TokenIds) -> RegisterBank:
        return encode_checked(self.encoder, tokens, retokenizer=self._retokenizer)

    @cached_property
    def _retokenizer(self) -> Retokenizer | None:
        own = self.encoder_tokenizer
        return None if own is None else Retokenizer(self.tokenizer, own)

    @cached_property
    def engine(self) -> Engine:
        """On CUDA calls are recorded once and replayed."""
        return engine_for(self.device, compiled=self.compiled)

    def decode(
        self,
        registers: Registers | RegisterBank,
        *,
        calls: int | None = None,
        length: int | None = None,
        seed: int = 0,
        choices: Choices = GREEDY,
        batch_size: int | None = None,
        on_call: OnCall | None = None,
    ) -> Generation:
        """Texts from registers, however many of the first ones there are.

        `length` is that of the canvas; only a bare tensor of registers does not know its own.
        """
        registers = self._registers(registers, length)
        decoding = self.decoding(registers.length, calls, choices)
        bank = registers.bank.to(self.device)

        def sample(places: range, canvas: TokenIds, streams: Streams, tick: Tick) -> Samples:
            some, watch = bank[places.start : places.stop], on_call or tick
            demask = Guided(self.demasker)
            return decode(
                demask, canvas, decoding, registers=some, streams=streams, on_call=watch, engine=self.engine
            )

        canvas = self.canvas(decoding.plan.length)
        return self._in_batches(sample, canvas, ("decode", seed), len(registers), batch_size, on_call, decoding)

    def _registers(self, registers: Registers | RegisterBank, length: int | None) -> Registers:
        """Registers that this model can decode, on a canvas of the length asked for, or of their own."""
        bank = registers.bank if isinstance(registers, Registers) else registers
        if length is None and isinstance(registers, Registers):
            length = registers.length
        if length is None and len(self.settings.lengths) > 1:
            lengths = " or ".join(map(str, self.settings.lengths))
            raise ValueError(f"a bare tensor of registers has no canvas length: pass length={lengths}")
        _, count, width = bank.shape
        expected = self.demasker.config
        if width != expected.register_width:
            raise ValueError(f"registers {width} wide for a model of {expected.register_width}")
        if count > expected.num_registers:
            raise ValueError(f"{count} registers a text for a model of {expected.num_registers}")
        if not len(bank):
            raise ValueError("there are no registers to decode")
        return Registers(bank, self.settings.canvas(length))

    def autoencode(
        self,
        texts: Sequence[str],
        *,
        num_registers: int | None = None,
        cut: bool = False,
        calls: int | None = None,
        seed: int = 0,
        choices: Choices = GREEDY,
        batch_size: int | None = None,
        on_call: OnCall | None = None,
    ) -> Generation:
        """Algorithm 6: what `num_registers` of each text, all by default, say about it."""
        tokens = self.tokens_of(texts, cut=cut)
        decoding = self.decoding(tokens.shape[1], calls, choices)

        def sample(places: range, canvas: TokenIds, streams: Streams, tick: Tick) -> Samples:
            return algorithms.autoencode(
                lambda some: self._encode(some)[:, :num_registers],
                Guided(self.demasker),
                tokens[places.start : places.stop],
                canvas,
                decoding,
                streams=streams,
                on_call=on_call or tick,
                engine=self.engine,
            )

        canvas = self.canvas(decoding.plan.length)
        return self._in_batches(sample, canvas, ("decode", seed), len(texts), batch_size, on_call, decoding)

    def interpolate(
        self,
        a: str,
        b: str,
        steps: int = 5,
        *,
        cut: bool = False,
        calls: int | None = None,
        choices: Choices = GREEDY,
    ) -> Generation:
        """App. D: the texts at `steps` even weights on the way from one to the other, both ends included."""
        if steps < 2:
            raise ValueError(f"an interpolation has at least its two ends, not {steps} steps")
        ends = self.encode([a, b], cut=cut)
        first, second = ends.bank.split(1)
        mixed = [interpolate(first, second, mix_weight=step / (steps - 1)) for step in range(steps)]
        return self.decode(Registers(torch.cat(mixed), ends.length), calls=calls, choices=choices)

    # ------------------------------------------------------------ seeds -> text

    def generate(
        self,
        count: int = 1,
        *,
        method: Method | str = Method.CON_WITHIN_DISC,
        length: int | None = None,
        calls: int | None = None,
        seed: int = 0,
        given: Given = NOTHING,
        num_registers: int | None = None,
        refresh_fractions: Collection[float] = (0.5,),
        choices: Choices | None = None,
        batch_size: int | None = None,
        on_call: OnCall | None = None,
    ) -> Generation:
        """`count` new texts, guided by the first `num_registers` of those drawn; by default the settings say.

        The beginning is given to all methods: a base without it cannot tell places apart.
        """
        if count < 1:
            raise ValueError(f"at least one text is generated, not {count}")
        method = Method(method)
        decoding = self.decoding(length, calls, choices or self.default_choices(method))
        canvas, allowed = masked_canvas(given, self.tokenizer, length=decoding.plan.length).to(self.device)
        num_steps = 0
        if method is Method.BASE:
            sample = self._sample_base(decoding, allowed, on_call)
        else:
            fractions = refresh_fractions if method is Method.CON_WITHIN_DISC else ()
            sample = self._sample_guided(decoding, given, allowed, num_registers, fractions, on_call)
            num_steps = self._num_steps(fractions, decoding)
        made = self._in_batches(
            sample, canvas, ("generate", seed), count, batch_size, on_call, decoding, num_steps
        )
        if method is Method.BASE and self.base is None:
            made = dataclasses.replace(made, note="no base of its own: the demasker with an empty prefix")
        return made

    def _num_steps(self, refresh_fractions: Collection[float], decoding: Decoding) -> int:
        """Of the priors, for one batch."""
        refreshes = algorithms.refresh_calls(refresh_fractions, decoding.plan.num_calls)
        first = 0 if 0 in refreshes else self.settings.prior_steps
        return first + len(refreshes) * self.settings.refresh_steps

    def _sample_base(self, decoding: Decoding, allowed: Allowed | None, on_call: OnCall | None) -> Sample:
        demask = Guided(self.demasker) if self.base is None else Unguided(self.base)

        def sample(places: range, canvas: TokenIds, streams: Streams, tick: Tick) -> Samples:
            canvas, own, spent = self._settled(demask, canvas, decoding, allowed, streams)
            return decode(
                demask,
                canvas,
                decoding,
                allowed=own,
                streams=streams,
                spent=spent,
                on_call=on_call or tick,
                engine=self.engine,
            )

        return sample

    def _settled(
        self, demask: Demask, canvas: TokenIds, decoding: Decoding, allowed: Allowed | None, streams: Streams
    ) -> tuple[TokenIds, Allowed | None, Cost]:
        """Canvases on which given text is whole again, and which tokens may stand where it was healed."""
        if allowed is None:
            return canvas, None, NO_COST
        own = allowed.repeated(len(canvas))
        tokens, spent = settle(demask, canvas, decoding, own, streams=streams)
        return tokens, own, spent

    def _sample_guided(
        self,
        decoding: Decoding,
        given: Given,
        allowed: Allowed | None,
        num_registers: int | None,
        refresh_fractions: Collection[float],
        on_call: OnCall | None,
    ) -> Sample:
        """Algorithms 2 and 3; with something given, the first registers are drawn given it (decision D24)."""
        settings = self.settings
        kept = settings.num_registers if num_registers is None else num_registers
        if kept is not None and kept < 1:
            raise ValueError(f"at least one register guides, not {kept}: method base is guided by none")

        def draw(canvas: TokenIds, streams: Streams, tick: Tick) -> Draw:
            if given:
                return self.draw_given(canvas, streams, num_steps=settings.prior_steps, on_step=tick).first(kept)
            return self.draw(streams, length=canvas.shape[1], on_step=tick).first(kept)

        def redraw(tokens: TokenIds, streams: Streams, tick: Tick) -> Draw:
            return self.draw_given(tokens, streams, num_steps=settings.refresh_steps, on_step=tick).first(kept)

        def sample(places: range, canvas: TokenIds, streams: Streams, tick: Tick) -> Samples:
            demask = Guided(self.demasker)
            canvas, own, spent = self._settled(demask, canvas, decoding, allowed, streams)
            return algorithms.con_within_disc(
                lambda drawn: draw(canvas, drawn, tick),
                lambda tokens, drawn: redraw(tokens, drawn, tick),
                demask,
                canvas,
                decoding,
                allowed=own,
                streams=streams,
                refresh_fractions=refresh_fractions,
                spent=spent,
                on_call=on_call or tick,
                engine=self.engine,
            )

        return sample

    # ------------------------------------------------------------ registers from the priors

    @cached_property
    def priors(self) -> Priors:
        return Priors(
            prior=self.prior,
            conditional=self.conditional,
            encoder=self.encoder if self.condition_encoder is None else self.condition_encoder,
            tokenizer=self.tokenizer,
            retokenizer=self._retokenizer,
            settings=self.settings,
            engine=self.engine,
        )

    def draw(
        self, streams: Streams, *, length: int | None = None, on_step: algorithms.OnStep | None = None
    ) -> Draw:
        """Registers of a text like those of the training data, on a canvas of this length."""
        return self.priors.draw(streams, length=length or self.settings.length, on_step=on_step)

    def draw_given(
        self, tokens: TokenIds, streams: Streams, *, num_steps: int, on_step: algorithms.OnStep | None = None
    ) -> Draw:
        """Registers of a text of which the unmasked tokens are seen, and nothing else."""
        return self.priors.draw_given(tokens, streams, num_steps=num_steps, on_step=on_step)

    def condition(self, tokens: TokenIds) -> RegisterBank:
        """What the conditional prior is given of a text: the registers of its unmasked tokens."""
        return self.priors.condition(tokens)

    # ------------------------------------------------------------ canvases and plans

    def default_choices(self, method: Method) -> Choices:
        """For generating. A base has no registers to guide it, nor to vary its texts: at 0 it would have one."""
        own = self.settings
        if method is Method.BASE:
            return Choices(temperature=own.temperature or 1.0, top_p=own.top_p)
        return Choices(rule=RULES[own.rule], temperature=own.temperature, top_p=own.top_p, guidance=own.guidance)

    @property
    def device(self) -> torch.device:
        return self.demasker.boundaries.device

    @property
    def mask_id(self) -> int:
        assert self.tokenizer.special.mask is not None
        return self.tokenizer.special.mask

    def at_length(self, length: int) -> "Crocodil":
        """The same model on canvases of this length alone."""
        if length not in self.settings.lengths:
            lengths = " and ".join(map(str, self.settings.lengths))
            raise ValueError(f"this model was trained on canvases of {lengths} tokens, not {length}")
        settings = dataclasses.replace(self.settings, length=length, lengths=(length,))
        return dataclasses.replace(self, settings=settings)

    def fitting(self, text: str) -> tuple[str, str]:
        """The part of a text for which the longest canvas has room, and the rest."""
        return cut_to_fit(text, self.tokenizer, length=self.settings.lengths[-1])

    def pieces(self, text: str) -> list[str]:
        """A text of any length as pieces that fit the longest canvas; they end with a line where they can."""
        return split_to_fit(text, self.tokenizer, length=self.settings.lengths[-1])

    def canvas_length(self, texts: Sequence[str]) -> int:
        """The model's own where it has room for all texts, else the first longer one that does, or the longest."""
        longer = [length for length in self.settings.lengths if length >= self.settings.length]
        return fitting_length(texts, self.tokenizer, longer)

    def tokens_of(self, texts: Sequence[str], *, cut: bool = False) -> TokenIds:
        """Texts as canvases of one length."""
        length = self.canvas_length(texts)
        return text_canvases(texts, self.tokenizer, length=length, cut=cut).to(self.device)

    def canvas(self, length: int, given: Given = NOTHING) -> Int[Tensor, "N"]:
        """The beginning and what is given; the rest is masked."""
        return masked_canvas(given, self.tokenizer, length=length).tokens.to(self.device)

    def decoding(self, length: int | None, calls: int | None, choices: Choices) -> Decoding:
        return choices.decoding(self.settings.canvas(length), calls, self.tokenizer.special)

    # ------------------------------------------------------------ batches and costs

    def affordable_batch(self, length: int) -> int:
        return affordable_batch(self.demasker.config, length, self.device)

    def _in_batches(
        self,
        sample: Sample,
        canvas: Int[Tensor, "N"],
        key: tuple[str, int],
        count: int,
        batch_size: int | None,
        on_call: OnCall | None,
        decoding: Decoding,
        num_steps: int = 0,
    ) -> Generation:
        """`num_steps` of a prior are taken for each batch."""
        size, started_at = batch_size or self.affordable_batch(len(canvas)), time.perf_counter()
        num_ticks = decoding.plan.num_calls + num_steps
        watched = on_call is not None
        made = in_batches(sample, canvas, key, count=count, size=size, num_ticks=num_ticks, watched=watched)
        seconds = time.perf_counter() - started_at
        num_registers = None if made.registers is None else made.registers.shape[1]
        return Generation(
            texts=[self.tokenizer.decode(ids) for ids in made.tokens.tolist()],
            tokens=made.tokens,
            registers=made.registers,
            cost=made.cost,
            costs=made.costs,
            nfe=costs.mean(self.nfe, made.costs),
            flop_nfe=costs.mean(
                lambda cost: self.flop_nfe(cost, length=len(canvas), num_registers=num_registers), made.costs
            ),
            seconds=seconds,
        )

    def nfe(self, cost: Cost) -> float:
        """In the paper's unit; where the two priors differ in size, all calls count as of the larger one."""
        return costs.nfe(cost, demasker=self.demasker, prior=costs.largest((self.prior, self.conditional)))

    def flop_nfe(self, cost: Cost, *, length: int, num_registers: int | None) -> float:
        """In calls of the base over the bare text; `num_registers` is None where nothing guided."""
        is_bare = num_registers is None and self.base is not None  # else there is a prefix, if only an empty one
        return costs.flop_nfe(
            cost,
            demasker=self.demasker,
            prior=costs.largest((self.prior, self.conditional)),
            encoder=self.encoder,
            length=length,
            prefix=None if is_bare else num_registers or 0,
        )
