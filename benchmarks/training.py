"""Measure the speed of training: tokens per second and MFU of each stage.

    python benchmarks/training.py [--preset small] [--steps 30] [--batch 512] [--optimiser muon]
    python benchmarks/training.py --preset paper-one-gpu --steps 8 --batch 16     # 8B-shaped, random weights, LoRA
    python benchmarks/training.py --preset laptop --steps 3 --threads 1           # a CPU

It runs the real stages on programs of random tokens, so it needs neither a corpus nor a checkpoint. MFU is the
rate of the networks' operations (see training/work.py; recomputation is not counted) relative to that of a large
bf16 matrix product on the same device. On a CPU, `cpu_s_per_step` is the time of all threads; other processes
do not change it.
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
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.presets.assumed import assumed_corpus
from crocodil.presets.runs import FROM_CAUSAL, FROM_PRETRAINED, FROM_SCRATCH, preset
from crocodil.runtime.distributed import Ranks
from crocodil.seeding import generator_for
from crocodil.training.adapting import add_adapters
from crocodil.training.data import cache_registers
from crocodil.training.estimate import estimates
from crocodil.training.guiding import GuidedStage
from crocodil.training.loop import initial_state, prepare, take_step
from crocodil.training.run_config import Pretrained
from crocodil.training.stage_setup import base_stage, prior_stage
from crocodil.training.stages import ConditionalPriorStage
from crocodil.training.work import matrix_rate
from crocodil.training.workspace import Workspace

NUM_WARMUP_STEPS = 5  # not timed; the blocks are compiled here


def random_corpus(directory: Path, tokenizer: dict, *, length: int, count: int) -> Corpus:
    vocab_size = tokenizer["vocab_size"]
    generator = np.random.default_rng(0)
    largest = min(vocab_size, 8192)
    splits = {}
    for split in ("train", "valid"):
        writer = ShardWriter(token_dtype(vocab_size))
        for number in range(count):
            writer.add(generator.integers(4, largest, length - 2).tolist(), [], package=0, path=f"{number}")
        writer.save(directory / split)
        splits[split] = {"shards": [split], **dict.fromkeys(("documents", "packages", "chars", "tokens"), 0)}
    description = {
        "format": FORMAT, "version": FORMAT_VERSION, "packages": [], "splits": splits,
        "tokenizer": tokenizer, "recipe": "random", "leaked_share": {}, "sha256": {},
        "counts": {"read": (0, 0), "kept": (0, 0), "dropped": {}, "skipped": {}, "seconds": {}},
    }  # fmt: skip
    (directory / "corpus.json").write_text(json.dumps(description))
    return Corpus(directory)


def timed(work, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started_at = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started_at


def measure(name: str, stage, loop, steps: int, ranks: Ranks, *, rate: float, estimated: float) -> None:
    if ranks.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    prepare(stage, loop, ranks)
    state = initial_state(stage, loop, ranks)
    num_warmup = NUM_WARMUP_STEPS if ranks.device == "cuda" else 1
    compile_s = timed(lambda: [take_step(stage, state, loop) for _ in range(num_warmup)], ranks.device)
    cpu_started_at = time.process_time()
    seconds = timed(lambda: [take_step(stage, state, loop) for _ in range(steps)], ranks.device) / steps
    cpu_s = (time.process_time() - cpu_started_at) / steps
    peak = torch.cuda.max_memory_allocated() / 1e9 if ranks.device == "cuda" else 0.0
    work = stage.work()
    row = {
        "stage": name,
        "batch": loop.batch_size,
        "micro_batches": loop.num_accumulated,
        "ms_per_step": round(1000 * seconds, 1),
        "steps_per_s": round(1 / seconds, 2),
        "cpu_s_per_step": round(cpu_s, 3),
        "tokens_per_s": round(loop.batch_size * work.tokens / seconds),
        "tflops": round(loop.batch_size * work.flops / seconds / 1e12, 4),
        "mfu": round(loop.batch_size * work.flops / seconds / rate, 3),
        "first_steps_s": round(compile_s, 1),
        "peak_gb": round(peak, 1),
        "estimated_gb": round(estimated, 1),
    }
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="small", choices=[*FROM_SCRATCH, *FROM_CAUSAL, *FROM_PRETRAINED])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--micro-batches", type=int, default=0)
    parser.add_argument("--optimiser", choices=("adamw", "muon"), help="default: the preset's")
    parser.add_argument("--threads", type=int, help="of a CPU; default: all cores")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rate = matrix_rate(device)
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    about = {"device": name, "torch": torch.__version__, "matrix_tflops": round(rate / 1e12, 1)}
    print(json.dumps(about), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        measure_stages(options, Path(scratch), Ranks(device=device), rate)


def measure_stages(options, scratch: Path, ranks: Ranks, rate: float) -> None:
    pretrained = options.preset in FROM_PRETRAINED
    assumed, _ = assumed_corpus(options.preset)
    length = min(max(preset(options.preset, assumed, Pretrained()).lengths), 512)
    tokenizer = assumed.description["tokenizer"]
    corpus = random_corpus(scratch, tokenizer, length=length, count=256 if pretrained else 4096)
    run = preset(options.preset, corpus, Pretrained())
    loop = run.guided_loop
    loop = replace(
        loop,
        batch_size=options.batch or loop.batch_size,
        num_accumulated=options.micro_batches or (1 if options.batch else loop.num_accumulated),
        optimiser=options.optimiser or loop.optimiser,
    )
    prior_loop = replace(run.prior_loop, optimiser=options.optimiser or run.prior_loop.optimiser)
    conditional_loop = replace(run.conditional_loop, optimiser=options.optimiser or run.conditional_loop.optimiser)
    run = replace(run, base_loop=loop, guided_loop=loop, prior_loop=prior_loop, conditional_loop=conditional_loop)
    expected = {estimate.stage: estimate.gigabytes for estimate in estimates(run)}
    workspace = Workspace(corpus, scratch / "run", scratch / "run", ranks)
    if not pretrained:
        stage, loop = base_stage(run, workspace)
        measure("base", stage, loop, options.steps, ranks, rate=rate, estimated=expected["base"])
        del stage

    with torch.device(ranks.device):
        encoder = RegisterEncoder(run.encoder).init_weights(generator_for("e", device=ranks.device))
        if pretrained:
            torch.set_default_dtype(torch.bfloat16)
        demasker = Demasker(run.demasker).init_weights(generator_for("d", device=ranks.device))
        torch.set_default_dtype(torch.float32)
        if run.lora is not None:
            add_adapters(demasker.backbone, run.lora, generator_for("a", device=ranks.device))
            demasker.register_map.float()
            demasker.boundaries.data = demasker.boundaries.data.float()
    guided = GuidedStage(encoder, demasker, workspace.data(run, loop), run.guided_objective, warmup_steps=0)
    measure("guided", guided, loop, options.steps, ranks, rate=rate, estimated=expected["guided"])
    if pretrained:
        return

    views = [(name, programs) for name in ("train", "valid") for programs in workspace.programs(run, name)]
    for split, programs in views:
        cache_registers(
            encoder,
            programs,
            workspace.out / "registers" / f"{split}-{programs.length}",
            shape=(run.num_prior_registers, run.prior.register_width),
            batch_size=512,
            ranks=ranks,
            bf16=ranks.device == "cuda",
        )
    stage, loop = prior_stage(run, workspace)
    measure("prior, cached registers", stage, loop, options.steps, ranks, rate=rate, estimated=expected["prior"])
    del stage

    denoiser = RegisterDenoiser(run.conditional_shape).init_weights(generator_for("c")).to(ranks.device)
    registers = [workspace.registers(run, split) for split in ("train", "valid")]
    stage = ConditionalPriorStage(
        denoiser,
        encoder.requires_grad_(False),
        *registers,
        workspace.data(run, conditional_loop),
        run.demasker.backbone.mask_id,
        run.prior_objective,
    )
    estimated = expected["conditional"]
    measure("conditional", stage, run.conditional_loop, options.steps, ranks, rate=rate, estimated=estimated)


if __name__ == "__main__":
    main()
