"""What every experiment is given: a model, held-out programs, a judge, and how much to do."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import nn

from crocodil.checkpoints.format import load_model
from crocodil.corpus.order import Order
from crocodil.corpus.shards import Corpus
from crocodil.models.llada import LLaDA
from crocodil.pipeline import Crocodil
from crocodil.pipeline.engine import compile_blocks
from crocodil.pipeline.folder import NETWORKS
from crocodil.processes.masking import mask_tokens
from crocodil.reproduce.judging import Court, Reference
from crocodil.reproduce.protocol import Setting
from crocodil.reproduce.store import MODEL, Row, Store
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.state import Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds
from crocodil.text.tokenizer import Tokenizer

WEIGHTS_LOOKED_AT = 64  # of each parameter, to tell models apart
DRAWING = "drawing"  # the part of a model that is no network
COPYING = ("demasker", "encoder")  # what the autoencoder uses, and all that decodes encoded registers
PRIORS = ("encoder", "prior", "conditional", "condition_encoder", DRAWING)
GENERATING = (*COPYING, *PRIORS[1:])
HALF = 0.5  # App. E: how much of a text is hidden where the conditional prior is measured


@dataclass(frozen=True, kw_only=True)
class Lab:
    pipe: Crocodil
    corpus: Corpus
    court: Court
    setting: Setting
    store: Store
    seed: int = 0
    variants: Mapping[str, Crocodil] = field(default_factory=dict)  # models of ablations, by name
    training: Mapping[str, Row] = field(default_factory=dict)  # records of runs, where they are known
    base: str = "of the model's own folder"  # where the base comes from, if there is one

    @classmethod
    def around(
        cls,
        pipe: Crocodil,
        *,
        corpus: Corpus,
        court: Court,
        setting: Setting,
        results: Path,
        seed: int = 0,
        variants: Mapping[str, Crocodil] | None = None,
        training: Mapping[str, Row] | None = None,
        base: Path | None = None,
    ) -> "Lab":
        """At the model's usual length, with the variants that have it; rows say under which conditions."""
        length = pipe.settings.length
        pipe = with_steps(pipe.at_length(length), setting)
        named = {
            name: with_steps(variant.at_length(length), setting)
            for name, variant in (variants or {}).items()
            if length in variant.settings.lengths
        }
        conditions = {
            MODEL: parts(pipe),
            "length": length,
            "setting": setting.name,
            "seed": seed,
            "judge": court.judge.name,
            "embedder": None if court.embedder is None else court.embedder.name,
            "corpus": corpus_fingerprint(corpus),
            "device": pipe.device.type,
            "dtype": str(next(pipe.demasker.parameters()).dtype).removeprefix("torch."),
            "ends": "cut at the first; they wait for what stands before them",  # decision D12
        }
        return cls(
            pipe=pipe,
            corpus=corpus,
            court=court,
            setting=setting,
            store=Store(results, conditions),
            seed=seed,
            variants=named,
            training=training or {},
            **({} if base is None else {"base": f"in {base}"}),
        )

    @property
    def length(self) -> int:
        return self.pipe.settings.length

    # ------------------------------------------------------------ held-out programs

    def texts(self, split: str, count: int) -> list[str]:
        """Programs of a split, always the same ones, as many as there are at most."""
        return held_out(self.corpus, self.pipe.tokenizer, split, length=self.length, count=count)

    @cached_property
    def references(self) -> dict[str, Reference]:
        """Real programs: of valid, where methods are chosen, and of test, where they are measured."""
        return {split: self.court.reference(self.texts(split, self.setting.num_samples)) for split in SPLITS}

    def streams(self, name: str, count: int, *, start: int = 0) -> Streams:
        return Streams.of(name, self.seed, samples=range(start, start + count), device=self.pipe.device)


SPLITS = ("valid", "test")


def held_out(corpus: Corpus, tokenizer: Tokenizer, split: str, *, length: int, count: int) -> list[str]:
    """The programs of a split in an order of their own, as text."""
    programs = corpus.programs(split, length=length)
    numbers = Order(len(programs), "reproduce").at(np.arange(min(count, len(programs))))
    return [tokenizer.decode(programs[int(number)].tolist()) for number in numbers]


# ---------------------------------------------------------------- registers


def drawn(pipe: Crocodil, count: int, *, seed: int) -> Draw:
    """From the prior, in batches, with the cost of each."""
    streams = Streams.of("registers", seed, samples=range(count), device=pipe.device)
    draws = [pipe.draw(some) for some in _split(streams, pipe)]
    return Draw(torch.cat([draw.registers for draw in draws]), draws[0].cost)


def drawn_given(pipe: Crocodil, tokens: TokenIds, *, seed: int, num_steps: int) -> RegisterBank:
    """From the conditional prior, given what is not masked of each program."""
    streams = Streams.of("registers", seed, samples=range(len(tokens)), device=pipe.device)
    batches = zip(tokens.split(batch_size(pipe)), _split(streams, pipe), strict=True)
    return torch.cat([pipe.draw_given(some, own, num_steps=num_steps).registers for some, own in batches])


def half_hidden(pipe: Crocodil, texts: Sequence[str], streams: Streams) -> TokenIds:
    tokens = pipe.tokens_of(texts, cut=True)
    mask_prob = torch.full((len(tokens),), HALF, device=tokens.device)
    return mask_tokens(tokens, mask_prob, mask_id=pipe.mask_id, streams=streams).noisy_tokens


def batch_size(pipe: Crocodil) -> int:
    return pipe.affordable_batch(pipe.settings.length)


def _split(streams: Streams, pipe: Crocodil) -> list[Streams]:
    return [Streams(keys) for keys in streams.keys.split(batch_size(pipe))]


# ---------------------------------------------------------------- models


def with_base(pipe: Crocodil, folder: Path | None) -> Crocodil:
    """Against a base that was trained apart; of another shape, its calls would cost something else."""
    if folder is None:
        return pipe
    base = load_model(folder, dtype=next(pipe.demasker.parameters()).dtype, device=pipe.device)
    if not isinstance(base, LLaDA):
        raise ValueError(f"{folder} holds a {type(base).__name__}: a base is a LLaDA without registers")
    if base.config != pipe.demasker.config.backbone:
        raise ValueError(f"the base in {folder} has another shape than the model's demasker: they do not compare")
    if pipe.compiled:
        compile_blocks([base])
    return replace(pipe, base=base.eval().requires_grad_(False))


def with_steps(pipe: Crocodil, setting: Setting) -> Crocodil:
    """Return the model with the protocol's changes to how registers are drawn."""
    drawing = replace(pipe.settings.drawing, **setting.drawing)
    return replace(pipe, settings=replace(pipe.settings, drawing=drawing))


def parts(pipe: Crocodil, uses: Collection[str] | None = None) -> Row:
    """What tells models apart: all networks, None where there is none, and how registers are drawn."""
    found = {
        **{name: fingerprint(getattr(pipe, name)) for name in NETWORKS},
        DRAWING: described(pipe.settings.drawing),
    }
    return found if uses is None else {name: found[name] for name in uses}


def described(drawing: Drawing) -> str:
    """Return the fields that differ from the defaults; rows stay valid when a knob is added."""
    usual = asdict(Drawing())
    changed = {name: value for name, value in asdict(drawing).items() if value != usual[name]}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "default"


def of_base(pipe: Crocodil) -> tuple[str, ...]:
    """The parts that plain masked diffusion uses: without a base of its own, the demasker with an empty prefix."""
    return ("base",) if pipe.base is not None else ("base", "demasker")


def fingerprint(network: nn.Module | None) -> str | None:
    """Tells networks apart by a few of all their weights: rows of another answer no question."""
    if network is None:
        return None
    digest = blake2b(digest_size=6)
    for parameter in network.parameters():
        digest.update(parameter.detach().flatten()[:WEIGHTS_LOOKED_AT].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def corpus_fingerprint(corpus: Corpus) -> str:
    return blake2b(repr(sorted(corpus.description["sha256"].items())).encode(), digest_size=6).hexdigest()


def price(pipe: Crocodil, cost: Cost, *, num_registers: int) -> tuple[float, float]:
    """The paper's NFE and the FLOP-weighted one, of calls that no generation counts."""
    return pipe.nfe(cost), pipe.flop_nfe(cost, length=pipe.settings.length, num_registers=num_registers)
