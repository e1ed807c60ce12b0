"""How fast text is sampled: the loop over its floor, the prior in demasker calls, us and LLaDA's own procedure.

    python benchmarks/sampling.py --model small --compiled       # one GPU
    python benchmarks/sampling.py --model 8b                     # 8B-shaped, random weights
    python benchmarks/sampling.py --model small --only cpu       # seconds a program on this machine's cores
    python benchmarks/sampling.py --only cpu-batch               # CPU seconds a text by batch size, built-in model

All networks have random weights: speed does not depend on them. Everything in a row is measured in the same run.
"""

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from clock import seconds, show

from crocodil.models.demasker import Demasker, DemaskerConfig
from crocodil.models.llada import LLaDA, LLaDAConfig
from crocodil.models.register_denoiser import RegisterDenoiser, RegisterDenoiserConfig
from crocodil.models.register_encoder import RegisterEncoder, RegisterEncoderConfig
from crocodil.pipeline import Crocodil
from crocodil.pipeline.engine import compile_blocks
from crocodil.presets.models import paper_conditional_prior, paper_demasker, paper_encoder, paper_prior
from crocodil.runtime.graphs import Recorder
from crocodil.sampling.algorithms import con_within_disc
from crocodil.sampling.call import PLAIN, Engine, reveal, reveal_rule
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.decode import decode, planned_calls
from crocodil.sampling.guidance import Guided, Unguided
from crocodil.sampling.register_draw import Conditions, Prior, draw_registers
from crocodil.sampling.state import Canvas, Draw
from crocodil.seeding import Streams, generator_for

SMALL = LLaDAConfig(
    vocab_size=8192, width=512, num_layers=8, num_heads=4, num_kv_heads=4, mlp_width=1408, rope_theta=1e4,
    mask_id=0, eos_id=2, pad_id=3,
)  # fmt: skip


def networks(model: str, device: str, dtype: torch.dtype):
    """Demasker, encoder, prior and conditional prior with random weights."""
    if model == "8b":
        shapes = (paper_demasker(), paper_encoder(), paper_prior(8), paper_conditional_prior(8))
    else:
        prior = RegisterDenoiserConfig(
            num_registers=8, register_width=64, width=512, num_layers=6, num_heads=4, self_conditioned=True
        )
        encoder = RegisterEncoderConfig(
            vocab_size=8192, width=512, num_layers=4, num_heads=4, num_kv_heads=4, head_width=128, mlp_width=1408,
            end_id=2, num_registers=64, register_width=64, causal=False, across_text=True,
        )  # fmt: skip
        demasker = DemaskerConfig(backbone=SMALL, num_registers=64, register_width=64, across_text=True)
        shapes = (demasker, encoder, prior, replace(prior, condition_width=64, condition_length=64))
    torch.set_default_dtype(dtype)
    with torch.device(device):
        made = [build(shape) for build, shape in zip(BUILD, shapes, strict=True)]
    torch.set_default_dtype(torch.float32)
    return [one.init_weights(generator_for("weights", device=device)).eval().requires_grad_(False) for one in made]


BUILD = (Demasker, RegisterEncoder, RegisterDenoiser, RegisterDenoiser)


def in_random_order(calls: int) -> Decoding:
    """Random order at temperature 1: no sample ends early, so every call is made for all samples."""
    return Decoding(calls=calls, rule="random", temperature=1.0)


def canvas_of(config: LLaDAConfig, batch: int, length: int, device: str) -> Canvas:
    canvas = Canvas.empty(batch, length, mask_id=config.mask_id, device=device)
    canvas.tokens[:, 0] = config.mask_id + 1
    return canvas


def draw_from(prior: RegisterDenoiser, num_steps: int, **options: Any) -> Draw:
    return draw_registers(Prior.of(prior), Drawing(), num_steps=num_steps, **options)


# ---------------------------------------------------------------- the loop over its floor


@torch.no_grad()
def loop_over_forward(demasker: Demasker, engine: Engine, device: str, model: str, calls: int = 32) -> None:
    for batch in (1, 64):
        decoding, config = in_random_order(calls), demasker.config
        canvas = canvas_of(config.backbone, batch, 256, device)
        registers = torch.randn(batch, 8, config.register_width, device=device)
        streams = Streams.of("bench", samples=range(batch), device=device)
        demask = Guided(demasker)
        counts = [call.num_rows for call in planned_calls(canvas, decoding.plan(256), reveal_rule(decoding))]
        all_rows = [torch.arange(256, device=device)[:count].expand(batch, -1).contiguous() for count in counts]
        recorder = Recorder()

        def eager() -> None:
            for rows in all_rows:
                demask(canvas.tokens, registers, rows)

        def recorded() -> None:
            for rows in all_rows:
                recorder(demask, demask, (canvas.tokens, registers, rows))

        def loop() -> None:
            decode(demask, canvas, decoding, registers=registers, streams=streams, engine=engine)

        bare, floor, ours = seconds(eager), seconds(recorded), seconds(loop)
        show(
            what="loop over forward", model=model, batch=batch, length=256, calls=calls,
            forward_ms=1000 * bare / calls, recorded_forward_ms=1000 * floor / calls, loop_ms=1000 * ours / calls,
            over_forward=ours / bare, over_recorded_forward=ours / floor,
        )  # fmt: skip


# ---------------------------------------------------------------- the prior in demasker calls


@torch.no_grad()
def prior_in_calls(demasker, encoder, prior, conditional, engine: Engine, device: str, model: str) -> None:
    for batch in (1, 64):
        decoding, canvas = in_random_order(8), canvas_of(demasker.config.backbone, batch, 256, device)
        streams = Streams.of("bench", samples=range(batch), device=device)
        bank = torch.randn(batch, 8, demasker.config.register_width, device=device)
        demask = Guided(demasker)

        def loop() -> None:
            decode(demask, canvas, decoding, registers=bank, streams=streams, engine=engine)

        call = seconds(loop) / 8

        def first() -> None:
            draw_from(prior, 128, streams=streams, engine=engine)

        def again() -> None:
            condition_kv = conditional.cross_attention_kv(encoder(canvas.tokens, hidden=canvas.masked()))
            draw_from(conditional, 32, conditions=Conditions(condition_kv), streams=streams, engine=engine)

        prior_s, refresh_s = seconds(first), seconds(again)
        show(
            what="prior in demasker calls", model=model, batch=batch, call_ms=1000 * call,
            prior_128_ms=1000 * prior_s, refresh_32_ms=1000 * refresh_s, prior_128_calls=prior_s / call,
            refresh_32_calls=refresh_s / call, paper_128_calls=6, paper_32_calls="< 2",
        )  # fmt: skip


# ---------------------------------------------------------------- against LLaDA's published procedure


@torch.no_grad()
def published_procedure(model: LLaDA, canvas: torch.Tensor, calls: int, temperature: float) -> torch.Tensor:
    """As LLaDA's authors published it: all logits, float64 noise over all of them, a loop over samples."""
    tokens, mask_id = canvas.clone(), model.config.mask_id
    num_hidden = (tokens == mask_id).sum(dim=1)
    for call in range(calls):
        hidden = tokens == mask_id
        logits = model(tokens)
        wide = logits.to(torch.float64)
        noise = torch.rand_like(wide)
        found = (wide.exp() / (-torch.log(noise)) ** temperature).argmax(dim=-1)
        probs = torch.softmax(logits.to(torch.float64), dim=-1)
        confidence = probs.gather(-1, found[..., None])[..., 0].masked_fill(~hidden, -torch.inf)
        found = torch.where(hidden, found, tokens)
        for sample in range(len(tokens)):
            share = int(num_hidden[sample]) // calls + int(call < int(num_hidden[sample]) % calls)
            kept = confidence[sample].topk(share).indices
            tokens[sample, kept] = found[sample, kept]
    return tokens


def against_published(
    demasker: Demasker,
    engine: Engine,
    device: str,
    model: str,
    *,
    calls: int,
    lengths: list[int],
    batches: list[int],
) -> None:
    backbone = demasker.backbone
    for length in lengths:
        for batch in batches:
            decoding = Decoding(calls=calls, temperature=1.0)
            canvas = canvas_of(backbone.config, batch, length, device)
            streams = Streams.of("bench", samples=range(batch), device=device)
            demask = Unguided(backbone)
            row: dict[str, object] = {"what": "against the published procedure", "model": model}
            row |= {"length": length, "batch": batch, "calls": calls}
            for name, work in (
                ("published", lambda: published_procedure(backbone, canvas.tokens, calls, 1.0)),
                ("ours", lambda: decode(demask, canvas, decoding, streams=streams, engine=engine)),
            ):
                row |= measured(name, work, batch * length)
            if all(isinstance(row[f"{name}_tokens_per_s"], float) for name in ("ours", "published")):
                row["speed_ratio"] = row["ours_tokens_per_s"] / row["published_tokens_per_s"]
            show(**row)
            if isinstance(engine.play, Recorder):
                engine.play.forget()


def measured(name: str, work, tokens: int) -> dict[str, object]:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        speed: object = tokens / seconds(work, repeats=1)
    except torch.OutOfMemoryError:
        speed = "out of memory"
    return {f"{name}_tokens_per_s": speed, f"{name}_peak_gb": torch.cuda.max_memory_allocated() / 1e9}


# ---------------------------------------------------------------- a laptop


@torch.no_grad()
def on_this_cpu(demasker, encoder, prior, conditional) -> None:
    """ConWithinDisc with the paper's steps: 128 of the prior, one refresh of 32 half way."""
    for calls in CPU_CALLS:
        for batch in (1, 8):
            decoding, canvas = in_random_order(calls), canvas_of(demasker.config.backbone, batch, 256, "cpu")
            streams = Streams.of("bench", samples=range(batch))

            def refresh(tokens, registers, drawn):
                condition_kv = conditional.cross_attention_kv(encoder(tokens, hidden=tokens == canvas.mask_id))
                return draw_from(conditional, 32, conditions=Conditions(condition_kv), streams=drawn)

            def generate() -> None:
                con_within_disc(
                    lambda drawn: draw_from(prior, 128, streams=drawn),
                    refresh, Guided(demasker), canvas, decoding, streams=streams,
                )  # fmt: skip

            def prior_alone() -> None:
                draw_from(prior, 128, streams=streams)

            show(
                what="on this CPU", threads=torch.get_num_threads(), length=256, calls=calls, batch=batch,
                seconds_per_program=seconds(generate, repeats=1) / batch,
                of_which_prior=seconds(prior_alone, repeats=1) / batch,
            )  # fmt: skip


def cpu_time_by_batch(calls: int = 2) -> None:
    """CPU seconds of a text by the number of texts in a batch, with the built-in model; other work does not count.

    Few calls are enough: each costs the same.
    """
    pipe = Crocodil.from_pretrained(device="cpu")
    pipe.generate(1, calls=1)
    for batch in CPU_BATCHES:
        started_at = time.process_time()
        pipe.generate(batch, method="base", calls=calls, batch_size=batch, show_progress=False)
        cpu_s = (time.process_time() - started_at) / batch
        show(
            what="CPU time by batch", threads=torch.get_num_threads(), batch=batch, calls=calls, cpu_s_a_text=cpu_s
        )


CPU_CALLS = (8, 16, 32)
CPU_BATCHES = (4, 8, 16, 32, 63)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["small", "8b"], default="small")
    parser.add_argument("--only", choices=["loop", "prior", "published", "cpu", "cpu-batch"])
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument(
        "--length", type=int, nargs="*", default=[256, 512, 1024], help="against the published one"
    )
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 16, 64])
    options = parser.parse_args()
    if options.only == "cpu-batch":
        return cpu_time_by_batch()
    device = "cpu" if options.only == "cpu" or not torch.cuda.is_available() else "cuda"
    show(
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu", torch=torch.__version__,
        model=options.model, compiled=options.compiled,
    )  # fmt: skip
    made = networks(options.model, device, torch.bfloat16 if device == "cuda" else torch.float32)
    if options.only == "cpu":
        return on_this_cpu(*made)
    engine = PLAIN
    if device == "cuda":
        step = torch.compile(reveal, dynamic=True) if options.compiled else reveal
        engine = Engine(Recorder(torch.device(device)), step)
    if options.compiled:
        compile_blocks(made)
    if options.only in (None, "loop"):
        loop_over_forward(made[0], engine, device, options.model, calls=8 if options.model == "8b" else 32)
    if options.only in (None, "prior"):
        prior_in_calls(*made, engine, device, options.model)
    if options.only in (None, "published"):
        del made[1:]
        against_published(
            made[0], engine, device, options.model,
            calls=4 if options.model == "8b" else 8, lengths=options.length, batches=options.batch,
        )  # fmt: skip
    return None


if __name__ == "__main__":
    main()
