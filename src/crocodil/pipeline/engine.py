"""How a model runs on its device: compiled blocks, CUDA graphs, and the batch size that fits in memory."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import nn

from crocodil.models.llada import LLaDAConfig
from crocodil.runtime.devices import free_memory
from crocodil.runtime.graphs import Inputs, Play, Recorder
from crocodil.sampling.call import PLAIN, Engine, reveal
from crocodil.seeding import compiled_draws

LARGEST_BATCH = 256  # larger batches are not faster
LARGEST_CPU_BATCH = 16  # larger batches take as much CPU time per text, and all texts wait longer
MAX_COMPILED_VARIANTS = 64  # one per reveal rule and shape; PyTorch's default of 8 is soon exceeded


def compile_blocks(networks: Iterable[nn.Module]) -> None:
    """Compile the repeated blocks only: they share one compiled function."""
    for network in networks:
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    block.compile()


def engine_for(device: torch.device, *, compiled: bool, compiled_reveal: bool = True) -> Engine:
    """Return an engine that records calls once and replays them on CUDA, and runs them directly elsewhere.

    If it is compiled, steps draw their random numbers with one kernel each, and the reveal step is compiled too,
    unless `compiled_reveal` is False.
    """
    if device.type != "cuda":
        return PLAIN
    recorder = Recorder(device)
    if not compiled:
        return Engine(recorder)
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_COMPILED_VARIANTS)
    return Engine(
        with_compiled_draws(recorder), torch.compile(reveal, dynamic=True) if compiled_reveal else reveal
    )


def with_compiled_draws(play: Play) -> Play:
    """Return a `play` whose steps draw random numbers with one kernel each (decision D72)."""

    def play_compiled(step: Callable[..., Any], key: Hashable, inputs: Inputs) -> Any:
        with compiled_draws():
            return play(step, key, inputs)

    return play_compiled


def affordable_batch(backbone: LLaDAConfig, length: int, device: torch.device, *, prefix: int = 0) -> int:
    """Return how many samples fit into half of the free memory, up to the largest useful batch.

    A sample needs at most four float32 copies of its logits (scaled, sorted, summed, noisy) and, at each position
    (`prefix` of them come before the canvas), sixteen vectors and one attention row per head.
    """
    positions = length + prefix
    floats = 4 * length * backbone.vocab_size + positions * (16 * backbone.width + positions * backbone.num_heads)
    largest = LARGEST_CPU_BATCH if device.type == "cpu" else LARGEST_BATCH
    return min(max(1, free_memory(device) // 2 // (4 * floats)), largest)
