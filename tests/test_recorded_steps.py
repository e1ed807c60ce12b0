"""Steps that a GPU records read no value and copy none from the host: here they run on tensors without values."""

from dataclasses import replace

import pytest
import tiny
import torch

from crocodil.pipeline.drawing import ConditionStep
from crocodil.sampling.call import DemaskerStep, Engine, RevealConfig, reveal
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.guidance import Guided
from crocodil.sampling.register_draw import Prior, Schedule, draw_registers
from crocodil.sampling.state import Canvas

NOISY = {"register_noise": 0.75}


@pytest.mark.parametrize("knobs", [NOISY, {"early_stop": True, **NOISY}, {"eta": 1.0}])
def test_the_steps_of_a_draw_are_functions_of_tensors(knobs):
    drawing, steps = Drawing(**knobs), []

    def play(step, key, inputs):
        """Run the step without values, and go on with zeros."""
        steps.append(type(step).__name__)
        outputs = step(*(tensor if tensor is None else tensor.to("meta") for tensor in inputs))
        found = outputs if isinstance(outputs, tuple) else (outputs,)
        assert all(output.is_meta for output in found)
        zeros = tuple(torch.zeros(output.shape) for output in found)
        return zeros if isinstance(outputs, tuple) else zeros[0]

    draw_registers(
        Prior.of(tiny.denoiser().to("meta")),
        drawing,
        num_steps=2,
        schedule=Schedule.of(Prior.of(tiny.denoiser()), drawing, num_steps=2, device=torch.device("cpu")),
        streams=tiny.streams(3),
        engine=Engine(play),
    )
    assert steps == ["Begin", "DDIMStep", "DDIMStep", "End"]


@torch.no_grad()
@pytest.mark.parametrize("in_turn", ["no", "new", "all"])
@pytest.mark.parametrize("crop", [None, 2])
def test_a_call_is_a_function_of_tensors(in_turn, crop, monkeypatch):
    """With a causal head, it draws as many tokens as there may be: how many there are is a value."""
    demask = Guided(tiny.demasker().to("meta"), head=tiny.causal_head().to("meta"))
    decoding = Decoding(calls=4, rule="revise", pace="text", in_turn=in_turn, crop=crop)
    canvas = Canvas(torch.empty(3, 8, dtype=torch.long, device="meta"), tiny.MASK, tiny.EOS)
    config = RevealConfig.of(canvas, decoding, decoding.plan(8))
    step = DemaskerStep(demask, config, reveal, num_rows=8)
    bounds = torch.empty(4, dtype=torch.long, device="meta")
    read_length = None if crop is None else torch.empty(3, dtype=torch.long, device="meta")
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # it does not know this device
    keys = tiny.streams(3).keys.to("meta")
    revealed = step(canvas.tokens, canvas.given(), tiny.bank(3).to("meta"), keys, bounds, None, None, read_length)
    assert all(part.is_meta for part in revealed if part is not None)
    assert revealed.tokens.shape == (3, 8)


@torch.no_grad()
def test_the_condition_of_a_draw_is_a_function_of_tensors(monkeypatch):
    encoder, denoiser = tiny.encoder(), tiny.denoiser(tiny.CONDITIONAL)
    tokens = torch.tensor([[3, 4, tiny.MASK, 5], [tiny.MASK, 6, 7, 8]])
    here = ConditionStep(encoder, (denoiser,), tiny.MASK)(tokens)
    condition = encoder(tokens, hidden=tokens == tiny.MASK)
    assert torch.equal(here[0], condition)
    assert torch.equal(here[1], denoiser.cross_attention_kv(condition))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # it does not know this device
    there = ConditionStep(encoder.to("meta"), (denoiser.to("meta"),), tiny.MASK)(tokens.to("meta"))
    assert [output.shape for output in there] == [output.shape for output in here]


@torch.no_grad()
def test_positions_of_a_demasker_come_from_no_number_of_the_host(monkeypatch):
    """Copying a number to the device is refused while a GPU records."""
    tokens, bank = tiny.programs(2, 8), tiny.bank(2)
    for literal in (False, True):
        demasker = tiny.demasker(replace(tiny.DEMASKER, literal_positions=literal))
        expected = demasker(tokens, bank)
        with monkeypatch.context() as patched:
            patched.setattr(torch, "tensor", lambda *_, **__: pytest.fail("a number of the host"))
            assert torch.equal(demasker(tokens, bank), expected)
