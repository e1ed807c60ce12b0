from dataclasses import replace

import pytest
import tiny
import torch

from crocodil.seeding import generator_for
from crocodil.training.adapting import init_from_base


def test_an_encoder_can_begin_with_the_first_blocks_of_a_demasker():
    config = replace(
        tiny.ENCODER, width=32, num_heads=4, num_kv_heads=2, head_width=8, mlp_width=48, num_layers=1,
        rope_theta=tiny.BACKBONE.rope_theta, norm_eps=tiny.BACKBONE.norm_eps, causal=False,
    )  # fmt: skip
    base, tokens = tiny.llada(), tiny.programs(2, 9)
    encoder = init_from_base(tiny.encoder(config), base, generator_for("registers"))
    layer, block = encoder.backbone.layers[0], base.blocks[0]
    layer.self_attn.q_norm = layer.self_attn.k_norm = torch.nn.Identity()  # the one thing that LLaDA does not have
    states, positions = base.embed(tokens), torch.arange(9)[None]
    angles = base.angles(positions)
    expected = block(states, (angles.cos()[:, None], angles.sin()[:, None]), None)
    found = layer(
        encoder.backbone.embed_tokens(tokens), position_embeddings=encoder.backbone.rotary_emb(states, positions)
    )
    assert torch.allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"encoder\.width is 16, but the base has 32"):
        init_from_base(tiny.encoder(), base, generator_for("registers"))
