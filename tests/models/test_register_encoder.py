import math
from dataclasses import replace

import pytest
import tiny
import torch
from tiny import EOS, NUM_REGISTERS
from transformers import Qwen3Config, Qwen3Model

from crocodil.models.register_encoder import Rotary
from crocodil.processes.registers import normalise


def qwen3_config(config):
    return Qwen3Config(
        vocab_size=config.vocab_size, hidden_size=config.width, num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads, num_key_value_heads=config.num_kv_heads, head_dim=config.head_width,
        intermediate_size=config.mlp_width, rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta}, attn_implementation="sdpa",
    )  # fmt: skip


def summary_of_transformers(encoder, tokens):
    """The last hidden state of transformers' own Qwen3, fed the same text and the end token."""
    qwen = Qwen3Model(qwen3_config(encoder.config))
    qwen.load_state_dict(encoder.backbone.state_dict())
    ended = torch.cat([tokens, torch.full((len(tokens), 1), EOS)], dim=1)
    return qwen(input_ids=ended).last_hidden_state[:, -1:]


def test_the_first_register_is_qwens_summary_vector():
    encoder, tokens = tiny.encoder(), tiny.programs(3, 10)
    expected = normalise(summary_of_transformers(encoder, tokens))
    assert torch.allclose(encoder(tokens)[:, :1], expected, atol=1e-6)


def test_rotary_angles_are_those_of_transformers():
    config = replace(tiny.ENCODER, rope_theta=1_000_000.0, head_width=64)
    positions, states = torch.arange(3000)[None], torch.zeros(1, dtype=torch.float32)
    ours, theirs = (
        Rotary(config)(states, positions),
        Qwen3Model(qwen3_config(config)).rotary_emb(states, positions),
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-3)  # float32 angles of up to 3000 turns


def test_every_register_has_norm_sqrt_d():
    registers = tiny.encoder()(tiny.programs(3, 10))
    assert registers.shape == (3, NUM_REGISTERS, tiny.REGISTER_WIDTH)
    assert torch.allclose(registers.norm(dim=-1), torch.tensor(math.sqrt(tiny.REGISTER_WIDTH)))


def test_right_padding_does_not_change_the_registers():
    encoder, tokens = tiny.encoder(), tiny.programs(4, 12)
    lengths = torch.tensor([12, 7, 1, 0])
    valid = torch.arange(12) < lengths[:, None]
    padded = encoder(tokens, valid=valid)
    for i, length in enumerate(lengths):
        alone = encoder(tokens[i : i + 1, :length])
        assert torch.allclose(padded[i : i + 1], alone, atol=1e-5)


@pytest.mark.parametrize(
    "hidden",
    [[0], [11], [3, 4, 5], [0, 11], list(range(12))],
    ids=["the first", "the last", "a span", "both ends", "all"],
)
def test_the_registers_do_not_depend_on_hidden_tokens(hidden):
    encoder, tokens = tiny.encoder(), tiny.programs(2, 12)
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[:, hidden] = True
    registers = encoder(tokens, hidden=mask)
    for other in (0, 17, tiny.MASK, 126_336):  # the last is outside this vocabulary
        assert torch.equal(encoder(tokens.masked_fill(mask, other), hidden=mask), registers)
    assert registers.isfinite().all()
    assert not torch.allclose(encoder(tokens), registers, atol=1e-3)


def test_every_visible_token_counts():
    encoder, tokens = tiny.encoder(), tiny.programs(1, 8)
    for position in range(8):
        changed = tokens.clone()
        changed[:, position] = (changed[:, position] + 1) % EOS
        assert (encoder(changed) - encoder(tokens)).abs().max() > 1e-4


def test_hiding_a_token_is_not_removing_it():
    encoder, tokens = tiny.encoder(), tiny.programs(1, 8)
    hidden = torch.arange(8)[None] == 3
    removed = torch.cat([tokens[:, :3], tokens[:, 4:]], dim=1)
    assert not torch.allclose(encoder(tokens, hidden=hidden), encoder(removed), atol=1e-3)


def test_the_first_registers_do_not_depend_on_how_many_follow():
    many, tokens = tiny.encoder(), tiny.programs(2, 8)
    few = tiny.encoder(replace(tiny.ENCODER, num_registers=2))
    weights = many.state_dict()
    few.load_state_dict({**weights, "suffix": weights["suffix"][:1]})
    assert torch.allclose(few(tokens), many(tokens)[:, :2], atol=1e-5)


def test_one_register_is_the_summary_alone():
    encoder = tiny.encoder(replace(tiny.ENCODER, num_registers=1))
    assert encoder.suffix.shape == (0, tiny.REGISTER_WIDTH)
    assert encoder(tiny.programs(2, 8)).shape == (2, 1, tiny.REGISTER_WIDTH)


def test_registers_of_another_width_are_mapped():
    encoder = tiny.encoder(replace(tiny.ENCODER, register_width=24))
    registers = encoder(tiny.programs(2, 8))
    assert registers.shape == (2, NUM_REGISTERS, 24)
    assert torch.allclose(registers.norm(dim=-1), torch.tensor(math.sqrt(24)))


def test_an_encoder_in_half_precision_keeps_exact_rotary_angles():
    encoder, states, positions = tiny.encoder(), torch.zeros(1), torch.arange(100)[None]
    exact = encoder.backbone.rotary_emb(states, positions)
    half = encoder.to(torch.bfloat16).backbone.rotary_emb(states, positions)
    assert all(torch.equal(one, other) for one, other in zip(exact, half, strict=True))


def test_gradients_reach_the_suffix_the_end_token_and_the_text():
    encoder, tokens = tiny.encoder(), tiny.programs(2, 8)
    encoder(tokens)[..., 0].sum().backward()
    assert (encoder.suffix.grad.abs().sum(dim=1) > 0).all()
    reached = encoder.backbone.embed_tokens.weight.grad.abs().sum(dim=1) > 0
    assert reached[tokens.unique()].all()
    assert reached[EOS]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("across", [True, False])
def test_a_text_that_is_all_visible_needs_no_mask(causal, across):
    encoder, tokens = tiny.encoder(replace(tiny.ENCODER, causal=causal, across_text=across)), tiny.programs(3, 10)
    masked = encoder(tokens, valid=torch.ones_like(tokens, dtype=torch.bool))
    assert torch.allclose(encoder(tokens), masked, atol=1e-5)


def test_an_encoder_that_looks_both_ways_sees_other_things_and_nothing_hidden():
    both_ways = replace(tiny.ENCODER, causal=False)
    encoder, tokens = tiny.encoder(both_ways), tiny.programs(2, 12)
    assert not torch.allclose(encoder(tokens), tiny.encoder()(tokens), atol=1e-3)
    hidden = torch.zeros(2, 12, dtype=torch.bool)
    hidden[:, 3:7] = True
    changed = torch.where(hidden, tiny.programs(2, 13)[:, 1:], tokens)
    assert torch.allclose(encoder(tokens, hidden=hidden), encoder(changed, hidden=hidden), atol=1e-6)


def test_registers_across_a_padded_text_stand_where_they_do_in_the_text_alone():
    encoder, tokens = tiny.encoder(replace(tiny.ENCODER, across_text=True)), tiny.programs(2, 12)
    valid = torch.arange(12) < torch.tensor([[8], [12]])
    assert torch.allclose(encoder(tokens, valid=valid)[:1], encoder(tokens[:1, :8]), atol=1e-5)
