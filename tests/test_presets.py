"""The paper's shapes and those of the built-in model, counted; no weights are made."""

from dataclasses import replace

import torch

from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.presets import models
from crocodil.presets.training import small
from crocodil.seeding import generator_for
from crocodil.training.warm_start import begin_as_base

MIB = 1 << 20


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


def built_in(corpus):
    """The run of the built-in model, with the vocabulary that it has."""
    run = small(corpus)
    backbone = replace(run.demasker.backbone, vocab_size=8192)
    return replace(
        run,
        demasker=replace(run.demasker, backbone=backbone),
        encoder=replace(run.encoder, vocab_size=8192),
    )


def test_what_ships_of_small_is_below_80_mib_at_a_byte_a_weight_with_room_for_scales(corpus):
    run = built_in(corpus)
    with torch.device("meta"):
        shipped = [Demasker(run.demasker), RegisterEncoder(run.encoder), RegisterDenoiser(run.conditional)]
    assert 70 * MIB < sum(count(network) for network in shipped) < 77 * MIB


def test_the_encoder_of_small_can_begin_as_its_base(corpus):
    run = built_in(corpus)
    with torch.device("meta"):
        encoder, base = RegisterEncoder(run.encoder), LLaDA(run.demasker.backbone)
    assert run.encoder_begins_as_base
    for network, value in ((base, 1.0), (encoder, 0.0)):
        for parameter in network.to_empty(device="cpu").parameters():
            torch.nn.init.constant_(parameter, value)
    begin_as_base(encoder, base, generator_for("registers"))
    assert encoder.backbone.layers[-1].mlp.down_proj.weight.eq(1).all()
