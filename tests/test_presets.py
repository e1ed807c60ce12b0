"""The paper's shapes, counted; no weights are made."""

import torch

from crocodil.models.demasker import Demasker
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.presets import models


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_papers_encoder_is_qwen3_embedding_with_127_suffix_registers():
    with torch.device("meta"):
        encoder = RegisterEncoder(models.paper_encoder())
    assert count(encoder.backbone) == 595_776_512  # Qwen3-Embedding-0.6B
    assert count(encoder) - count(encoder.backbone) == 127 * 1024


def test_the_papers_demasker_adds_only_the_interface_to_llada_8b():
    with torch.device("meta"):
        demasker = Demasker(models.paper_demasker())
    assert count(demasker) - count(demasker.backbone) == 1024 * 4096 + 2 * 4096
    assert sum(parameter.numel() for parameter in demasker.interface()) == 1024 * 4096 + 2 * 4096
