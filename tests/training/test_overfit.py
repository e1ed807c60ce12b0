"""Tiny real networks overfit eight programs: every stage of the paper in seconds."""

from dataclasses import replace

import pytest
import tiny
import torch
from tiny import MASK

from crocodil.objectives import DemaskerObjective, PriorObjective, base_loss, guided_step, prior_loss
from crocodil.sampling.algorithms import autoencode, con_then_disc
from crocodil.sampling.configs import Decoding, Drawing
from crocodil.sampling.guidance import Guided
from crocodil.sampling.register_draw import Prior, draw_registers
from crocodil.sampling.state import Canvas

LENGTH, NUM_REGISTERS, REGISTER_WIDTH = 16, 4, 32
BACKBONE = replace(tiny.BACKBONE, width=64, mlp_width=128)
REGISTERS = {"num_registers": NUM_REGISTERS, "register_width": REGISTER_WIDTH}
PROGRAMS = tiny.programs(8, LENGTH)
BATCH = PROGRAMS.repeat(4, 1)


def empty_canvas(count):
    return Canvas.empty(count, LENGTH, mask_id=MASK)


@pytest.fixture(scope="module")
def autoencoder():
    """An encoder and a demasker trained by Algorithm 1 on eight programs."""
    encoder = tiny.encoder(replace(tiny.ENCODER, width=REGISTER_WIDTH, head_width=16, mlp_width=64, **REGISTERS))
    demasker = tiny.demasker(replace(tiny.DEMASKER, backbone=BACKBONE, **REGISTERS))
    tiny.overfit(
        lambda streams: guided_step(
            lambda tokens, hidden: encoder(tokens), demasker, BATCH,
            objective=DemaskerObjective(), mask_id=MASK, streams=streams,
        ),
        encoder, demasker, steps=140, count=len(BATCH),
    )  # fmt: skip
    return encoder, demasker


@pytest.mark.parametrize("num_calls", [1, 4, 16])
def test_a_tiny_model_overfits_eight_programs_and_decodes_them_back(autoencoder, num_calls):
    encoder, demasker = autoencoder
    decoding = Decoding(calls=num_calls)
    samples = autoencode(encoder, Guided(demasker), PROGRAMS, empty_canvas(8), decoding, streams=tiny.streams(8))
    assert torch.equal(samples.tokens, PROGRAMS)
    assert samples.cost.demasker_calls == num_calls


def test_fewer_registers_decode_with_a_higher_loss(autoencoder):
    encoder, demasker = autoencoder
    rows = torch.ones(8, LENGTH, dtype=torch.bool)
    hidden = torch.full((8, LENGTH), MASK)
    registers = encoder(PROGRAMS)
    losses = [
        torch.nn.functional.cross_entropy(demasker(hidden, registers[:, :k], rows=rows), PROGRAMS.flatten())
        for k in (0, 1, NUM_REGISTERS)
    ]
    assert losses[0] > 1 > losses[1] > losses[2]


def test_a_prior_over_their_registers_generates_the_programs(autoencoder):
    encoder, demasker = autoencoder
    registers = encoder(BATCH).detach()
    prior = tiny.denoiser(replace(tiny.DENOISER, width=64, **REGISTERS))
    tiny.overfit(
        lambda streams: prior_loss(prior, registers, objective=PriorObjective(), streams=streams),
        prior, steps=200, count=len(BATCH),
    )  # fmt: skip
    generated = con_then_disc(
        lambda streams: draw_registers(Prior.of(prior), Drawing(), num_steps=32, streams=streams),
        Guided(demasker),
        empty_canvas(64),
        Decoding(calls=4),
        streams=tiny.streams(64),
    ).tokens
    known = (generated[:, None] == PROGRAMS).all(dim=2)
    assert known.any(dim=1).float().mean() > 0.8
    assert known.any(dim=0).sum() >= 6  # and not always the same one


def test_the_base_predicts_hidden_tokens_from_their_context():
    base = tiny.llada(BACKBONE)
    tiny.overfit(
        lambda streams: base_loss(base, BATCH, mask_id=MASK, streams=streams),
        base, steps=100, count=len(BATCH),
    )  # fmt: skip
    hidden = torch.zeros(8, LENGTH, dtype=torch.bool)
    hidden[:, 3::4] = True
    found = base(PROGRAMS.masked_fill(hidden, MASK), rows=hidden).argmax(dim=1)
    assert (found == PROGRAMS[hidden]).float().mean() > 0.9


@pytest.mark.parametrize(("draft_rate", "lowest", "highest"), [(0.0, 0.0, 0.2), (1.0, 0.25, 1.0)])
def test_only_a_demasker_that_saw_drafts_believes_visible_tokens(draft_rate, lowest, highest):
    """Eight tokens are equally likely everywhere: without drafts a visible one is as good as any."""
    demasker, no_registers = tiny.demasker(), torch.zeros(32, 0, tiny.REGISTER_WIDTH)

    def texts(streams):
        return streams.at("text").uniform(6).mul(8).long()

    objective = DemaskerObjective(draft_rate=draft_rate)
    tiny.overfit(
        lambda streams: guided_step(
            lambda *_: no_registers, demasker, texts(streams), objective=objective, mask_id=MASK, streams=streams
        ),
        demasker, steps=40, count=32,
    )  # fmt: skip
    shown = texts(tiny.streams(32, "shown"))
    with torch.no_grad():
        probs = demasker(shown, no_registers).softmax(dim=2)
    assert lowest < probs.gather(2, shown[..., None]).mean().item() < highest


def test_a_base_that_saw_drafts_believes_visible_tokens_too():
    base = tiny.llada()

    def texts(streams):
        return streams.at("text").uniform(6).mul(8).long()

    tiny.overfit(
        lambda streams: base_loss(base, texts(streams), mask_id=MASK, streams=streams, draft_rate=1.0),
        base, steps=40, count=32,
    )  # fmt: skip
    shown = texts(tiny.streams(32, "shown"))
    with torch.no_grad():
        probs = base(shown).softmax(dim=2)
    assert probs.gather(2, shown[..., None]).mean().item() > 0.25  # 1 / 8 without drafts
