"""Operations as training/work.py counts them, against a counter of all matrix products."""

from dataclasses import replace

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.objectives import DemaskerObjective, HeadObjective, PriorObjective, in_turn_loss, prior_loss
from crocodil.training.work import (
    FROZEN,
    PASSED_THROUGH,
    TRAINED,
    causal_head_flops,
    demasker_flops,
    denoiser_flops,
    encoder_flops,
    guess_flops,
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
