"""Presets: complete training runs for the vocabulary of a given corpus."""

from dataclasses import replace
from typing import Any

from crocodil.checkpoints.llada import llada_config
from crocodil.checkpoints.qwen3 import qwen3_config
from crocodil.checkpoints.tensors import CONFIG_FILE
from crocodil.corpus.shards import Corpus
from crocodil.models.demasker import DemaskerConfig
from crocodil.models.llada import LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoderConfig
from crocodil.objectives import DemaskerObjective, DistilObjective, PriorObjective
from crocodil.presets.models import llada_8b, paper_encoder, qwen25_coder_05b, smollm2_135m
from crocodil.runtime.config import read_json
from crocodil.training.adapting import LoRA
from crocodil.training.loop import LoopConfig
from crocodil.training.run_config import Pretrained, Run

# Algorithms 1, 4 and 5 as printed, without our additions.
PAPER_GUIDED_OBJECTIVE = DemaskerObjective(empty_prefix_rate=0.0, given_rate=0.0)
PAPER_PRIOR_OBJECTIVE = PriorObjective(condition_drop_rate=0.0, given_rate=0.0)


# ---------------------------------------------------------------- from scratch


def tiny(corpus: Corpus) -> Run:
    """All stages on a CPU in about a minute, with the real classes. The model is too small to be useful."""
    loop = LoopConfig(
        num_steps=120, batch_size=16, learning_rate=4e-3, warmup_steps=10, evaluate_every=60, save_every=40,
        average_decay=0.95,
    )  # fmt: skip
    prior = RegisterDenoiserConfig(num_registers=4, register_width=32, width=64, num_layers=2, num_heads=4)
    return Run(
        lengths=(64,),
        demasker=_demasker(corpus, width=64, num_layers=2, num_heads=4, num_registers=8, register_width=32),
        encoder=_encoder(corpus, width=64, num_layers=2, num_heads=4, num_registers=8, register_width=32),
        prior=prior,
        conditional=with_condition(prior, num_registers=8),
        base_loop=loop,
        guided_loop=loop,
        prior_loop=loop,
        conditional_loop=loop,
        distilled_loop=replace(loop, learning_rate=1e-3),
        prompted_loop=replace(loop, learning_rate=1e-3),
        head_loop=replace(loop, learning_rate=1e-3),
        encoder_warmup_steps=20,
    )


def laptop(corpus: Corpus) -> Run:
    """A night on a CPU of 4 to 8 cores: `small`'s method with 32 registers, on canvases of 128 tokens.

    Its sizes follow from the time: no other shape was tried.
    """
    loop = LoopConfig(
        num_steps=3000, batch_size=64, learning_rate=3e-3, optimiser="muon", warmup_steps=100, decay_share=0.3,
        weight_decay=0.1, evaluate_every=500, save_every=250,
    )  # fmt: skip
    prior_loop = replace(loop, num_steps=6000, batch_size=256, learning_rate=2e-3, weight_decay=0.01)
    prior = RegisterDenoiserConfig(
        num_registers=8, register_width=32, width=192, num_layers=4, num_heads=3, self_conditioned=True
    )
    demasker = _demasker(corpus, width=256, num_layers=4, num_heads=4, num_registers=32, register_width=32)
    encoder = _encoder(corpus, width=256, num_layers=2, num_heads=4, num_registers=32, register_width=32)
    return Run(
        lengths=(128,),
        demasker=replace(demasker, across_text=True),
        encoder=replace(encoder, across_text=True, causal=False),
        prior=prior,
        conditional=with_condition(prior, num_registers=32),
        base_loop=loop,
        guided_loop=loop,
        prior_loop=prior_loop,
        conditional_loop=prior_loop,
        distilled_loop=_distilled(prior_loop, num_steps=2000, learning_rate=3e-4),
        prompted_loop=_prompted(loop, num_steps=2000, learning_rate=3e-4),
        head_loop=_head(loop),
        guided_objective=DemaskerObjective(prefix_lengths=(1, 2, 4, 8, 8, 8, 16, 32), partial_rate=0.2),
        prior_objective=PriorObjective(bare_rate=0.8, condition_drop_rate=0.0),
        distil_objective=DistilObjective(teachers=("conditional",)),
        encoder_warmup_steps=0,
        encoder_begins_as_base=True,
    )


def small(corpus: Corpus) -> Run:
    """The first model, on a GPU of 8 GB: 64 registers, priors over 8, canvases of 256 and 512 tokens.

    One denoiser is both priors: it draws registers given a bare canvas, which encodes the length, or given text.
    So stage prior is not needed. docs/research-log.md describes how these numbers were chosen. A batch is computed
    in up to 8 micro-batches; with 48 GB, one is faster (`num_accumulated=1`). Shares of a batch, such as drafts,
    then are other samples.
    """
    loop = LoopConfig(
        num_steps=6000, batch_size=256, num_accumulated=8, learning_rate=3e-3, optimiser="muon",
        warmup_steps=150, decay_share=0.3, weight_decay=0.1, bf16=True, compile_blocks=True,
        evaluate_every=1000, save_every=3000,
    )  # fmt: skip
    prior_loop = replace(
        loop, num_steps=10_000, batch_size=2048, num_accumulated=1, learning_rate=2e-3, weight_decay=0.01
    )
    prior = RegisterDenoiserConfig(
        num_registers=8, register_width=64, width=512, num_layers=6, num_heads=4, self_conditioned=True
    )
    demasker = _demasker(corpus, width=512, num_layers=8, num_heads=4, num_registers=64, register_width=64)
    encoder = _encoder(corpus, width=512, num_layers=4, num_heads=4, num_registers=64, register_width=64)
    return Run(
        lengths=(256, 256, 512),
        demasker=replace(demasker, across_text=True),
        encoder=replace(encoder, across_text=True, causal=False),
        prior=prior,
        conditional=with_condition(prior, num_registers=64),
        base_loop=loop,
        guided_loop=loop,
        prior_loop=prior_loop,
        conditional_loop=prior_loop,
        distilled_loop=_distilled(prior_loop, learning_rate=1e-4),
        prompted_loop=_prompted(loop, learning_rate=1e-4),
        head_loop=_head(loop),
        guided_objective=DemaskerObjective(prefix_lengths=(1, 2, 4, 8, 8, 8, 8, 16, 32, 64), partial_rate=0.2),
        prior_objective=PriorObjective(bare_rate=0.8, condition_drop_rate=0.0),
        distil_objective=DistilObjective(teachers=("conditional",)),
        encoder_warmup_steps=0,
        encoder_begins_as_base=True,
        encode_batch=512,
    )


# ---------------------------------------------------------------- from a causal language model


def medium(corpus: Corpus) -> Run:
    """Qwen2.5-Coder-0.5B as base and encoder, on one GPU of 24 GB: 512 tokens, all weights trained.

    The shapes are those of the public checkpoint; with --causal they are those of the given folder, for example
    of a trimmed one. The encoder begins as the first 8 layers of the base. Registers and priors are `small`'s.
    Nothing of this was trained here.
    """
    backbone = qwen25_coder_05b()
    loop = LoopConfig(
        num_steps=4000, batch_size=128, num_accumulated=32, learning_rate=3e-4, warmup_steps=200, decay_share=0.3,
        weight_decay=0.1, bf16=True, compile_blocks=True, evaluate_every=1000, save_every=1000,
    )  # fmt: skip
    like = small(corpus)
    return replace(
        like,
        lengths=(512,),
        demasker=replace(like.demasker, backbone=backbone),
        encoder=_encoder_like(like.encoder, backbone, num_layers=8),
        base_loop=loop,
        guided_loop=loop,
        prompted_loop=_prompted(loop, learning_rate=1e-4),
        head_loop=_head(loop),
        encode_batch=128,
    )


def builtin(corpus: Corpus) -> Run:
    """The method of the built-in model, on a GPU of 16 GB: 16 layers of SmolLM2-135M, a denoiser in four steps.

    Each stage is one run, with about as many steps as the runs of the built-in model had together (its card lists
    them). With --causal the shapes are those of the given folder. As a whole, this preset was not run.
    """
    loop = LoopConfig(
        num_steps=2250, batch_size=256, num_accumulated=8, learning_rate=2e-3, optimiser="muon", warmup_steps=150,
        decay_share=0.4, weight_decay=0.1, average_decay=0.995, bf16=True, compile_blocks=True,
        evaluate_every=1000, save_every=3000,
    )  # fmt: skip
    like = small(corpus)
    backbone = _smollm2(corpus, num_layers=16)
    prior = replace(like.prior, num_registers=16, width=768, num_heads=6, self_conditioned=False)
    return replace(
        like,
        demasker=replace(like.demasker, backbone=backbone),
        encoder=_encoder_like(like.encoder, backbone, num_layers=4),
        prior=prior,
        conditional=with_condition(prior, num_registers=64),
        base_loop=replace(loop, decay_share=0.0),
        guided_loop=replace(loop, num_steps=8200, learning_rate=1.4e-3, average_decay=0.99),
        prior_loop=replace(like.prior_loop, num_steps=8700),
        conditional_loop=replace(
            loop, num_steps=8700, batch_size=2048, num_accumulated=16, learning_rate=1.4e-3, decay_share=0.7
        ),
        distilled_loop=replace(
            loop, num_steps=3600, num_accumulated=4, learning_rate=5e-4, decay_share=0.5, weight_decay=0.01,
            warmup_steps=100, average_decay=0.997,
        ),
        head_loop=_head(loop, num_steps=2000),
        guided_objective=DemaskerObjective(
            register_cosine=0.35, uniform_noise=True, prefix_lengths=(2, 4, 8, 16, 16, 16, 16, 16, 32, 64),
            partial_rate=0.2, draft_rate=0.5,
        ),
        prior_objective=PriorObjective(
            largest_offset=0.0, time_shift=0.5, smallest_noise=0.7, condition_drop_rate=0.0, bare_rate=0.75
        ),
        distil_objective=DistilObjective(teachers=("conditional",), by_matching=True),
        denoiser_begins_as_demasker=True,
    )  # fmt: skip


# ---------------------------------------------------------------- from pretrained networks


def paper(corpus: Corpus, pretrained: Pretrained) -> Run:
    """Sec. 5, App. C and E: LLaDA-8B and Qwen3-Embedding-0.6B, 128 registers of width 1024, 28-layer denoisers.

    Programs of up to 4096 tokens, priors over all registers; our additions are in `paper_plus`. Shapes are those
    of the given folders, or the paper's if there are none (for an estimate). The paper does not state the priors'
    schedule, the warm-up of the learning rate, averaging and clipping: these are our choices.
    """
    backbone, encoder = _pretrained_shapes(pretrained)
    length, epochs, batch_size = 4096, 3, 512
    num_steps = -(-epochs * len(corpus.programs("train", length=length)) // batch_size)
    loop = LoopConfig(
        num_steps=num_steps, batch_size=batch_size, learning_rate=2.5e-5, weight_decay=0.1, warmup_steps=200,
        average_decay=0.999, bf16=True, compile_blocks=True, recompute_blocks=True, num_accumulated=32,
    )  # fmt: skip
    prior_loop = replace(
        loop, num_steps=200_000, batch_size=2048, learning_rate=1e-4, warmup_steps=2000, weight_decay=0.01,
        average_decay=0.9999, recompute_blocks=False, num_accumulated=8,
    )  # fmt: skip
    prior = RegisterDenoiserConfig(num_registers=encoder.num_registers, register_width=encoder.register_width)
    return Run(
        lengths=(length,),
        demasker=DemaskerConfig(
            backbone=backbone, num_registers=encoder.num_registers, register_width=encoder.register_width
        ),
        encoder=encoder,
        prior=prior,
        conditional=with_condition(prior, num_registers=encoder.num_registers),
        base_loop=loop,
        guided_loop=loop,
        prior_loop=prior_loop,
        conditional_loop=prior_loop,
        distilled_loop=_distilled(prior_loop, num_steps=25_000, learning_rate=5e-5),
        prompted_loop=_prompted(loop, num_steps=25_000, learning_rate=5e-5),
        head_loop=_head(loop),
        guided_objective=PAPER_GUIDED_OBJECTIVE,
        prior_objective=PAPER_PRIOR_OBJECTIVE,
        pretrained=pretrained,
    )


def paper_plus(corpus: Corpus, pretrained: Pretrained) -> Run:
    """The paper's run with our additions: the model also decodes without registers, and with a prompt.

    A tenth of the samples have no registers (D14), a tenth a given prefix or suffix, for the priors a quarter
    (D24), and a tenth the null condition (D15). The priors model the first 8 registers (D19).
    """
    run = paper(corpus, pretrained)
    prior = replace(run.prior, num_registers=8)
    return replace(
        run,
        guided_objective=DemaskerObjective(empty_prefix_rate=0.1, given_rate=0.1),
        prior_objective=PriorObjective(condition_drop_rate=0.1, given_rate=0.25),
        prior=prior,
        conditional=with_condition(prior, num_registers=run.encoder.num_registers),
    )


def paper_one_gpu(corpus: Corpus, pretrained: Pretrained) -> Run:
    """The paper's objectives on one GPU of 80 GB: programs of up to 512 tokens, and LoRA.

    LLaDA is frozen in bfloat16; adapters of rank 64 are trained at a higher learning rate.
    """
    run = paper(corpus, pretrained)
    length = 512
    num_steps = -(-3 * len(corpus.programs("train", length=length)) // run.guided_loop.batch_size)
    loop = replace(run.guided_loop, num_steps=num_steps, num_accumulated=64)
    return replace(
        run, lengths=(length,), base_loop=loop, guided_loop=replace(loop, learning_rate=1e-4), lora=LoRA(),
        prompted_objective=replace(run.prompted_objective, demasker_learns=False),
    )  # fmt: skip


# ---------------------------------------------------------------- presets by name

FROM_SCRATCH = {"tiny": tiny, "laptop": laptop, "small": small}
FROM_CAUSAL = {"builtin": builtin, "medium": medium}
FROM_PRETRAINED = {"paper": paper, "paper-plus": paper_plus, "paper-one-gpu": paper_one_gpu}


def preset(name: str, corpus: Corpus, pretrained: Pretrained) -> Run:
    """Return the preset with this name for a corpus and, if it starts from public checkpoints, their folders."""
    if name in FROM_PRETRAINED:
        return FROM_PRETRAINED[name](corpus, pretrained)
    others = FROM_SCRATCH | FROM_CAUSAL
    if name not in others:
        raise ValueError(f"no preset {name!r}: choose one of {', '.join([*others, *FROM_PRETRAINED])}")
    if pretrained != Pretrained():
        start = "trains from scratch" if name in FROM_SCRATCH else "begins as a causal model (--causal)"
        raise ValueError(f"preset {name} {start}: --llada and --qwen are for {', '.join(FROM_PRETRAINED)}")
    return others[name](corpus)


# ---------------------------------------------------------------- network shapes


def _demasker(
    corpus: Corpus, *, width: int, num_layers: int, num_heads: int, num_registers: int, register_width: int
) -> DemaskerConfig:
    vocabulary = corpus.description["tokenizer"]
    special = vocabulary["special"]
    if special["mask"] is None:
        raise ValueError("the tokenizer of the corpus has no mask token: a demasker cannot be trained on it")
    backbone = LLaDAConfig(
        vocab_size=vocabulary["vocab_size"],
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        mlp_width=_gated_width(width),
        rope_theta=10_000.0,
        mask_id=special["mask"],
        eos_id=special["eos"],
        pad_id=special["pad"],
    )
    return DemaskerConfig(backbone=backbone, num_registers=num_registers, register_width=register_width)


def _encoder(
    corpus: Corpus, *, width: int, num_layers: int, num_heads: int, num_registers: int, register_width: int
) -> RegisterEncoderConfig:
    vocabulary = corpus.description["tokenizer"]
    return RegisterEncoderConfig(
        vocab_size=vocabulary["vocab_size"],
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_width=width // num_heads,
        mlp_width=_gated_width(width),
        rope_theta=10_000.0,
        end_id=vocabulary["special"]["eos"],
        num_registers=num_registers,
        register_width=register_width,
    )


def _smollm2(corpus: Corpus, *, num_layers: int) -> LLaDAConfig:
    """Return the shape of SmolLM2-135M with fewer layers and the tokens of the corpus."""
    vocabulary = corpus.description["tokenizer"]
    ids: Any = {f"{name}_id": vocabulary["special"][name] for name in ("mask", "eos", "pad")}
    return replace(smollm2_135m(), num_layers=num_layers, vocab_size=vocabulary["vocab_size"], **ids)


def _encoder_like(
    encoder: RegisterEncoderConfig, backbone: LLaDAConfig, *, num_layers: int
) -> RegisterEncoderConfig:
    """Return an encoder that can be initialised from the first layers of a causal model."""
    return replace(
        encoder, vocab_size=backbone.vocab_size, width=backbone.width, num_layers=num_layers,
        num_heads=backbone.num_heads, num_kv_heads=backbone.num_kv_heads, head_width=backbone.head_width,
        mlp_width=backbone.mlp_width, rope_theta=backbone.rope_theta, norm_eps=backbone.norm_eps,
        qkv_bias=backbone.qkv_bias, without_qk_norm=True, end_id=backbone.eos_id,
    )  # fmt: skip


def _pretrained_shapes(pretrained: Pretrained) -> tuple[LLaDAConfig, RegisterEncoderConfig]:
    backbone, encoder = llada_8b(), paper_encoder()
    if pretrained.llada is not None:
        file = pretrained.llada / CONFIG_FILE
        backbone = llada_config(read_json(file), source=file)
    if pretrained.qwen is not None:
        file = pretrained.qwen / CONFIG_FILE
        encoder = qwen3_config(read_json(file), source=file, num_registers=encoder.num_registers)
    return backbone, encoder


def with_condition(prior: RegisterDenoiserConfig, *, num_registers: int) -> RegisterDenoiserConfig:
    """Return the same denoiser with cross-attention to all registers of the visible text."""
    return replace(prior, condition_width=prior.register_width, condition_length=num_registers)


def _distilled(loop: LoopConfig, **changes: Any) -> LoopConfig:
    """Return the loop of stage distilled: AdamW at a low rate, since a student begins as the prior."""
    return replace(loop, optimiser="adamw", **changes)


def _prompted(loop: LoopConfig, **changes: Any) -> LoopConfig:
    """Return the loop of stage prompted: AdamW at a low rate, since its networks begin as those of the run."""
    return replace(loop, optimiser="adamw", warmup_steps=min(loop.warmup_steps, 100), **changes)


def _head(loop: LoopConfig, **changes: Any) -> LoopConfig:
    """Return the loop of stage head: AdamW at a high rate and a tenth of the steps, since the head is small."""
    settings: dict[str, Any] = {
        "num_steps": -(-loop.num_steps // 10), "optimiser": "adamw", "learning_rate": 1e-3, "warmup_steps": 100,
        "decay_share": 0.5, "weight_decay": 0.01, "average_decay": 0.99,
    }  # fmt: skip
    return replace(loop, **settings | changes)


def _gated_width(width: int) -> int:
    """Return the width of a gated MLP with as many parameters as a plain one of 4 x width, in multiples of 64."""
    return -(-8 * width // 3 // 64) * 64
