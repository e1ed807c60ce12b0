"""Operations as training/work.py counts them, against a counter of all matrix products."""

from dataclasses import replace

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives import (
    DemaskerObjective,
    HeadObjective,
    PriorObjective,
    base_loss,
    conditional_prior_loss,
    guided_step,
    in_turn_loss,
    prior_loss,
)
from crocodil.training.work import (
    FROZEN,
    PASSED_THROUGH,
    TRAINED,
    base_flops,
    causal_head_flops,
    conditional_flops,
    demasker_flops,
    denoiser_flops,
    encoder_flops,
    guess_flops,
    guided_flops,
    head_flops,
    output_flops,
    prior_flops,
)

ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # the counter does not know it
BODY = replace(
    tiny.CONDITIONAL,
    width=tiny.BACKBONE.width,
    num_layers=tiny.BACKBONE.num_layers,
    num_heads=tiny.BACKBONE.num_heads,
    body=tiny.DEMASKER,
)


def counted(function) -> int:
    def attention(query, key, value, *args, out_shape=None, **kwargs) -> int:
        return sdpa_flop_count(query, key, value)

    with FlopCounterMode(display=False, custom_mapping={ON_CPU: attention}) as counter, torch.no_grad():
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "config",
    [
        tiny.DENOISER,
        tiny.CONDITIONAL,
        replace(tiny.CONDITIONAL, prompt_width=tiny.REGISTER_WIDTH, prompt_length=tiny.NUM_REGISTERS),
        replace(tiny.CONDITIONAL, self_conditioned=True),
        replace(tiny.CONDITIONAL, flow_map=True),
        BODY,
    ],
)
def test_the_operations_of_a_denoiser_are_those_that_its_matrix_products_take(config):
    denoiser, count = RegisterDenoiser(config), 3
    registers, times = torch.randn(count, config.num_registers, config.register_width), torch.rand(count, 6)
    inputs = {}
    if config.condition_width is not None:
        inputs["condition"] = torch.randn(count, config.condition_length, config.condition_width)
    if config.prompt_width is not None:
        inputs["prompt"] = torch.randn(count, config.prompt_length, config.prompt_width)
    if config.self_conditioned:
        inputs["guess"] = registers
    if config.flow_map:
        inputs["end_time"] = times / 2
    assert counted(lambda: denoiser(registers, times, **inputs)) == count * denoiser_flops(config)


@pytest.mark.parametrize(("rate", "num_guessed"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_the_guesses_of_a_self_conditioned_prior_are_a_pass_without_gradients(rate, num_guessed):
    config, objective = replace(tiny.DENOISER, self_conditioned=True), PriorObjective(self_condition_rate=rate)
    denoiser, registers = RegisterDenoiser(config), torch.randn(4, config.num_registers, config.register_width)
    passes = counted(lambda: prior_loss(denoiser, registers, objective=objective, streams=tiny.streams(4)))
    assert passes == 4 * denoiser_flops(config) + num_guessed * guess_flops(config)
    trained, guessed = 4 * denoiser_flops(config), num_guessed * guess_flops(config)
    assert 4 * prior_flops(config, self_condition_rate=rate) == TRAINED * trained + FROZEN * guessed
    assert guess_flops(tiny.DENOISER) == 0


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_the_operations_of_stage_base_count_the_hidden_tokens_and_the_passes_of_drafts(rate):
    count, length = 200, 12
    time = (torch.arange(count) + 0.5)[tiny.streams(count).uniform().argsort()] / count
    passes = counted(
        lambda: base_loss(
            tiny.llada(), tiny.programs(count, length), mask_id=tiny.MASK, streams=tiny.streams(count), time=time,
            draft_rate=rate,
        )
    )  # fmt: skip
    flops = base_flops(tiny.BACKBONE, length=length, draft_rate=rate)
    once = demasker_flops(tiny.BACKBONE, positions=length, rows=(1 + rate) / 2 * length)
    assert passes / count == pytest.approx(flops - (TRAINED - 1) * once, rel=0.01)


def test_the_operations_of_stage_guided_are_those_that_its_matrix_products_take():
    """All tokens are hidden, so their number is known."""
    count, length = 3, 12
    encoder, demasker = tiny.encoder(), tiny.demasker()
    passes = counted(
        lambda: guided_step(
            lambda tokens, _: encoder(tokens), demasker, tiny.programs(count, length),
            objective=DemaskerObjective(all_mask_rate=1.0, given_rate=0.0), mask_id=tiny.MASK,
            streams=tiny.streams(count),
        )
    )  # fmt: skip

    def flops(**options):
        return guided_flops(tiny.DEMASKER, tiny.ENCODER, length=length, all_mask_rate=1.0, **options)

    demasking = flops() - flops(adapted=True)
    encoding = (flops() - flops(encoder_learns=False)) / (TRAINED - FROZEN)
    mapped = 2 * tiny.NUM_REGISTERS * tiny.REGISTER_WIDTH * tiny.BACKBONE.width  # not counted, it is small
    assert passes == count * (mapped + demasking + encoding)
    assert flops() == TRAINED * (demasking + encoding)
    assert flops(adapted=True) == PASSED_THROUGH * demasking + TRAINED * encoding


def test_the_operations_of_stage_conditional_count_conditions_targets_and_all_draws():
    count, length, num_draws = 4, 12, 2
    encoder, denoiser, tokens = tiny.encoder(), RegisterDenoiser(tiny.CONDITIONAL), tiny.programs(count, length)
    passes = counted(
        lambda: conditional_prior_loss(
            denoiser, lambda some, hidden: encoder(some, hidden=hidden), tokens, encoder(tokens),
            objective=PriorObjective(), mask_id=tiny.MASK, streams=tiny.streams(count), num_draws=num_draws,
        )
    )  # fmt: skip
    encoding = encoder_flops(tiny.ENCODER, positions=length + tiny.NUM_REGISTERS)
    denoising = num_draws * denoiser_flops(tiny.CONDITIONAL)
    assert passes == count * (2 * encoding + denoising)

    def flops(**options):
        return conditional_flops(tiny.CONDITIONAL, tiny.ENCODER, length=length, self_condition_rate=0.0, **options)

    assert flops(bare_rate=0.0, live_draws=num_draws) == TRAINED * denoising + 2 * FROZEN * encoding
    cached = TRAINED * denoiser_flops(tiny.CONDITIONAL)
    assert flops(bare_rate=0.25) == cached + 0.75 * FROZEN * encoding  # a bare canvas is encoded once
    assert flops(bare_rate=0.25, encoder_learns=True) == cached + 0.75 * TRAINED * encoding


def test_the_operations_of_stage_head_are_those_that_its_matrix_products_take():
    """All tokens are hidden, and all but the first of each text are drawn, so their numbers are known."""
    count, length = 3, 12
    guided, objective = DemaskerObjective(all_mask_rate=1.0, given_rate=0.0), HeadObjective(whole_rate=1.0)
    encoder, demasker = tiny.encoder(), tiny.demasker()
    head = tiny.causal_head()
    passes = counted(
        lambda: in_turn_loss(
            lambda tokens, _: encoder(tokens), demasker, head, tiny.programs(count, length), objective=objective,
            guided_objective=guided, mask_id=tiny.MASK, streams=tiny.streams(count),
        )
    )  # fmt: skip
    positions = length + tiny.NUM_REGISTERS + 2
    frozen = encoder_flops(tiny.ENCODER, positions=length + tiny.NUM_REGISTERS)
    frozen += demasker_flops(tiny.BACKBONE, positions=positions, rows=length)
    trained, first = causal_head_flops(tiny.BACKBONE, positions=length), output_flops(tiny.BACKBONE, rows=1)
    output = output_flops(tiny.BACKBONE, rows=length)
    mapped = (
        2 * tiny.NUM_REGISTERS * tiny.REGISTER_WIDTH * tiny.BACKBONE.width
    )  # registers: not counted, it is small
    assert passes == count * (mapped + frozen + trained + output - first)
    assert head_flops(
        tiny.DEMASKER, tiny.ENCODER, length=length, objective=objective, all_mask_rate=1.0
    ) == pytest.approx(FROZEN * frozen + TRAINED * trained + PASSED_THROUGH * output)
