import json
from dataclasses import replace

import pytest
import tiny
import torch
from safetensors.torch import load_file

from crocodil.checkpoints.llada import llada_config, load_llada
from crocodil.models.llada import LLaDA
from crocodil.presets import models


@pytest.fixture(params=["llada-tiny", "llada-tiny-gqa"])
def public(request, fixtures):
    """A checkpoint in LLaDA's format, and what the public implementation computed from it."""
    directory = fixtures / request.param
    return load_llada(directory), load_file(directory / "golden.safetensors")


def test_logits_are_those_of_the_public_implementation(public):
    model, golden = public
    assert (model(golden["input_ids"]) - golden["logits"]).abs().max() < 1e-5


def test_logits_with_prefix_embeddings_are_those_of_the_public_implementation(public):
    model, golden = public
    logits = model(golden["input_ids"], prefix_embeddings=golden["prefix_embeddings"])
    assert (logits - golden["logits_with_prefix"]).abs().max() < 1e-5


def test_llada_8b_has_291_tensors_and_8_015_581_184_parameters(fixtures):
    config = llada_config(json.loads((fixtures / "llada-8b-config.json").read_text()))
    assert config == models.llada_8b()
    with torch.device("meta"):
        model = LLaDA(config)
    assert len(model.state_dict()) == 291
    assert sum(parameter.numel() for parameter in model.parameters()) == 8_015_581_184


def test_logits_at_chosen_rows_are_those_rows_of_all_logits():
    model, tokens = tiny.llada(), tiny.programs(3, 10)
    rows = tiny.streams(3).uniform(10) < 0.4
    assert torch.allclose(model(tokens, rows=rows), model(tokens)[rows], atol=1e-6)
    prefix = tiny.streams(3, "prefix").normal(4, 32)
    with_prefix = model(tokens, prefix_embeddings=prefix)
    assert with_prefix.shape == (3, 14, tiny.VOCAB)
    assert torch.allclose(model(tokens, prefix_embeddings=prefix, rows=rows), with_prefix[:, 4:][rows], atol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_behind_the_attention_mask_changes_nothing(side):
    model, tokens = tiny.llada(), tiny.programs(2, 8)
    padding = torch.full((2, 3), 5)
    padded = torch.cat([padding, tokens] if side == "left" else [tokens, padding], dim=1)
    kept = torch.cat([torch.zeros(2, 3), torch.ones(2, 8)][:: 1 if side == "left" else -1], dim=1).bool()
    logits = model(padded, attention_mask=kept)
    assert torch.allclose(logits[kept], model(tokens).flatten(0, 1), atol=1e-5)
    assert not torch.allclose(model(padded)[kept], model(tokens).flatten(0, 1), atol=1e-3)


def test_only_distances_between_positions_matter():
    model, tokens = tiny.llada(), tiny.programs(2, 8)
    shifted = model(tokens, positions=torch.arange(-100, -92)[None])
    assert torch.allclose(shifted, model(tokens), atol=1e-5)
    spread = model(tokens, positions=torch.arange(0, 16, 2)[None])
    assert (spread - model(tokens)).abs().max() > 1e-4


def test_a_tied_head_is_the_embedding_table():
    model = tiny.llada(replace(tiny.BACKBONE, tied_head=True))
    assert "head.weight" not in model.state_dict()
    tokens = tiny.programs(2, 8)
    untied = tiny.llada()
    untied.load_state_dict({**model.state_dict(), "head.weight": model.embed.weight})
    assert torch.equal(model(tokens), untied(tokens))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 3}, "does not split into 3 heads"),
        ({"num_kv_heads": 3}, "3 key heads do not divide 4"),
        ({"mask_id": tiny.VOCAB}, "mask_id 40 is outside a vocabulary of 40"),
    ],
)
def test_an_impossible_shape_cannot_be_built(change, message):
    with pytest.raises(ValueError, match=message):
        replace(tiny.BACKBONE, **change)
