"""How fast the stages train: tokens a second and the share of the device's own matrix rate.

    python benchmarks/training.py [--preset small] [--steps 20] [--batch 512]

Runs the real stages on programs of random tokens, so no corpus is needed. MFU is the arithmetic of the networks
(6 x parameters x positions, attention included) over what the same device reaches on one large bf16 product.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from crocodil.corpus.shards import FORMAT, FORMAT_VERSION, Corpus, ShardWriter, token_dtype
from crocodil.models.demasker import Demasker
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.presets.training import PRESETS
from crocodil.seeding import generator_for
from crocodil.training.loop import start, take_step
from crocodil.training.run import Place, Run, base_stage, prior_stage
from crocodil.training.stages import GuidedStage, cache_registers

WARM_UP = 5  # steps before the clock starts; compiling happens here


def random_corpus(directory: Path, *, vocab_size: int, length: int, count: int = 4096) -> Corpus:
    draw = np.random.default_rng(0)
    splits = {}
    for split in ("train", "valid"):
        writer = ShardWriter(token_dtype(vocab_size))
        for number in range(count):
            writer.add(draw.integers(4, vocab_size, length - 2).tolist(), [], package=0, path=f"{number}")
        writer.save(directory / split)
        splits[split] = {"shards": [split]}
    special = {"mask": 0, "bos": 1, "eos": 2, "pad": 3}
    description = {
        "format": FORMAT, "version": FORMAT_VERSION, "packages": [], "splits": splits,
        "tokenizer": {"vocab_size": vocab_size, "special": special},
    }  # fmt: skip
    (directory / "corpus.json").write_text(json.dumps(description))
    return Corpus(directory)


def matrix_rate(device: str) -> float:
    """Floating-point operations a second of one large bf16 product."""
    size = 8192 if device == "cuda" else 512
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    for _ in range(3):
        left @ left
    seconds = timed(lambda: [left @ left for _ in range(10)], device)
    return 10 * 2 * size**3 / seconds


def timed(work, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started_at = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started_at


def demasker_flops(config, positions: int, rows: float) -> float:
    """Of one sample, forward and backward: blocks, attention, and the head on `rows` of the text."""
    block = 2 * config.width**2 + 2 * config.width * config.num_kv_heads * config.head_width
    block += 3 * config.width * config.mlp_width
    attention = 2 * positions * config.width
    return 6 * (config.num_layers * positions * (block + attention) + rows * config.width * config.vocab_size)


def encoder_flops(config, positions: int) -> float:
    inner = config.num_heads * config.head_width
    block = 2 * config.width * inner + 2 * config.width * config.num_kv_heads * config.head_width
    block += 3 * config.width * config.mlp_width
    return 6 * config.num_layers * positions * (block + 2 * positions * inner)


def measure(name: str, stage, loop, steps: int, device: str, *, flops: float, tokens: int, rate: float) -> dict:
    for block in stage.repeated_blocks() if loop.compile_blocks else ():
        block.compile()
    state = start(stage, loop)
    compile_s = timed(lambda: [take_step(stage, state, loop) for _ in range(WARM_UP)], device)
    seconds = timed(lambda: [take_step(stage, state, loop) for _ in range(steps)], device) / steps
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    row = {
        "stage": name,
        "batch": loop.batch_size,
        "ms_per_step": round(1000 * seconds, 1),
        "tokens_per_s": round(loop.batch_size * tokens / seconds),
        "mfu": round(loop.batch_size * flops / seconds / rate, 3),
        "first_steps_s": round(compile_s, 1),
        "peak_gib": round(peak, 1),
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="small", choices=PRESETS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--vocab", type=int, default=8192)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rate = matrix_rate(device)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    about = {"device": name, "torch": torch.__version__, "matrix_tflops": round(rate / 1e12, 1)}
    print(json.dumps(about), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        length = 256 if options.preset == "small" else 64
        corpus = random_corpus(Path(scratch), vocab_size=options.vocab, length=length)
        run: Run = PRESETS[options.preset](corpus)
        place = Place(corpus, Path(scratch) / "run", Path(scratch) / "run", device)
        batch = options.batch or run.base_loop.batch_size
        loop = replace(run.base_loop, batch_size=batch)
        run = replace(run, base_loop=loop, guided_loop=loop)
        backbone = run.demasker.backbone
        stage, loop = base_stage(run, place)
        flops = demasker_flops(backbone, run.length, run.length / 2)
        measure("base", stage, loop, options.steps, device, flops=flops, tokens=run.length, rate=rate)

        encoder = RegisterEncoder(run.encoder).init_weights(generator_for("e")).to(device)
        demasker = Demasker(run.demasker).init_weights(generator_for("d")).to(device)
        guided = GuidedStage(encoder, demasker, place.data(run, loop), run.guided_objective, warmup_steps=0)
        positions = run.length + run.demasker.num_registers + 2
        flops = demasker_flops(backbone, positions, run.length * 0.6) + encoder_flops(run.encoder, positions)
        measure("guided", guided, loop, options.steps, device, flops=flops, tokens=run.length, rate=rate)

        for split in ("train", "valid"):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                cache_registers(
                    encoder, corpus.programs(split, length=run.length), place.out / "registers" / split,
                    num_registers=run.num_prior_registers, batch_size=512, device=device,
                )  # fmt: skip
        stage, loop = prior_stage(run, place)
        prior = run.prior
        block = 12 * prior.width**2 + 2 * prior.num_registers * prior.width
        flops = 6 * prior.num_layers * prior.num_registers * block
        row = measure(
            "prior", stage, loop, options.steps, device, flops=flops, tokens=prior.num_registers, rate=rate
        )
        print(json.dumps({"prior_steps_per_s": round(1000 / row["ms_per_step"], 1)}))


if __name__ == "__main__":
    main()
