from dataclasses import replace

import pytest
import tiny
import torch
from tiny import CONDITIONAL, NUM_REGISTERS, REGISTER_WIDTH

from crocodil.checkpoints.format import load_model, save_model
from crocodil.models.denoiser_starts import begun_as_demasker, flow_map_of, plain_copy_of, prompted_from
from crocodil.models.length_head import LengthHead, LengthHeadConfig
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives import PriorObjective, prior_loss
from crocodil.presets import models
from crocodil.processes.gaussian import signal_and_noise_level
from crocodil.sampling.configs import Drawing
from crocodil.sampling.cost import Cost
from crocodil.sampling.guidance import DualGuided, GuidedDenoiser
from crocodil.sampling.register_draw import Conditions, Prior, draw_registers
from crocodil.seeding import generator_for

STANDARDISED = replace(tiny.DENOISER, standardised=True)


def time(count, value=0.5):
    return torch.full((count, NUM_REGISTERS), value)


@pytest.mark.parametrize(
    ("preset", "blocks", "total"),
    [
        (models.paper_prior, 352_751_616, 362_594_304),
        (models.paper_conditional_prior, 470_306_816, 482_510_848),
    ],
)
def test_the_papers_shape_has_28_layers_and_roughly_400m_parameters(preset, blocks, total):
    with torch.device("meta"):
        denoiser = RegisterDenoiser(preset())
    assert len(denoiser.blocks) == 28
    assert sum(p.numel() for p in denoiser.blocks.parameters()) == blocks
    assert sum(p.numel() for p in denoiser.parameters()) == total


def test_a_fresh_denoiser_predicts_the_zero_bank():
    denoiser = RegisterDenoiser(CONDITIONAL).init_weights(generator_for("fresh"))
    assert torch.equal(denoiser(tiny.bank(2), time(2)), torch.zeros(2, NUM_REGISTERS, REGISTER_WIDTH))


def test_every_register_has_a_time_of_its_own():
    denoiser, registers = tiny.denoiser(), tiny.bank(1)
    before = denoiser(registers, time(1))
    changed = time(1)
    changed[:, 3] = 0.9
    difference = (denoiser(registers, changed) - before).abs().amax(dim=(0, 2))
    assert difference.argmax() == 3
    uniform = denoiser(registers, time(1, 0.9))
    assert not torch.allclose(uniform, before, atol=1e-3)


def test_the_order_of_the_registers_matters():
    denoiser, registers = tiny.denoiser(), tiny.bank(1)
    flipped = denoiser(registers.flip(1), time(1)).flip(1)
    assert not torch.allclose(flipped, denoiser(registers, time(1)), atol=1e-3)


def test_every_register_attends_to_all_others():
    denoiser, registers = tiny.denoiser(), tiny.bank(1)
    changed = registers.clone()
    changed[:, 0] += 1
    difference = denoiser(changed, time(1)) - denoiser(registers, time(1))
    assert (difference.abs().amax(dim=(0, 2)) > 1e-4).all()


def test_under_identity_attention_a_register_sees_only_itself_and_the_condition():
    denoiser, registers = tiny.denoiser(CONDITIONAL), tiny.bank(1)
    changed = registers.clone()
    changed[:, 0] += 1
    identity = torch.tensor([True])
    before, after = (denoiser(bank, time(1), identity_attention=identity) for bank in (registers, changed))
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0])
    given = denoiser(registers, time(1), condition=tiny.bank(1), identity_attention=identity)
    assert not torch.allclose(given, before, atol=1e-3)
    single = tiny.denoiser(replace(CONDITIONAL, num_registers=1))  # one register has no others to attend to
    bank, now = registers[:, :1], time(1)[:, :1]
    assert torch.allclose(single(bank, now, identity_attention=identity), single(bank, now), atol=1e-5)
    twice = torch.cat([registers, registers])
    mixed = denoiser(twice, time(2), identity_attention=torch.tensor([False, True]))
    assert torch.allclose(mixed, torch.cat([denoiser(registers, time(1)), before]), atol=1e-5)


def test_a_condition_changes_the_prediction_and_dropping_it_is_the_null_condition():
    denoiser, registers, condition = tiny.denoiser(CONDITIONAL), tiny.bank(3), tiny.bank(3).flip(0)
    with_it, without = denoiser(registers, time(3), condition=condition), denoiser(registers, time(3))
    assert not torch.allclose(with_it, without, atol=1e-3)
    keep = torch.tensor([True, False, True])
    mixed = denoiser(registers, time(3), condition=condition, keep_condition=keep)
    assert torch.allclose(mixed, torch.where(keep[:, None, None], with_it, without), atol=1e-6)


def test_the_null_condition_is_trained():
    denoiser = tiny.denoiser(CONDITIONAL)
    denoiser(tiny.bank(2), time(2)).square().sum().backward()
    assert denoiser.condition_embed.null.grad.abs().sum() > 0


def test_inputs_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="has no cross-attention"):
        tiny.denoiser()(tiny.bank(2), time(2), condition=tiny.bank(2))
    with pytest.raises(ValueError, match=r"the condition has shape \(5, 16\), expected \(6, 16\)"):
        tiny.denoiser(CONDITIONAL)(tiny.bank(2), time(2), condition=tiny.bank(2, 5))
    with pytest.raises(ValueError, match=r"registers of shape \(5, 16\) do not fit a denoiser of 6 x 16"):
        tiny.denoiser()(tiny.bank(2, 5), torch.zeros(2, 5))
    with pytest.raises(ValueError, match="both a width and a length"):
        replace(tiny.DENOISER, condition_width=16)
    with pytest.raises(ValueError, match="does not split into 5 heads"):
        replace(tiny.DENOISER, num_heads=5)


def test_precomputed_keys_and_values_equal_the_condition():
    model, time = tiny.denoiser(CONDITIONAL), tiny.streams(3).uniform(NUM_REGISTERS)
    for condition in (tiny.bank(3) + 1, None):
        precomputed = model(tiny.bank(3), time, condition_kv=model.cross_attention_kv(condition))
        assert torch.equal(precomputed, model(tiny.bank(3), time, condition=condition))


def test_a_shared_condition_equals_the_same_condition_for_each_sample():
    model, time = tiny.denoiser(CONDITIONAL), tiny.streams(3).uniform(NUM_REGISTERS)
    condition = tiny.bank(1) + 1
    shared = model(tiny.bank(3), time, condition=condition)
    assert torch.allclose(shared, model(tiny.bank(3), time, condition=condition.expand(3, -1, -1)), atol=1e-5)


def test_a_self_conditioned_denoiser_uses_the_guess_and_a_zero_guess_is_none():
    model, noisy = tiny.denoiser(replace(tiny.DENOISER, self_conditioned=True)), tiny.bank(2)
    blind = model(noisy, time(2))
    assert torch.equal(model(noisy, time(2), guess=torch.zeros_like(noisy)), blind)
    assert not torch.allclose(model(noisy, time(2), guess=noisy), blind, atol=1e-3)
    with pytest.raises(ValueError, match="has no self-conditioning"):
        tiny.denoiser()(noisy, time(2), guess=noisy)


# ---------------------------------------------------------------- standardised registers


def test_statistics_of_mean_0_and_std_1_change_nothing():
    plain, standardised = tiny.denoiser(), tiny.denoiser(STANDARDISED)
    assert set(standardised.state_dict()) - set(plain.state_dict()) == {"statistics"}
    registers = tiny.bank(4)
    assert torch.equal(standardised.standardise(registers), registers)
    assert torch.equal(standardised.unstandardise(registers), registers)
    losses = [
        prior_loss(model, registers, objective=PriorObjective(), streams=tiny.streams(4))
        for model in (plain, standardised)
    ]
    assert torch.equal(*losses)


def test_statistics_are_stored_with_the_weights_and_exactly_in_any_number_of_bits(tmp_path):
    denoiser = tiny.denoiser(STANDARDISED)
    denoiser.statistics[1] *= torch.logspace(-3, 1, REGISTER_WIDTH)
    for bits in (None, 8, 4):
        save_model(denoiser, tmp_path / str(bits), bits=bits)
        assert torch.equal(load_model(tmp_path / str(bits)).statistics, denoiser.statistics)


def test_a_standardised_prior_learns_and_draws_coordinates_of_very_different_scales():
    """A Gaussian on the sphere: nearly all of its norm is in the last coordinate, so projection changes little."""
    mean, std = torch.zeros(NUM_REGISTERS, REGISTER_WIDTH), torch.logspace(-3, -1, REGISTER_WIDTH)
    mean[:, -1] = REGISTER_WIDTH**0.5
    std[-1] = 1e-3
    real = mean + std * tiny.streams(1000, "real").normal(NUM_REGISTERS, REGISTER_WIDTH)
    denoiser = RegisterDenoiser(STANDARDISED).init_weights(generator_for("fresh"))
    denoiser.statistics.copy_(torch.stack([mean, std.expand_as(mean)]))
    loss = prior_loss(denoiser, real, objective=PriorObjective(), streams=tiny.streams(1000))
    assert loss.item() == pytest.approx(1, abs=0.02)  # it predicts zero, and every coordinate has variance 1

    def optimal(noisy, time):
        return signal_and_noise_level(time)[0][..., None] * noisy

    prior = replace(Prior.of(denoiser), denoiser=optimal)
    drawn = draw_registers(prior, Drawing(), num_steps=128, streams=tiny.streams(1000, "drawn")).registers
    z_scores = denoiser.standardise(drawn)[..., :-1]  # the norm is fixed, and with it the last coordinate
    assert torch.allclose(z_scores.mean(dim=0), torch.zeros(()), atol=0.15)
    assert torch.allclose(z_scores.std(dim=0), torch.ones(()), atol=0.15)


# ---------------------------------------------------------------- prompts (decision D57)

PROMPTED = replace(tiny.CONDITIONAL, prompt_width=tiny.REGISTER_WIDTH, prompt_length=tiny.NUM_REGISTERS)


def test_condition_and_prompt_are_read_and_dropped_each_by_itself():
    denoiser, noisy, time = tiny.denoiser(PROMPTED), tiny.bank(3), torch.full((3, tiny.NUM_REGISTERS), 0.5)
    condition, prompt = tiny.streams(3, "condition").normal(6, 16), tiny.streams(3, "prompt").normal(6, 16)
    keep = torch.tensor([True, False, True])
    both = denoiser(noisy, time, condition=condition, prompt=prompt)
    without_condition = denoiser(noisy, time, prompt=prompt)
    without_prompt = denoiser(noisy, time, condition=condition)
    assert not torch.allclose(both, without_condition)
    assert not torch.allclose(both, without_prompt)
    dropped = denoiser(noisy, time, condition=condition, prompt=prompt, keep_prompt=keep)
    torch.testing.assert_close(dropped, torch.where(keep[:, None, None], both, without_prompt))
    dropped = denoiser(noisy, time, condition=condition, prompt=prompt, keep_condition=keep)
    torch.testing.assert_close(dropped, torch.where(keep[:, None, None], both, without_condition))
    keys_values = denoiser.cross_attention_kv(condition[:1], prompt=prompt)
    shared = denoiser(noisy, time, condition=condition[:1].expand(3, -1, -1), prompt=prompt)
    torch.testing.assert_close(denoiser(noisy, time, condition_kv=keys_values), shared)
    with pytest.raises(ValueError, match="trained without prompts"):
        tiny.denoiser(tiny.CONDITIONAL)(noisy, time, prompt=prompt)


def test_strengths_of_condition_and_prompt_add_their_differences_and_their_calls():
    denoiser, prompt = tiny.denoiser(PROMPTED), tiny.streams(2, "prompt").normal(6, 16)
    condition = tiny.streams(2, "condition").normal(6, 16)
    full = denoiser.cross_attention_kv(condition, prompt=prompt)
    without = [denoiser.cross_attention_kv(None, prompt=prompt), denoiser.cross_attention_kv(condition)]
    noisy, time = tiny.bank(2), torch.full((2, tiny.NUM_REGISTERS), 0.5)
    dual = DualGuided(GuidedDenoiser(denoiser), (2.0, 4.0))
    clean, prediction = dual(noisy, time, time, noisy, full, *without)
    no_condition, no_prompt = (denoiser(noisy, time, condition_kv=kv) for kv in without)
    torch.testing.assert_close(clean, prediction + (prediction - no_condition) + 3 * (prediction - no_prompt))
    conditions = Conditions(full, dropped=list(zip((2.0, 4.0), without, strict=True)))
    drawn = draw_registers(
        Prior.of(denoiser), Drawing(), num_steps=2, conditions=conditions, streams=tiny.streams(2)
    )
    assert drawn.cost == Cost(denoiser_calls=6)


def test_predictions_without_condition_or_prompt_see_the_guess_of_a_self_conditioned_prior():
    denoiser = tiny.denoiser(replace(PROMPTED, self_conditioned=True))
    condition, prompt = (tiny.streams(2, name).normal(6, 16) for name in ("condition", "prompt"))
    full, without = (denoiser.cross_attention_kv(given, prompt=prompt) for given in (condition, None))
    noisy, time, guess = tiny.bank(2), torch.full((2, tiny.NUM_REGISTERS), 0.5), tiny.bank(2).flip(0)
    dual = DualGuided(GuidedDenoiser(denoiser, self_conditioned=True), (3.0,))
    clean, prediction = dual(noisy, time, time, guess, full, without)
    plain, dropped = (denoiser(noisy, time, condition_kv=kv, guess=guess) for kv in (full, without))
    torch.testing.assert_close(prediction, plain)
    torch.testing.assert_close(clean, plain + 2 * (plain - dropped))


def test_a_prompted_denoiser_begins_as_the_conditional_prior_but_for_what_it_reads():
    conditional = tiny.denoiser(tiny.CONDITIONAL)
    prompted = prompted_from(conditional, 6, 16, generator_for("prompted"))
    assert prompted.config == PROMPTED
    assert torch.equal(prompted.proj_in.weight, conditional.proj_in.weight)


def test_lengths_begin_equally_likely_and_their_quantiles_follow_the_head():
    config = LengthHeadConfig(prompt_width=16, max_length=10, answer_length=12, prompt_length=32)
    head = LengthHead(config).init_weights(generator_for("head"))
    prompt, shares = tiny.bank(1), torch.tensor([0.05, 0.45, 0.99])
    assert head.quantiles(prompt, shares).tolist() == [1, 5, 10]
    head.proj_out.bias.data[6] = 50.0
    assert head.quantiles(prompt, shares).tolist() == [7, 7, 7]


# ---------------------------------------------------------------- the blocks of a demasker (decision D79)

LENGTH = 8  # a condition of as many vectors covers every position of the text
BODY = replace(
    tiny.CONDITIONAL, condition_length=LENGTH, num_heads=4, text_length=LENGTH,
    body=replace(tiny.DEMASKER, across_text=True),
)  # fmt: skip


def conditions(count):
    return tiny.streams(count, "conditions").normal(LENGTH, REGISTER_WIDTH)


def test_with_the_blocks_of_a_demasker_a_condition_starts_as_masked_text():
    """The denoiser computes the same states of the registers as the demasker on a fully masked canvas."""
    demasker = tiny.demasker(BODY.body)
    denoiser = begun_as_demasker(BODY, demasker, generator_for("begun"))
    noisy, signal = tiny.bank(2), signal_and_noise_level(time(2))[0]
    states = []
    denoiser.body.norm.register_forward_hook(lambda _, __, output: states.append(output))
    demasker.backbone.norm.register_forward_hook(lambda _, __, output: states.append(output))
    denoiser(noisy, time(2), condition=conditions(2))
    demasker(torch.full((2, LENGTH), tiny.MASK), noisy / signal[..., None])
    torch.testing.assert_close(states[0], states[1][:, 1 : 1 + NUM_REGISTERS])


def test_with_the_blocks_of_a_demasker_the_first_prediction_is_the_best_linear_one():
    for denoiser in (
        RegisterDenoiser(BODY).init_weights(generator_for("fresh")),
        begun_as_demasker(BODY, tiny.demasker(BODY.body), generator_for("begun")),
    ):
        signal, _ = signal_and_noise_level(time(2, 0.9))
        assert torch.equal(denoiser(tiny.bank(2), time(2, 0.9)), signal[..., None] * tiny.bank(2))


def test_with_the_blocks_of_a_demasker_registers_read_each_other_the_condition_and_their_times():
    denoiser, registers, now = tiny.denoiser(BODY), tiny.bank(1), time(1)
    before = denoiser(registers, now, condition=conditions(1))
    changed, later = registers.clone(), now.clone()
    changed[:, 0] += 1
    later[:, 3] = 0.9
    others = [
        denoiser(changed, now, condition=conditions(1)),
        denoiser(registers, later, condition=conditions(1)),
        denoiser(registers, now, condition=conditions(1) + 1),
        denoiser(registers, now),
    ]
    assert all(((other - before).abs().amax(dim=(0, 2)) > 1e-4).all() for other in others)
    keep = torch.tensor([True, False])
    mixed = denoiser(
        registers.repeat(2, 1, 1), time(2), condition=conditions(1).repeat(2, 1, 1), keep_condition=keep
    )
    torch.testing.assert_close(mixed, torch.cat([before, others[-1]]))
    shared = denoiser(registers.repeat(2, 1, 1), time(2), condition_kv=denoiser.cross_attention_kv(conditions(1)))
    torch.testing.assert_close(shared, before.repeat(2, 1, 1))


def test_with_the_blocks_of_a_demasker_pure_noise_is_read_too():
    noise = tiny.bank(2)
    assert tiny.denoiser(BODY)(noise, time(2, 1.0)).isfinite().all()


def test_the_blocks_of_a_demasker_are_stored_distilled_and_prompted_like_others(tmp_path):
    denoiser = tiny.denoiser(BODY)
    for bits in (None, 8):
        save_model(denoiser, tmp_path / str(bits), bits=bits)
        assert load_model(tmp_path / str(bits)).config == BODY
    noisy = tiny.bank(2)
    expected = denoiser(noisy, time(2), condition=conditions(2))
    assert torch.equal(load_model(tmp_path / "None")(noisy, time(2), condition=conditions(2)), expected)
    student = flow_map_of(denoiser, generator_for("student"))
    torch.testing.assert_close(student(noisy, time(2), end_time=time(2, 0.2), condition=conditions(2)), expected)
    with torch.no_grad():
        student.span[-1].bias.normal_(generator=torch.Generator().manual_seed(0))
    ordinary = plain_copy_of(student)
    assert ordinary.config == BODY
    torch.testing.assert_close(
        ordinary(noisy, time(2), condition=conditions(2)), student(noisy, time(2), condition=conditions(2))
    )
    prompted = prompted_from(denoiser, NUM_REGISTERS, REGISTER_WIDTH, generator_for("prompted"))
    assert prompted.config.num_positions == NUM_REGISTERS + 2 + LENGTH + NUM_REGISTERS
    assert not torch.allclose(prompted(noisy, time(2), prompt=noisy), prompted(noisy, time(2)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 16}, "width is 16, in the body 32"),
        ({"register_width": 8}, "registers of another width"),
        ({"num_registers": 7}, "or fewer of them"),
        ({"standardised": True}, "set standardised=false"),
    ],
)
def test_a_body_of_another_shape_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        replace(BODY, **changed)


def test_a_body_has_no_identity_attention_and_its_own_demasker():
    with pytest.raises(ValueError, match="use pag_scale=0"):
        tiny.denoiser(BODY)(tiny.bank(1), time(1), identity_attention=torch.tensor([True]))
    with pytest.raises(ValueError, match="another shape than the demasker"):
        begun_as_demasker(BODY, tiny.demasker(), generator_for("begun"))
