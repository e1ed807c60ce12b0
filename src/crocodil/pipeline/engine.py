"""A model and its machine: what is compiled, what is recorded, how large a batch may be."""

from collections.abc import Iterable

import torch
from torch import nn

from crocodil.models.demasker import DemaskerConfig
from crocodil.runtime.devices import free_memory
from crocodil.runtime.graphs import Recorder
from crocodil.sampling.decode import PLAIN, Engine, reveal

LARGEST_BATCH = 256  # beyond it nothing gets faster
LARGEST_CPU_BATCH = 16  # beyond it no text takes less CPU time, and all wait longer (docs/sampling.md)
MOST_VARIANTS = 64  # of what a call reveals, compiled


def compile_blocks(networks: Iterable[nn.Module]) -> None:
    """Only the blocks that repeat: one of them is compiled, the others are the same."""
    for network in networks:
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    block.compile()


def engine_for(device: torch.device, *, compiled: bool) -> Engine:
    """On CUDA calls are recorded once and replayed."""
    if device.type != "cuda":
        return PLAIN
    if compiled:  # a variant for each reveal rule and some shapes: eight are soon used up
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
    return Engine(Recorder(), torch.compile(reveal, dynamic=True) if compiled else reveal)


def affordable_batch(config: DemaskerConfig, length: int, device: torch.device) -> int:
    """How many samples of this length fit into half of the memory that is free; no more than pays.

    A sample takes four float32 copies of its logits at most (tempered, sorted, summed, noisy), and at each
    position of the demasker sixteen vectors and its row of every head's attention.
    """
    backbone, positions = config.backbone, length + config.num_registers + 2
    floats = 4 * length * backbone.vocab_size + positions * (16 * backbone.width + positions * backbone.num_heads)
    most = LARGEST_CPU_BATCH if device.type == "cpu" else LARGEST_BATCH
    return min(max(1, free_memory(device) // 2 // (4 * floats)), most)
