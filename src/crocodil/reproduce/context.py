"""The context of an experiment: a model, held-out programs, the evaluator, the protocol and the store of rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import torch
from torch import nn

from crocodil.checkpoints.format import load_model
from crocodil.corpus.pairs import Pairs
from crocodil.corpus.shards import Corpus
from crocodil.judges import Evaluator, LanguageModel, Reference
from crocodil.models.llada import LLaDA
from crocodil.pipeline import Crocodil
from crocodil.pipeline.engine import compile_blocks
from crocodil.pipeline.folder import NETWORKS
from crocodil.processes.masking import mask_tokens
from crocodil.reproduce.fixed_protocol import PROTOCOL, TEST_CORPUS
from crocodil.reproduce.held_out import HeldOut, corpus_fingerprint
from crocodil.reproduce.protocol import Protocol
from crocodil.reproduce.store import MODEL, Row, Store
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.cost import Cost, num_parameters
from crocodil.sampling.state import Draw
from crocodil.seeding import Streams
from crocodil.shapes import RegisterBank, TokenIds

# Networks that answer prompts. Only rows about prompts depend on them, and name them.
FOR_PROMPTS = ("prompted", "prompt_encoder", "length_head", "prompted_demasker")
WEIGHTS_PER_TENSOR = 64  # hashed to tell models apart
DRAWING = "drawing"  # the part of a model that is not a network: how registers are drawn
AUTOENCODER_PARTS = ("demasker", "encoder")  # also used wherever encoded registers are decoded
PRIOR_PARTS = ("encoder", "prior", "conditional", "condition_encoder", DRAWING)
GENERATION_PARTS = (*AUTOENCODER_PARTS, *PRIOR_PARTS[1:])
HALF = 0.5  # the mask probability at which the conditional prior is measured (App. E)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every experiment is given."""

    pipe: Crocodil
    corpus: Corpus
    test_corpus: Corpus | None = None  # the test programs come from it; None: from `corpus`, as all others
    evaluator: Evaluator
    protocol: Protocol
    store: Store
    seed: int = 0
    variants: Mapping[str, Crocodil] = field(default_factory=dict)  # models for ablations, by name
    compared: Mapping[str, Crocodil] = field(default_factory=dict)  # models in the same tables, by name
    training: Mapping[str, Row] = field(default_factory=dict)  # records of the training runs, if known
    pairs: Pairs | None = None  # prompts and answers
    causal: LanguageModel | None = None  # answers the same prompts, as an upper anchor
    base: str = "of the model's own folder"  # where the base comes from, if there is one; kept in rows
    _references: dict[str, Reference] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def for_model(
        cls,
        pipe: Crocodil,
        *,
        corpus: Corpus,
        test_corpus: Corpus | None = None,
        evaluator: Evaluator,
        protocol: Protocol,
        results: Path,
        seed: int = 0,
        variants: Mapping[str, Crocodil] | None = None,
        compared: Mapping[str, Crocodil] | None = None,
        training: Mapping[str, Row] | None = None,
        base: Path | None = None,
        protocol_digest: str | None = None,
        pairs: Pairs | None = None,
        causal: LanguageModel | None = None,
    ) -> "Context":
        """Return the context of a model at its current length, with the variants trained at that length."""
        length = pipe.settings.length
        protocol = protocol.at(length)
        pipe = with_steps(pipe.at_length(length), protocol)
        named, beside = (
            {
                name: with_steps(model.at_length(length), protocol)
                for name, model in (models or {}).items()
                if length in model.settings.lengths
            }
            for models in (variants, compared)
        )
        for name, model in beside.items():
            _check_same_unit(pipe, model, name)
        for model in (pipe, *named.values(), *beside.values()):
            evaluator.check_unrelated(lineage(model))
            evaluator = evaluator.unrelated_to(lineage(model))
        conditions = {
            MODEL: parts(pipe),
            "length": length,
            "setting": protocol.name,  # the key under which committed rows hold it
            "seed": seed,
            "judge": evaluator.judge.name,
            "embedder": None if evaluator.embedder is None else evaluator.embedder.name,
            "corpus": corpus_fingerprint(corpus),
            "device": pipe.device.type,
            "dtype": str(next(pipe.demasker.parameters()).dtype).removeprefix("torch."),
            "ends": "cut at the first; they wait for what stands before them",  # decision D12
            **({} if test_corpus is None else {TEST_CORPUS: corpus_fingerprint(test_corpus)}),
            **({} if protocol_digest is None else {PROTOCOL: protocol_digest}),
            **({"weak_prior": fingerprint(pipe.weak_prior)} if "autoguidance" in protocol.swept_names else {}),
        }
        return cls(
            pipe=pipe,
            corpus=corpus,
            test_corpus=test_corpus,
            evaluator=evaluator,
            protocol=protocol,
            store=Store(results, conditions),
            seed=seed,
            variants=named,
            compared=beside,
            training=training or {},
            pairs=pairs,
            causal=causal,
            **({} if base is None else {"base": f"in {base}"}),
        )

    @property
    def length(self) -> int:
        return self.pipe.settings.length

    # ------------------------------------------------------------ held-out programs

    def texts(self, split: str, count: int) -> list[str]:
        """Return up to `count` programs of a split, always the same ones."""
        is_elsewhere = split == "test" and self.test_corpus is not None
        return (self._fresh if is_elsewhere else self._held_out).texts(split, count)

    @cached_property
    def _held_out(self) -> HeldOut:
        return HeldOut(self.corpus, self.pipe.tokenizer, self.length)

    @cached_property
    def _fresh(self) -> HeldOut:
        assert self.test_corpus is not None
        return HeldOut(self.test_corpus, self.pipe.tokenizer, self.length)

    def reference(self, split: str) -> Reference:
        """Return real programs as a reference: valid to choose a candidate, test to measure it."""
        if split not in self._references:
            self._references[split] = self.evaluator.reference(self.texts(split, self.protocol.num_samples))
        return self._references[split]

    @cached_property
    def real_on_valid(self) -> Row:
        """Judge real programs of valid like the samples of a candidate: as many, against the same reference."""
        count, start = self.protocol.num_swept, self.protocol.num_samples
        evaluator = replace(self.evaluator, other_judges=())
        texts = self.texts("valid", start + count)[start:]
        if len(texts) < count:
            raise ValueError(
                f"aims need {start:,} + {count:,} validation programs (num_samples + num_swept), and there are "
                f"{start + len(texts):,}: lower one of the two numbers"
            )
        return evaluator.evaluate(texts, self.reference("valid"))

    def streams(self, name: str, count: int, *, start: int = 0) -> Streams:
        return Streams.of(name, self.seed, samples=range(start, start + count), device=self.pipe.device)


# ---------------------------------------------------------------- registers


def draw_from_prior(pipe: Crocodil, count: int, *, seed: int) -> Draw:
    """Draw registers from the prior, in batches, with the cost per program."""
    streams = Streams.of("registers", seed, samples=range(count), device=pipe.device)
    draws = [pipe.draw(batch) for batch in _split(streams, pipe)]
    return Draw(torch.cat([draw.registers for draw in draws]), draws[0].cost)


def draw_from_conditional(pipe: Crocodil, tokens: TokenIds, *, seed: int, num_steps: int) -> RegisterBank:
    """Draw registers from the conditional prior, given the unmasked tokens of each program."""
    streams = Streams.of("registers", seed, samples=range(len(tokens)), device=pipe.device)
    batches = zip(tokens.split(batch_size(pipe)), _split(streams, pipe), strict=True)
    return torch.cat([pipe.draw_given(given, batch, num_steps=num_steps).registers for given, batch in batches])


def mask_half(pipe: Crocodil, texts: Sequence[str], streams: Streams) -> TokenIds:
    """Return the tokens of the texts, each masked with probability 1/2."""
    tokens = pipe.tokens_of(texts, cut=True)
    mask_prob = torch.full((len(tokens),), HALF, device=tokens.device)
    return mask_tokens(tokens, mask_prob, mask_id=pipe.mask_id, streams=streams).noisy_tokens


def batch_size(pipe: Crocodil) -> int:
    return pipe.affordable_batch(pipe.settings.length)


def _split(streams: Streams, pipe: Crocodil) -> list[Streams]:
    return [Streams(keys) for keys in streams.keys.split(batch_size(pipe))]


# ---------------------------------------------------------------- models


def with_base(pipe: Crocodil, folder: Path | None) -> Crocodil:
    """Return the model with a separate base, which must have the demasker's shape so that calls cost the same."""
    if folder is None:
        return pipe
    base = load_model(folder, dtype=next(pipe.demasker.parameters()).dtype, device=pipe.device)
    if not isinstance(base, LLaDA):
        raise ValueError(f"{folder} holds a {type(base).__name__}: a base is a LLaDA without registers")
    if base.config != pipe.demasker.config.backbone:
        raise ValueError(
            f"the base in {folder} has another shape than the model's demasker: train one with its config"
        )
    if pipe.compiled:
        compile_blocks([base])
    return replace(pipe, base=base.eval().requires_grad_(False))


def _check_same_unit(pipe: Crocodil, other: Crocodil, name: str) -> None:
    """The costs of all models in a table are in calls of one base."""
    if num_parameters(pipe.demasker.backbone) != num_parameters(other.demasker.backbone):
        raise ValueError(f"the compared model {name!r} has a demasker of another size: costs cannot be compared")


def lineage(pipe: Crocodil) -> set[str]:
    """Return the families of the pretrained models that the weights of a model come from."""
    configs = [network.config for name in NETWORKS if (network := getattr(pipe, name)) is not None]
    backbones = [getattr(config, "backbone", config) for config in configs]
    return {family for config in backbones for family in getattr(config, "parents", ())}


def with_steps(pipe: Crocodil, protocol: Protocol) -> Crocodil:
    """Return the model with the protocol's changes to how registers are drawn."""
    drawing = replace(pipe.settings.drawing, **protocol.drawing)
    return replace(pipe, settings=replace(pipe.settings, drawing=drawing))


def parts(pipe: Crocodil, uses: Collection[str] | None = None) -> Row:
    """Return what identifies a model: a fingerprint per network (None if absent), and how registers are drawn."""
    drawing = described(pipe.settings.drawing)
    if pipe.settings.drawing.autoguidance != 1:  # part of the drawing, so that rows without it stay valid
        drawing += f", weak_prior {fingerprint(pipe.weak_prior)}"
    if pipe.causal_head is not None:
        drawing += f", causal_head {fingerprint(pipe.causal_head)}"
    networks = [name for name in NETWORKS if name not in ("weak_prior", "causal_head", *FOR_PROMPTS)]
    all_parts = {**{name: fingerprint(getattr(pipe, name)) for name in networks}, DRAWING: drawing}
    return all_parts if uses is None else {name: all_parts[name] for name in uses}


def described(settings: Decoding | Drawing) -> str:
    """Return the fields that differ from the defaults; rows stay valid when a knob is added."""
    usual = asdict(type(settings)())
    changed = {name: value for name, value in asdict(settings).items() if value != usual[name]}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "default"


def parts_of_base(pipe: Crocodil) -> tuple[str, ...]:
    """Return the parts that the base method uses: if there is no base network, the demasker without registers."""
    return ("base",) if pipe.base is not None else ("base", "demasker")


def fingerprint(network: nn.Module | None) -> str | None:
    """Return a hash of a few weights of each parameter. Rows of another network are not used."""
    if network is None:
        return None
    digest = blake2b(digest_size=6)
    for parameter in network.parameters():
        digest.update(parameter.detach().flatten()[:WEIGHTS_PER_TENSOR].float().cpu().numpy().tobytes())
    return digest.hexdigest()


def nfe_and_flop_nfe(pipe: Crocodil, cost: Cost, *, num_registers: int) -> tuple[float, float]:
    """Return the paper's NFE and the FLOP-weighted NFE of a cost that is not part of a generation."""
    return pipe.nfe(cost), pipe.flop_nfe(cost, length=pipe.settings.length, num_registers=num_registers)
