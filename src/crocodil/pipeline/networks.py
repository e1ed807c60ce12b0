"""The networks of one model, with its tokenizer and settings: load them, save them, check that they fit together.

`crocodil.py` uses them to encode, decode and generate.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from crocodil.checkpoints.hub import UPLOAD, upload
from crocodil.checkpoints.quantised import Bits
from crocodil.checkpoints.tensors import Device, StrPath
from crocodil.models.causal_head import CausalHead
from crocodil.models.demasker import Demasker
from crocodil.models.length_head import LengthHead
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.pipeline.canvases import NOTHING, Given, fitting_length, masked_canvases
from crocodil.pipeline.card import UNKNOWN, Card
from crocodil.pipeline.drawing import Priors
from crocodil.pipeline.engine import compile_blocks, engine_for
from crocodil.pipeline.folder import (
    NETWORKS,
    MomentsByNetwork,
    bits_by_network,
    check_causal_head,
    check_networks,
    check_prompted,
    check_vocabulary,
    check_weak_prior,
    load_networks,
    parts_of,
    write_folder,
)
from crocodil.pipeline.pricing import Pricing
from crocodil.pipeline.running import Runner
from crocodil.pipeline.settings import BUILTIN, Settings
from crocodil.runtime.devices import checked_device, default_dtype
from crocodil.sampling.call import Engine
from crocodil.sampling.cost import num_parameters
from crocodil.sampling.guidance import Guided
from crocodil.sampling.state import Canvas
from crocodil.text.retokenizer import Retokenizer
from crocodil.text.tokenizer import Tokenizer

Model = TypeVar("Model", bound="Networks")  # the shape checks of the tests cannot read `Self`


@dataclass(frozen=True, kw_only=True, repr=False)
class Networks:
    """The networks of one model. A network that is None is missing; most have a substitute."""

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
    causal_head: CausalHead | None = None  # draws the tokens of a call one after the other (decision D88)
    base: LLaDA | None = None  # trained by itself; None: the demasker without registers (decision D14)
    encoder_tokenizer: Tokenizer | None = None  # of an encoder with another vocabulary (decision D7)
    compiled: bool = False
    compiled_reveal: bool = True  # in a compiled model

    def __post_init__(self) -> None:
        if self.tokenizer.special.mask is None:
            raise ValueError("the tokenizer has no mask token: a demasker needs one")
        config = self.demasker.config
        check_vocabulary("demasker", config.backbone.vocab_size, self.tokenizer)
        check_vocabulary("encoder", self.encoder.config.vocab_size, self.encoder_tokenizer or self.tokenizer)
        check_networks(self.demasker, self.encoder, self.prior, self.conditional, self.condition_encoder)
        check_prompted(self.encoder, self.prompted, self.length_head, self.prompt_encoder)
        check_causal_head(self.demasker, self.causal_head)
        if self.weak_prior is not None:
            check_weak_prior(self.weak_prior, (self.prior, self.conditional))

    def __repr__(self) -> str:
        millions = sum(map(num_parameters, self.networks.values())) / 1e6
        lengths = " or ".join(map(str, self.settings.lengths))
        return (
            f"{type(self).__name__}({millions:.1f} M parameters, canvases of {lengths} tokens, "
            f"method {self.settings.method}, on {self.device})"
        )

    # ------------------------------------------------------------ files

    @classmethod
    def from_pretrained(
        cls: type[Model],
        path_or_name: StrPath = BUILTIN,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> Model:
        """Load the model in a folder, on the hub (`owner/name` or `owner/name@revision`), or the built-in one.

        It goes to the GPU if there is one, in bfloat16. Compiling takes up to a minute at first use and pays off
        for thousands of texts.
        """
        return cls.assemble(**parts_of(path_or_name), device=device, dtype=dtype, compiled=compiled)

    @classmethod
    def assemble(
        cls: type[Model],
        networks: Mapping[str, StrPath],
        *,
        tokenizer: StrPath,
        encoder_tokenizer: StrPath | None = None,
        settings: Settings,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        compiled: bool = False,
    ) -> Model:
        """Load networks that were saved one by one, such as the finished stages of a training run."""
        device = torch.device(checked_device(device))
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
        moments: MomentsByNetwork | None = None,
        card: Card = UNKNOWN,
    ) -> None:
        """Write a model folder; an existing folder is never overwritten.

        With 8 bits (or `int8`) it takes a quarter of the size, with 4 bits about a sixth. Each network may have
        its own: `bits={"demasker": 8, "encoder": 4}`. Fewer bits than 8 lose less with the `moments` of
        `calibrate` (decision D82). README.md is its model card: shapes and use, and what `card` adds to them.
        """
        self._write(Path(directory), Path(directory).name, bits_by_network(bits, int8=int8), card, moments)

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        token: str | None = None,
        commit_message: str = UPLOAD,
        bits: int | Mapping[str, int] | None = None,
        int8: bool = False,
        moments: MomentsByNetwork | None = None,
        card: Card = UNKNOWN,
    ) -> str:
        """Save the model to a repository `owner/name` of the hub; return the address of the commit."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            self._write(folder, repository, bits_by_network(bits, int8=int8), card, moments)
            return upload(folder, repository, private=private, token=token, message=commit_message)

    def _write(
        self,
        directory: Path,
        name: str,
        bits: Mapping[str, Bits | None],
        card: Card,
        moments: MomentsByNetwork | None,
    ) -> None:
        write_folder(
            directory,
            self.settings,
            self.tokenizer,
            self.networks,
            self.encoder_tokenizer,
            card=card,
            name=name,
            bits=bits,
            moments=moments,
        )

    # ------------------------------------------------------------ parts that are made of them

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The networks that the model has, by the names of its folders."""
        return {name: network for name in NETWORKS if (network := getattr(self, name)) is not None}

    @property
    def first_prior(self) -> RegisterDenoiser | None:
        """The network that draws the first registers: the prior or, if there is none, the conditional prior."""
        return self.conditional if self.prior is None else self.prior

    @property
    def device(self) -> torch.device:
        return self.demasker.boundaries.device

    @property
    def mask_id(self) -> int:
        assert self.tokenizer.special.mask is not None
        return self.tokenizer.special.mask

    @cached_property
    def retokenizer(self) -> Retokenizer | None:
        return None if self.encoder_tokenizer is None else Retokenizer(self.tokenizer, self.encoder_tokenizer)

    @cached_property
    def engine(self) -> Engine:
        """Return the engine; on CUDA it records calls as graphs and replays them."""
        return engine_for(self.device, compiled=self.compiled, compiled_reveal=self.compiled_reveal)

    def guided(self, num_registers: int | None = None) -> Guided:
        """Return the demasker as samplers call it; it reads the first registers only, or all."""
        return Guided(self.demasker, num_registers, self.causal_head)

    @cached_property
    def priors(self) -> Priors:
        return Priors(
            prior=self.prior,
            conditional=self.conditional,
            weak=self.weak_prior,
            encoder=self.encoder if self.condition_encoder is None else self.condition_encoder,
            tokenizer=self.tokenizer,
            retokenizer=self.retokenizer,
            engine=self.engine,
        )

    @cached_property
    def pricing(self) -> Pricing:
        priors = (self.prior, self.conditional)
        return Pricing(self.demasker, self.encoder, priors, self.causal_head, has_base=self.base is not None)

    @cached_property
    def runner(self) -> Runner:
        return Runner(self.demasker, self.tokenizer, self.pricing)

    def canvas_length(self, texts: Sequence[str]) -> int:
        """Return the default length if all texts fit, else the next longer one that fits, or the longest."""
        longer = [length for length in self.settings.lengths if length >= self.settings.length]
        return fitting_length(texts, self.tokenizer, longer)

    def canvas(self, length: int, given: Given | Sequence[Given] = NOTHING) -> Canvas:
        """Return one canvas: BOS, given text, masks. A base needs BOS: without it, all positions look the same."""
        givens = [given] if isinstance(given, Given) else given
        return masked_canvases(givens, self.tokenizer, length=length).to(self.device)
