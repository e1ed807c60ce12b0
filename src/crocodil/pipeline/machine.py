"""The machine that a model runs on: which device, how much memory, how large a batch."""

import os
from collections.abc import Iterable

import torch
from torch import nn

from crocodil.models.demasker import DemaskerConfig

LARGEST_BATCH = 256  # beyond it nothing gets faster


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def compile_blocks(networks: Iterable[nn.Module]) -> None:
    """Only the blocks that repeat: one of them is compiled, the others are the same."""
    for network in networks:
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    block.compile()


def free_memory(device: torch.device) -> int:
    """In bytes; 4 GiB where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 << 30


def num_parameters(network: nn.Module | None) -> int:
    return 0 if network is None else sum(parameter.numel() for parameter in network.parameters())


def affordable_batch(config: DemaskerConfig, length: int, device: torch.device) -> int:
    """How many samples of this length fit into half of the memory that is free.

    A sample takes four float32 copies of its logits at most (tempered, sorted, summed, noisy), and at each
    position of the demasker sixteen vectors and its row of every head's attention.
    """
    backbone, positions = config.backbone, length + config.num_registers + 2
    floats = 4 * length * backbone.vocab_size + positions * (16 * backbone.width + positions * backbone.num_heads)
    return min(max(1, free_memory(device) // 2 // (4 * floats)), LARGEST_BATCH)
