from dataclasses import replace

import pytest
import tiny
import torch
from tiny import NUM_REGISTERS

from crocodil.checkpoints.llada import load_llada
from crocodil.models.demasker import Demasker, DemaskerConfig, fixed_axes, literal_axes, sequence_angles
from crocodil.seeding import generator_for

LITERAL = replace(tiny.DEMASKER, literal_positions=True)
CPU = torch.device("cpu")


@pytest.fixture(params=[tiny.DEMASKER, LITERAL], ids=["fixed positions", "literal positions"])
def demasker(request):
    return tiny.demasker(request.param)


def test_registers_beyond_the_prefix_do_not_change_the_logits(demasker):
    tokens, registers = tiny.programs(3, 10), tiny.bank(3)
    prefix_length = torch.tensor([0, 2, 5])
    logits = demasker(tokens, registers, prefix_length=prefix_length)
    withheld = torch.arange(NUM_REGISTERS) >= prefix_length[:, None]
    for junk in (1e6, torch.inf, torch.nan):
        changed = registers.masked_fill(withheld[..., None], junk)
        assert torch.equal(demasker(tokens, changed, prefix_length=prefix_length), logits)


def test_registers_within_the_prefix_do_change_the_logits(demasker):
    tokens, registers = tiny.programs(1, 10), tiny.bank(1)
    for register in range(NUM_REGISTERS):
        changed = registers.clone()
        changed[:, register] += 1
        prefix_length = torch.tensor([register + 1])
        difference = demasker(tokens, changed, prefix_length=prefix_length) - demasker(
            tokens, registers, prefix_length=prefix_length
        )
        assert difference.abs().max() > 1e-5


@pytest.mark.parametrize("k", range(NUM_REGISTERS + 1))
def test_withholding_registers_equals_leaving_them_out(demasker, k):
    tokens, registers = tiny.programs(2, 10), tiny.bank(2)
    withheld = demasker(tokens, registers, prefix_length=torch.tensor([k, k]))
    assert torch.allclose(withheld, demasker(tokens, registers[:, :k]), atol=1e-5)


def test_every_sample_has_its_own_prefix_length(demasker):
    tokens, registers = tiny.programs(4, 10), tiny.bank(4)
    lengths = torch.tensor([0, 1, 3, 6])
    together = demasker(tokens, registers, prefix_length=lengths)
    for i in range(4):
        one = slice(i, i + 1)
        alone = demasker(tokens[one], registers[one], prefix_length=lengths[one])
        assert torch.allclose(together[one], alone, atol=1e-5)


def test_logits_at_chosen_rows_are_those_rows_of_all_logits(demasker):
    tokens, registers, rows = tiny.programs(3, 10), tiny.bank(3), tiny.streams(3).uniform(10) < 0.4
    assert torch.allclose(demasker(tokens, registers, rows=rows), demasker(tokens, registers)[rows], atol=1e-6)


@pytest.mark.parametrize("across_text", [False, True])
def test_what_lies_beyond_the_part_that_is_read_does_not_change_the_logits(demasker, across_text):
    if across_text:
        demasker = tiny.demasker(replace(tiny.DEMASKER, across_text=True))
    tokens, registers, lengths = tiny.programs(2, 12), tiny.bank(2), torch.tensor([5, 9])
    rows = torch.arange(5).expand(2, -1)
    together = demasker(tokens, registers, rows=rows, read_length=lengths).unflatten(0, (2, 5))
    assert not torch.allclose(together, demasker(tokens, registers)[:, :5], atol=1e-3)
    masked = tokens.where(torch.arange(12) < lengths[:, None], 3)
    for i in range(2):
        one = slice(i, i + 1)
        alone = demasker(masked[one], registers[one], rows=rows[one], read_length=lengths[one])
        assert torch.allclose(together[i], alone, atol=1e-5)
        if not across_text:  # registers stand where they do before a canvas of this length
            short = demasker(tokens[one, : lengths[i]], registers[one])[0, :5]
            assert torch.allclose(alone, short, atol=1e-5)


def test_text_keeps_the_positions_it_has_without_a_prefix():
    for num_given in (0, 2, 6):
        along_text, along_prefix = fixed_axes(6, num_given, 10, CPU)
        assert along_text[0, -10:].tolist() == along_prefix[0, -10:].tolist() == list(range(10))
        assert along_text[0, : num_given + 1].tolist() == list(range(-8, -7 + num_given))
        assert along_text[0, num_given + 1] == -1  # END, right before the text
        assert along_prefix[0, : num_given + 1].tolist() == list(range(num_given + 1))


def test_read_literally_the_prefix_shifts_the_text_and_the_second_axis_says_nothing_new():
    along_text, along_prefix = literal_axes(6, 10, torch.tensor([2, 6]), CPU)
    assert along_text[:, -10].tolist() == [4, 8]
    assert torch.equal(along_text, along_prefix)


def test_the_prefix_axis_turns_the_lowest_frequencies_and_inside_the_prefix_only():
    angles = {
        share: sequence_angles(replace(tiny.DEMASKER, prefix_axis_share=share), 6, 10, CPU)[0]
        for share in (0.0, 0.25, 1.0)
    }
    differs = angles[0.0] != angles[0.25]
    assert differs[:8, -1].all()  # one of four frequency pairs, the lowest
    assert not differs[:8, :-1].any()
    assert not differs[8:].any()
    assert (angles[0.0] != angles[1.0])[:8].all()


def test_a_demasker_around_llada_keeps_its_weights_and_starts_with_a_fresh_interface(fixtures):
    backbone = load_llada(fixtures / "llada-tiny")
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    config = DemaskerConfig(backbone=backbone.config, num_registers=4, register_width=16)
    demasker = Demasker.around(backbone, config, generator_for("interface"))
    after = demasker.state_dict()
    assert all(torch.equal(after[f"backbone.{name}"], tensor) for name, tensor in before.items())
    assert set(after) - {f"backbone.{name}" for name in before} == {"register_map.weight", "boundaries"}
    mapped = demasker.register_map(tiny.streams(100).normal(16))
    assert mapped.std().item() == pytest.approx(backbone.embed.weight.std().item(), rel=0.1)


def test_more_registers_than_the_demasker_has_are_refused():
    with pytest.raises(ValueError, match="7 registers given, but this demasker takes at most 6"):
        tiny.demasker()(tiny.programs(1, 4), tiny.bank(1, 7))
    with pytest.raises(ValueError, match="num_registers should be greater than or equal to 1, not 0"):
        replace(tiny.DEMASKER, num_registers=0)
    with pytest.raises(ValueError, match="prefix_axis_share should be less than or equal to 1, not 2"):
        replace(tiny.DEMASKER, prefix_axis_share=2)


def test_gradients_reach_the_registers():
    registers = tiny.bank(2).requires_grad_()
    tiny.demasker()(tiny.programs(2, 5), registers, prefix_length=torch.tensor([6, 3])).square().sum().backward()
    reached = registers.grad.abs().sum(dim=-1) > 0
    assert reached.int().tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]


def test_registers_can_stand_across_the_text_and_a_prefix_of_them_still_where_it_was():
    across = tiny.demasker(replace(tiny.DEMASKER, across_text=True))
    tokens, registers = tiny.programs(2, 12), tiny.bank(2)
    assert not torch.allclose(across(tokens, registers), tiny.demasker()(tokens, registers), atol=1e-3)
    short = across(tokens, registers[:, :3])
    assert torch.allclose(across(tokens, registers, prefix_length=torch.tensor([3, 3])), short, atol=1e-5)
    with pytest.raises(ValueError, match="literal_positions and across_text exclude each other"):
        replace(tiny.DEMASKER, across_text=True, literal_positions=True)
