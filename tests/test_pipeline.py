"""A tiny trained model from text to text: in Python, on disk, and through every verb of the command line."""

import copy
import itertools
import json
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from crocodil import cli
from crocodil.cli.display import difference
from crocodil.metrics.likelihood import demasking_accuracy
from crocodil.models.causal_head import CausalHead, CausalHeadConfig
from crocodil.models.denoiser_starts import begun_as_demasker, flow_map_of, fresh_noise_copy_of
from crocodil.models.register_denoiser import RegisterDenoiser
from crocodil.pipeline import Base, Crocodil, Given, Method, Settings
from crocodil.pipeline.base_settings import BaseSettings
from crocodil.pipeline.batches import Watch
from crocodil.pipeline.engine import affordable_batch
from crocodil.pipeline.generating import generation_job
from crocodil.pipeline.results import partial_text
from crocodil.pipeline.settings import read_settings, to_json
from crocodil.presets.models import paper_demasker
from crocodil.processes.registers import noise_std_for_cosine
from crocodil.processes.reveal import highest
from crocodil.sampling.configs import Decoding, Drawing, with_knobs
from crocodil.sampling.cost import Cost, num_parameters
from crocodil.seeding import Streams, generator_for

TEXT = "def q1_alpha_0(q1_delta, scale=0):\n    return total\n"
OTHER = "    for step in range(4):\n        total += q2_beta ** step\n"
METHODS = list(Method)


def run(*arguments, stdin=None):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], input=stdin)


@pytest.fixture(scope="session")
def folder(trained, corpus, tmp_path_factory):
    """A model folder, made of a training run as a user makes it; its priors take fewer steps than the paper's."""
    out = tmp_path_factory.mktemp("model")
    made = run("export", trained, "--data", corpus.directory, "--out", out / "whole")
    assert re.findall(r"(\w+) [0-9.]+ MB", made.output) == ["demasker", "encoder", "prior", "conditional", "base"]
    model = Crocodil.from_pretrained(out / "whole", device="cpu")
    assert model.settings == Settings(length=64)
    with_drawing(model, prior_steps=12, refresh_steps=4).save_pretrained(out / "quick")
    return out / "quick"


@pytest.fixture(scope="session")
def pipe(folder):
    return Crocodil.from_pretrained(folder, device="cpu")


# ---------------------------------------------------------------- tokens that are drawn one after the other


@pytest.fixture(scope="session")
def headed(pipe):
    """The same model with a causal head whose weights matter."""
    backbone = pipe.demasker.backbone
    head = CausalHead(CausalHeadConfig(backbone=backbone.config)).init_weights(backbone, generator_for("head"))
    with torch.no_grad():
        head.proj_out.weight.normal_(std=0.5, generator=generator_for("stir"))
    return replace(pipe, causal_head=head.eval().requires_grad_(False))


@pytest.mark.parametrize("in_turn", ["new", "all"])
def test_tokens_in_turn_are_other_tokens_and_the_same_in_a_batch_of_any_size(headed, in_turn):
    knobs = {"calls": 3, "length": 20}
    made = [headed.generate(3, in_turn=in_turn, batch_size=size, **knobs) for size in (1, 3)]
    assert torch.equal(made[0].tokens, made[1].tokens)
    assert not torch.equal(made[0].tokens, headed.generate(3, **knobs).tokens)


def test_the_causal_head_counts_as_a_network_that_reads_the_canvas_in_each_call(headed):
    knobs = {"calls": 4, "method": "conthendisc"}
    plain, in_turn = (headed.generate(2, in_turn=how, **knobs) for how in ("no", "new"))
    demasker, head = num_parameters(headed.demasker), num_parameters(headed.causal_head)
    assert in_turn.cost == replace(plain.cost, head_calls=4)
    assert in_turn.nfe - plain.nfe == pytest.approx(4 * head / demasker)
    base = num_parameters(headed.demasker.backbone)
    assert in_turn.flop_nfe - plain.flop_nfe == pytest.approx(4 * head / base)


def test_tokens_in_turn_need_a_causal_head_and_no_guidance(pipe, headed):
    with pytest.raises(ValueError, match="needs a causal head"):
        pipe.generate(1, calls=4, in_turn="new")
    with pytest.raises(ValueError, match="needs a causal head"):
        headed.generate(1, calls=4, method="base", in_turn="new")  # the base has no head
    with pytest.raises(ValueError, match="needs guidance 1"):
        headed.generate(1, calls=4, in_turn="new", guidance=2.0)


def test_a_causal_head_of_another_demasker_is_refused(headed):
    other = replace(headed.causal_head.config.backbone, mlp_width=8)
    with pytest.raises(ValueError, match="another shape"):
        replace(headed, causal_head=CausalHead(CausalHeadConfig(backbone=other)))


# ---------------------------------------------------------------- generating


@pytest.mark.parametrize("method", METHODS)
def test_a_sample_is_the_same_token_for_token_in_a_batch_of_any_size(pipe, method):
    made = [pipe.generate(5, method=method, calls=8, seed=3, batch_size=size) for size in (1, 2, 5)]
    for other in made[1:]:
        assert torch.equal(made[0].tokens, other.tokens)
        assert made[0].costs == other.costs
        assert made[0].nfe == other.nfe
    assert made[0].cost.demasker_calls == sum(cost.demasker_calls for cost in made[0].costs)
    assert made[2].texts[:3] == pipe.generate(3, method=method, calls=8, seed=3).texts
    assert made[2].texts != pipe.generate(5, method=method, calls=8, seed=4).texts


def test_the_base_of_a_model_folder_answers_prompts_that_begin_with_bos(folder, pipe):
    base = Base.from_pretrained(folder, device="cpu")
    assert base.settings == BaseSettings(length=63, max_length=64, decoding=Decoding(temperature=1.0))
    assert base.prompt_tokens("def") == [pipe.tokenizer.special.bos, *pipe.tokenizer.encode("def")]
    made = base.generate(["def ", "import re"], length=8, calls=1)
    assert made.tokens.shape == (2, 8)
    assert made.costs == [Cost(demasker_calls=1)] * 2
    with pytest.raises(ValueError, match="the model 'builtin' has no base of its own"):
        Base.from_pretrained("builtin", device="cpu")


def test_long_work_says_where_it_stands_unless_the_caller_watches(pipe, capsys):
    pipe.decode(pipe.encode([TEXT] * 3), calls=1, batch_size=2)
    assert "sampling: 3/3 texts" in capsys.readouterr().err
    seen = []
    pipe.generate(3, calls=2, batch_size=2, on_call=lambda now: seen.append((len(now.tokens), now.call, now.cost)))
    assert capsys.readouterr().err == ""
    assert seen == [
        (size, call, Cost(call + 1, (12, 16)[call], call)) for size in (2, 1) for call in (0, 1)
    ]  # refreshed half way


@pytest.mark.parametrize("fractions", [(), (0.5,), (0, 0.5)])
def test_the_progress_of_a_batch_counts_its_calls_and_the_steps_of_its_priors(pipe, fractions):
    ticks = []
    job = generation_job(pipe, 2, calls=4, refresh_at=fractions)
    watch = Watch(lambda *_: ticks.append("call"), lambda *_: ticks.append("step"))
    job.sample(range(2), job.canvas.repeated(2), Streams.of("ticks", samples=range(2)), watch)
    assert len(ticks) == job.num_ticks
    assert ticks.count("call") == 4


@pytest.mark.parametrize("method", METHODS)
def test_a_prefix_may_be_cut_anywhere_and_stays(pipe, method):
    """A line break and its indentation are one token, and so are most words: these may go on."""
    for cut in (5, len(TEXT) - 18, len(TEXT) - 1):
        given = Given(prefix=TEXT[:cut])
        both = [pipe.generate(3, method=method, calls=4, given=given, batch_size=size) for size in (3, 2)]
        assert both[0].texts == both[1].texts
        assert all(text.startswith(TEXT[:cut]) for text in both[0].texts)
        assert both[0].costs == both[1].costs


def test_what_would_be_left_out_without_a_word_is_refused(pipe):
    with pytest.raises(
        ValueError, match="refresh_at is for method conwithindisc: conthendisc draws registers once"
    ):
        pipe.generate(1, calls=2, method="conthendisc", refresh_at=(0.5,))
    for count in (-1, 0):
        with pytest.raises(ValueError, match=f"{count} registers are asked for: use 1 or more"):
            pipe.autoencode([TEXT], num_registers=count)


def test_to_heal_given_text_takes_one_call_more(pipe):
    healed, fixed = (
        pipe.generate(2, calls=4, given=Given(prefix=TEXT[:35], heal=heal), rule="random")
        for heal in (True, False)
    )
    assert TEXT[34] == "\n"
    assert healed.cost.demasker_calls == 5
    assert fixed.cost.demasker_calls == 4
    given = [Given(prefix=TEXT[:35], heal=heal) for heal in (True, False)]
    for size in (1, 2):  # a sample pays only for what it needs itself
        mixed = pipe.generate(2, calls=4, given=given, rule="random", batch_size=size)
        assert [cost.demasker_calls for cost in mixed.costs] == [5, 4]


def test_a_refresh_before_the_first_call_is_the_first_draw(pipe):
    once = pipe.generate(2, calls=4, refresh_at=(0,))
    assert once.cost == Cost(once.cost.demasker_calls, pipe.settings.drawing.refresh_steps, 1)
    assert once.registers is not None


def test_a_damaged_network_is_named_and_no_text_comes_out(pipe):
    def damaged(name):
        network = copy.deepcopy(getattr(pipe, name))
        with torch.no_grad():
            max(network.parameters(), key=torch.numel).fill_(torch.nan)
        return replace(pipe, **{name: network})

    for name, message in {
        "demasker": "the demasker's logits", "prior": "the prior's", "conditional": "the prior's",
        "encoder": "the encoder's",
    }.items():  # fmt: skip
        with pytest.raises(FloatingPointError, match=f"{message}.* not finite"):
            damaged(name).generate(1, calls=4)
    with pytest.raises(FloatingPointError, match="the demasker's logits are not finite"):
        damaged("base").generate(1, method="base", calls=4)
    with pytest.raises(FloatingPointError, match="the encoder's registers are not finite"):
        damaged("encoder").encode([TEXT])


def test_a_batch_is_as_large_as_memory_allows():
    config, cpu = paper_demasker().backbone, torch.device("cpu")
    assert 16 >= affordable_batch(config, 64, cpu) >= affordable_batch(config, 4096, cpu) >= 1
    assert affordable_batch(config, 10**7, cpu) == 1


def test_every_method_costs_what_the_paper_says_it_does(pipe):
    costs = {method: pipe.generate(1, method=method, calls=8).costs[0] for method in METHODS}
    assert costs[Method.BASE].denoiser_calls == 0
    assert costs[Method.CON_THEN_DISC].denoiser_calls == 12
    assert costs[Method.CON_WITHIN_DISC] == replace(
        costs[Method.CON_WITHIN_DISC], denoiser_calls=16, encoder_calls=1
    )
    assert all(0 < cost.demasker_calls <= 8 for cost in costs.values())


def test_more_refreshes_cost_more_and_other_registers_come_out(pipe):
    once, often = (pipe.generate(2, calls=8, refresh_at=fractions) for fractions in ((0.25,), (0.25, 0.5, 0.75)))
    assert often.cost.denoiser_calls == once.cost.denoiser_calls + 2 * 4
    assert not torch.equal(once.registers, often.registers)


def test_a_refresh_of_the_registers_in_use_costs_as_much_as_one_from_noise(pipe):
    knobs = {"calls": 4, "num_registers": 2, "refresh_steps": 1}
    fresh, begun = (pipe.generate(2, **knobs, refresh_from=share) for share in (1.0, 0.4))
    first = pipe.generate(2, method="conthendisc", **knobs)
    assert begun.cost == fresh.cost
    assert begun.registers.shape == (2, 2, pipe.demasker.config.register_width)
    moved = [(made.registers - first.registers).square().mean() for made in (begun, fresh)]
    assert 0 < moved[0] < moved[1]
    stopped = pipe.generate(2, **knobs, refresh_from=0.4, register_noise=0.5, early_stop=True)
    assert stopped.cost == fresh.cost
    assert stopped.registers.square().mean().item() == pytest.approx(1.25, rel=0.2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "given", [Given(prefix="def q"), Given(suffix=" total"), Given(prefix="def q", suffix=" total")]
)
def test_what_is_given_stands_in_every_text(pipe, method, given):
    made = pipe.generate(3, method=method, calls=8, given=given)
    for text in made.texts:
        assert text.startswith(given.prefix)
        assert text.endswith(given.suffix)
    assert (made.tokens[:, 0] == pipe.tokenizer.special.bos).all()
    if method is not Method.BASE:  # the first registers know what is given
        assert made.costs[0].encoder_calls == (2 if method is Method.CON_WITHIN_DISC else 1)


def test_the_first_registers_are_drawn_given_the_visible_tokens_alone(pipe):
    streams = Streams.of("here", samples=range(2))
    canvas = pipe.canvas(64, Given(prefix=TEXT)).repeated(2).tokens
    drawn = pipe.draw_given(canvas, streams, num_steps=8)
    assert drawn.cost == Cost(denoiser_calls=8, encoder_calls=1)
    other = pipe.draw_given(pipe.canvas(64, Given(prefix=OTHER)).repeated(2).tokens, streams, num_steps=8)
    assert not torch.allclose(drawn.registers, other.registers, atol=1e-2)


def test_conditions_may_have_an_encoder_of_their_own(pipe):
    streams, canvas = Streams.of("here", samples=range(1)), pipe.canvas(64, Given(prefix=TEXT)).tokens
    other = copy.deepcopy(pipe.encoder)
    other.suffix.add_(1.0)
    own = replace(pipe, condition_encoder=other)
    drawn, own_drawn = (model.draw_given(canvas, streams, num_steps=8).registers for model in (pipe, own))
    assert not torch.allclose(drawn, own_drawn, atol=1e-3)
    assert torch.equal(pipe.encode([TEXT]).bank, own.encode([TEXT]).bank)


def test_one_conditional_denoiser_can_serve_as_both_priors(pipe):
    made = replace(pipe, prior=None).generate(2, calls=8)
    assert made.costs[0].denoiser_calls == 16
    with pytest.raises(ValueError, match="no conditional prior: use conthendisc or base, with no given text"):
        replace(pipe, conditional=None).generate(1, calls=8)
    with pytest.raises(ValueError, match="this model has no prior"):
        replace(pipe, prior=None, conditional=None).generate(1, method="conthendisc")


def test_a_model_of_several_lengths_takes_the_canvas_that_a_text_needs(pipe):
    several = replace(pipe, settings=replace(pipe.settings, length=32, lengths=(32, 64)))
    assert several.canvas_length([TEXT[:20]]) == 32
    longer = 2 * TEXT
    assert several.canvas_length([TEXT[:20], longer]) == several.canvas_length([9 * TEXT]) == 64
    assert several.autoencode([longer], calls=4).tokens.shape == (1, 64)
    assert [several.generate(1, calls=4, length=length).tokens.shape[1] for length in (None, 64)] == [32, 64]
    assert several.at_length(64).settings.lengths == (64,)
    with pytest.raises(ValueError, match="trained on canvases of 32 and 64 tokens, not 48"):
        several.at_length(48)


def test_registers_of_a_standardised_prior_return_to_the_units_of_the_encoder(pipe):
    prior, streams = (
        RegisterDenoiser(replace(pipe.prior.config, standardised=True)),
        Streams.of("here", samples=[0]),
    )
    prior.load_state_dict(pipe.prior.state_dict() | {"statistics": prior.statistics})
    standardised = replace(pipe, prior=prior)
    assert torch.equal(standardised.draw(streams, length=64).registers, pipe.draw(streams, length=64).registers)
    prior.statistics[0, :, 3] = 1000.0
    drawn = standardised.draw(streams, length=64).registers
    assert torch.allclose(drawn[..., 3], torch.tensor(drawn.shape[-1] ** 0.5), rtol=1e-3)  # on the sphere again


def test_autoguidance_moves_away_from_the_weak_prior_of_its_kind(pipe, tmp_path):
    """Decision D43: weak + scale (prior - weak), here in the only step of a draw."""
    weak = copy.deepcopy(pipe.conditional)
    weak.proj_out.weight.mul_(0.5)
    one, streams = replace(pipe, prior=None, weak_prior=weak), Streams.of("here", samples=range(2))
    knobs = {"prior_steps": 1, "refresh_steps": 1, "largest_offset": 0.0}
    drawn = [with_drawing(one, **knobs, autoguidance=scale).draw(streams, length=64) for scale in (0.0, 1.0, 3.0)]
    weak_alone = with_drawing(replace(pipe, prior=None, conditional=weak), **knobs).draw(streams, length=64)
    assert torch.allclose(drawn[0].registers, weak_alone.registers, atol=1e-4)
    assert torch.equal(
        drawn[1].registers, with_drawing(replace(one, weak_prior=None), **knobs).draw(streams, length=64).registers
    )
    assert not torch.allclose(drawn[2].registers, drawn[1].registers, atol=1e-2)
    assert [draw.cost.denoiser_calls for draw in drawn] == [2, 1, 2]
    made = replace(pipe, weak_prior=weak).generate(1, calls=2, autoguidance=2.0, **knobs)
    assert made.cost.denoiser_calls == 1 + 2  # the plain prior has no weak one
    one.save_pretrained(tmp_path / "model")
    loaded = Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    assert torch.equal(loaded.weak_prior.proj_out.weight, weak.proj_out.weight)
    with pytest.raises(ValueError, match="autoguidance needs a weak prior"):
        pipe.generate(1, calls=2, autoguidance=2.0)
    with pytest.raises(ValueError, match="the weak prior is unlike every prior of the model"):
        replace(pipe, conditional=None, weak_prior=weak)


def test_the_weak_prior_of_one_that_began_as_the_demasker_may_have_other_blocks(pipe):
    """Decision D79."""
    body = pipe.demasker.config
    size = {name: getattr(body.backbone, name) for name in ("width", "num_layers", "num_heads")}
    config = replace(pipe.conditional.config, body=body, text_length=64, **size)
    begun = begun_as_demasker(config, pipe.demasker, generator_for("begun"))
    guided = replace(pipe, prior=None, conditional=begun, weak_prior=pipe.conditional)
    made = guided.generate(1, calls=2, autoguidance=2.0, prior_steps=1, refresh_steps=1)
    assert made.cost.denoiser_calls == 4


def test_a_bare_canvas_tells_the_one_prior_how_long_it_is(pipe):
    alone, streams = replace(pipe, prior=None), Streams.of("here", samples=range(2))
    short, long = (alone.draw(streams, length=length) for length in (32, 64))
    assert not torch.allclose(short.registers, long.registers, atol=1e-3)
    canvas, num_steps = pipe.canvas(64).repeated(2), pipe.settings.drawing.prior_steps
    given = alone.draw_given(canvas.tokens, streams, num_steps=num_steps)
    assert torch.allclose(long.registers, given.registers, atol=1e-4)
    assert long.cost == Cost(denoiser_calls=pipe.settings.drawing.prior_steps)  # it is encoded once for all


def test_the_settings_say_how_much_noise_of_a_draw_is_fresh(pipe):
    restless = with_drawing(pipe, eta=1.0)
    streams = Streams.of("here", samples=range(3))
    still, moved = (one.draw(streams, length=64).registers for one in (pipe, restless))
    assert not torch.allclose(still, moved, atol=1e-2)
    alone = restless.draw(Streams.of("here", samples=[2]), length=64).registers
    assert torch.allclose(moved[2:], alone, atol=1e-4)  # whoever else is drawn
    with pytest.raises(ValueError, match=r"eta should be less than or equal to 1, not 1.5"):
        Drawing(eta=1.5)


def test_the_settings_say_through_which_times_registers_are_drawn(pipe):
    shifted = with_drawing(pipe, time_shift=3.0)
    streams = Streams.of("here", samples=range(3))
    plain, other = (one.draw(streams, length=64).registers for one in (pipe, shifted))
    assert not torch.allclose(plain, other, atol=1e-2)
    with pytest.raises(ValueError, match="time_shift should be greater than 0, not 0"):
        Drawing(time_shift=0)


def with_drawing(pipe, **changes):
    drawing = replace(pipe.settings.drawing, **changes)
    return replace(pipe, settings=replace(pipe.settings, drawing=drawing))


def test_the_settings_hold_the_reveal_rule_and_the_guidance_of_the_prior(pipe):
    own = with_drawing(pipe, pag_scale=2.0)
    own = replace(own, settings=replace(own.settings, decoding=Decoding(rule="remask")))
    made = own.generate(2, calls=4, length=64)
    assert made.cost == Cost(4, 2 * (own.settings.drawing.prior_steps + own.settings.drawing.refresh_steps), 1)
    assert own.settings.decoding_for(Method.CON_THEN_DISC).rule == "remask"
    assert own.settings.decoding_for(Method.BASE) == Decoding(temperature=1.0)  # at 0 it would have one text
    with pytest.raises(ValueError, match="pag_scale should be greater than or equal to 0, not -1"):
        Drawing(pag_scale=-1)
    with pytest.raises(ValueError, match=r"rule should be a reveal rule \(confidence, noisy-confidence, .*'best'"):
        Decoding(rule="best")
    with pytest.raises(ValueError, match="rule should be the name of a reveal rule or a `RevealRule`"):
        Decoding(rule=lambda step: step.open)
    assert Decoding(rule="remask by confidence") == Decoding(rule="remask-confidence")  # its old name


@dataclass(frozen=True)
class LeftToRight:
    """A reveal rule that somebody else wrote."""

    reveals_quota = True
    may_finish_early = False

    def __call__(self, step):
        position = torch.arange(step.open.shape[1]).expand_as(step.open)
        return (step.open & ~step.hidden) | highest(-position.float(), among=step.hidden, count=step.quota())


def test_a_rule_that_somebody_else_wrote_decides_what_is_revealed(pipe):
    seen = []
    pipe.generate(1, method="base", calls=8, length=64, rule=LeftToRight(), on_call=seen.append)
    for snapshot in seen[:-1]:
        (text,) = snapshot.texts
        assert "\u2591" not in text.rstrip("\u2591")  # what is hidden is all at the end
        assert snapshot.num_calls == 8
    with pytest.raises(ValueError, match="a rule of your own cannot be saved"):
        to_json(replace(pipe.settings, decoding=Decoding(rule=LeftToRight())))


def test_every_knob_is_an_argument_and_stands_in_the_model_file(pipe, tmp_path):
    """A new knob is a field of `Decoding` or `Drawing`, and the code that uses it."""
    settings = to_json(pipe.settings)
    for part, config_class in (("decoding", Decoding), ("drawing", Drawing)):
        assert set(settings[part]) == {field.name for field in fields(config_class)}
    plain = {**settings["decoding"], **settings["drawing"]}
    decoding, drawing = with_knobs(Decoding(), Drawing(), plain)
    assert (decoding, drawing) == (pipe.settings.decoding, pipe.settings.drawing)
    with pytest.raises(ValueError, match="no sampling option 'heat': take one of autoguidance, block_size"):
        pipe.generate(1, heat=2)
    with pytest.raises(ValueError, match=r"option 'prefix': .*; prefix and suffix go into given=Given\(prefix="):
        pipe.generate(1, prefix="x")
    with pytest.raises(ValueError, match="no decoding option 'pag_scale'"):
        pipe.autoencode([TEXT], pag_scale=2.0)


def test_texts_are_streamed_as_they_are_finished(pipe):
    whole = pipe.generate(5, calls=4, length=64)
    started = []
    stream = pipe.stream(
        5, calls=4, length=64, batch_size=2, on_call=lambda seen: started.append(len(seen.tokens))
    )
    assert [next(stream), next(stream)] == whole.texts[:2]
    assert set(started) == {2}  # the third text has not been begun
    assert len(started) == 4
    assert list(stream) == whole.texts[2:]
    batches = list(pipe.stream_batches(5, calls=4, length=64, batch_size=2))
    assert [cost for batch in batches for cost in batch.costs] == whole.costs
    with pytest.raises(ValueError, match="at least one text is generated, not 0"):
        pipe.stream(0)


def test_no_text_is_a_mistake_that_is_told(pipe):
    for use in (pipe.encode, pipe.autoencode):
        with pytest.raises(ValueError, match="there is no text to encode"):
            use([])


def test_the_first_of_the_drawn_registers_may_guide_alone(pipe):
    whole = pipe.generate(2, method="conthendisc", calls=4, length=64)
    for few in (
        pipe.generate(2, method="conthendisc", calls=4, length=64, num_registers=2),
        with_drawing(pipe, num_registers=2).generate(2, method="conthendisc", calls=4, length=64),
    ):
        assert torch.equal(few.registers, whole.registers[:, :2])
        assert few.texts == pipe.generate(2, method="conthendisc", calls=4, length=64, num_registers=2).texts
        assert few.flop_nfe < whole.flop_nfe  # a shorter prefix
    with pytest.raises(ValueError, match="num_registers should be greater than or equal to 1"):
        pipe.generate(1, num_registers=0)


def test_the_base_is_a_network_of_its_own_or_else_the_result_says_what_it_is(pipe):
    assert pipe.generate(1, method="base", calls=4).note == ""
    without = replace(pipe, base=None).generate(1, method="base", calls=4)
    assert without.note == "this model has no base: used its demasker without registers"
    assert without.registers is None


def test_a_threshold_takes_as_many_calls_as_each_sample_needs(pipe):
    together = pipe.generate(4, length=32, calls=31, threshold=0.1)
    calls = [cost.demasker_calls for cost in together.costs]
    assert max(calls) < 31
    assert together.cost.demasker_calls == max(calls) > min(calls)
    alone = pipe.generate(4, length=32, calls=31, threshold=0.1, batch_size=1)
    assert [cost.demasker_calls for cost in alone.costs] == calls
    assert together.nfe == alone.nfe


def test_guidance_is_for_registers(pipe):
    strong = replace(pipe, settings=replace(pipe.settings, decoding=Decoding(guidance=2.0, temperature=1.0)))
    assert strong.generate(1, calls=4).cost.demasker_calls == 8
    assert strong.generate(1, method="base", calls=4).cost.demasker_calls == 4
    with pytest.raises(ValueError, match=r"guidance 2\.0 needs registers to strengthen, and there are none"):
        pipe.generate(1, method="base", guidance=2.0)


def test_guidance_and_blocks_reach_the_decoding(pipe):
    made = pipe.generate(1, calls=8, block_size=16, guidance=1.5)
    assert made.costs[0].demasker_calls <= 16
    assert made.costs[0].demasker_calls % 2 == 0


def test_flop_weighted_calls_pay_for_the_prefix_and_the_encoder(pipe):
    made = pipe.decode(pipe.encode([TEXT]), calls=8)
    assert made.nfe == made.costs[0].demasker_calls
    assert made.nfe * (64 + 8 + 2) / 64 <= made.flop_nfe < made.nfe * 1.3


# ---------------------------------------------------------------- text -> registers -> text


def test_registers_decode_again_however_many_of_the_first_there_are(pipe):
    registers = pipe.encode([TEXT, OTHER])
    assert registers.shape == (2, 8, 32)
    assert registers.length == 64
    assert torch.allclose(registers.bank, pipe.encode([TEXT, OTHER], batch_size=1).bank, atol=1e-5)
    for k in (8, 3, 1):
        made = pipe.decode(registers[:, :k], calls=8)
        assert torch.equal(made.registers, registers[:, :k].bank)
        assert made.texts == pipe.autoencode([TEXT, OTHER], calls=8, num_registers=k).texts
    assert pipe.decode(registers, calls=8).cost == Cost(demasker_calls=8)
    assert pipe.autoencode([TEXT, OTHER], calls=8).cost == Cost(demasker_calls=8, encoder_calls=1)
    with pytest.raises(ValueError, match="the registers have width 31"):
        pipe.decode(registers[..., 1:])


def test_an_interpolation_begins_and_ends_with_the_two_texts_as_they_decode(pipe):
    made = pipe.interpolate(TEXT, OTHER, 3, calls=8)
    ends = pipe.autoencode([TEXT, OTHER], calls=8).texts
    assert len(made.texts) == 3
    assert [made.texts[0], made.texts[2]] == ends
    with pytest.raises(ValueError, match="an interpolation needs at least 2 steps: both ends count"):
        pipe.interpolate(TEXT, OTHER, 1)


def test_a_text_beyond_the_models_length_is_refused_with_what_would_be_cut(pipe):
    long = "total = 1\n" * 40
    with pytest.raises(
        ValueError, match=r"text 2 of 2 has \d+ tokens and the model takes 63: the last \d+ would be"
    ):
        pipe.encode([TEXT, long])
    kept, lost = pipe.fitting(long)
    assert kept + lost == long
    assert lost
    assert torch.equal(pipe.encode([long], cut=True).bank, pipe.encode([kept]).bank)
    assert "".join(pipe.pieces(long)) == long
    assert all(piece.endswith("\n") and pipe.fitting(piece) == (piece, "") for piece in pipe.pieces(long))
    assert pipe.fitting(TEXT) == (TEXT, "")


def test_a_text_is_not_cut_inside_a_character(pipe):
    for text in ("x" * number + "\N{CROCODILE}" * 40 for number in range(4)):
        kept, lost = pipe.fitting(text)
        assert kept + lost == text
        assert pipe.fitting(kept) == (kept, "")
        assert "".join(pipe.pieces(text)) == text


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"count": 0}, "at least one text is generated, not 0"),
        ({"method": "magic"}, "no method 'magic': take one of base, conthendisc, conwithindisc"),
        ({"length": 65}, "canvases of 2 to 64 tokens, not 65"),
        ({"calls": 65}, "65 calls exceed the 64 tokens of the canvas: use 64 or fewer"),
        ({"block_size": 24}, "block_size 24 does not divide length 64: use 16 or 32"),
        (
            {"calls": 6, "block_size": 16},
            "6 calls do not split over 4 blocks: use a multiple of 4",
        ),
        ({"given": Given(prefix="xyz1 " * 20)}, r"the given text takes \d+ of 64 tokens and leaves none to fill"),
        ({"batch_size": -1}, "batch_size is -1: at least one text is in a batch"),
        ({"batch_size": 0}, "batch_size is 0: at least one text is in a batch"),
    ],
)
def test_what_cannot_be_generated_is_one_line_that_says_what_can(pipe, asked, message):
    with pytest.raises(ValueError, match=message):
        pipe.generate(**asked)


def test_registers_remember_the_canvas_that_they_describe(pipe, tmp_path):
    longer = replace(pipe, settings=replace(pipe.settings, lengths=(64, 128)))
    long = "total = 1\n" * 20
    registers = longer.encode([long])
    assert (registers.length, registers[:, :2].length, len(registers)) == (128, 128, 1)
    made = longer.decode(registers, calls=8)
    assert made.tokens.shape == (1, 128)
    assert made.texts == longer.autoencode([long], calls=8).texts
    with pytest.raises(ValueError, match="a bare tensor of registers has no canvas length: pass length=64 or 128"):
        longer.decode(registers.bank, calls=8)
    assert longer.decode(registers.bank, length=128, calls=8).texts == made.texts
    longer.save_pretrained(tmp_path / "model")
    (tmp_path / "long.py").write_text(long)
    file = tmp_path / "registers.safetensors"
    run("encode", tmp_path / "long.py", "--model", tmp_path / "model", "--out", file)
    decoded = run("decode", file, "--model", tmp_path / "model", "--calls", 8, "--format", "jsonl")
    kept = longer.autoencode([long.removesuffix("\n")], calls=8).texts[0]
    assert json.loads(decoded.stdout)["text"] == kept
    assert json.loads(decoded.stdout)["file"] == str(tmp_path / "long.py")


def test_a_long_text_can_be_encoded_piece_by_piece(folder, pipe, tmp_path):
    text = "\n".join(f"total = {number}" for number in range(30))
    (tmp_path / "long.py").write_text(text + "\n")
    file = tmp_path / "registers.safetensors"
    run("encode", tmp_path / "long.py", "--split", "--model", folder, "--out", file)
    pieces = pipe.pieces(text)
    assert len(load_file(file)["registers"]) == len(pieces) > 1
    decoded = run("decode", file, "--model", folder, "--calls", 8)
    whole = "".join(pipe.decode(pipe.encode(pieces), calls=8).texts)
    assert decoded.stdout == whole + "\n"
    assert decoded.stderr.startswith(f"1 text from {len(pieces)} pieces in ")
    out = tmp_path / "texts"
    written = run("decode", file, "--model", folder, "--calls", 8, "--out-dir", out, "--extension", "py")
    assert written.stdout == f"{out / '0000.py'}\n"
    assert (out / "0000.py").read_text() == whole


def test_registers_that_are_not_finite_are_refused(folder, pipe, tmp_path):
    bank = pipe.encode([TEXT]).bank
    bank[0, 0, 0] = float("nan")
    save_file({"registers": bank}, tmp_path / "broken.safetensors")
    failed = run("decode", tmp_path / "broken.safetensors", "--model", folder)
    assert "holds registers that are not finite: encode the texts again" in str(failed.exception)


def test_registers_that_do_not_fit_are_one_line(pipe):
    for shape, message in (
        ((1, 8, 31), "the registers have width 31"),
        ((1, 9, 32), "there are 9 registers per text, this model has 8"),
        ((0, 8, 32), "there are no registers to decode"),
    ):
        with pytest.raises(ValueError, match=message):
            pipe.decode(torch.ones(shape))


def test_more_registers_than_there_are_are_refused(pipe):
    drawn, encoded = pipe.prior.config.num_registers, pipe.encoder.config.num_registers
    with pytest.raises(ValueError, match=f"this model draws {drawn}: use fewer"):
        pipe.generate(1, calls=2, num_registers=drawn + 1)
    with pytest.raises(ValueError, match=f"this model encodes {encoded}: use fewer"):
        pipe.autoencode(["x = 1"], calls=2, num_registers=encoded + 1)


def test_one_string_is_no_list_of_texts(pipe):
    for verb in (pipe.encode, pipe.autoencode):
        with pytest.raises(ValueError, match="texts is one string: give a list of texts"):
            verb("def f(): pass")


def test_a_generation_prints_as_its_texts(pipe):
    made = pipe.generate(2, calls=4)
    assert str(made) == f"{made.texts[0]}\n{'-' * 40}\n{made.texts[1]}"


def test_a_generation_is_a_sequence_of_its_texts(pipe):
    made = pipe.generate(2, calls=4)
    assert len(made) == 2
    assert list(made) == made.texts == made[:]
    assert made[-1] == made.texts[1]


def test_a_model_is_shown_in_one_line(pipe):
    several = replace(pipe, settings=replace(pipe.settings, lengths=(32, 64), method=Method.BASE))
    millions = sum(map(num_parameters, pipe.networks.values())) / 1e6
    shown = f"Crocodil({millions:.1f} M parameters, canvases of 32 or 64 tokens, method base, on cpu)"
    assert repr(several) == shown


def refused(folder, out):
    """Write the message of every mistake in the types of arguments; without shape checks, which come first."""
    pipe = Crocodil.from_pretrained(folder, device="cpu")
    bank = pipe.encode([TEXT]).bank
    messages = []
    for mistake in (
        lambda: pipe.generate("def f"),
        lambda: pipe.stream("def f"),
        lambda: pipe.generate(1, given="def f"),
        lambda: pipe.generate(1, given=["def f"]),
        lambda: pipe.generate(1, length=32.0),
        lambda: pipe.decode(bank.numpy()),
        lambda: pipe.decode(bank[0]),
        lambda: pipe.decode(bank[0, 0]),
        lambda: pipe.interpolate(["a"], ["b"]),
    ):
        try:
            mistake()
        except ValueError as error:
            messages.append(str(error))
    out.write_text(json.dumps(messages))


def test_an_argument_of_a_wrong_type_is_one_line_that_says_what_to_do(folder, tmp_path):
    finished = forked.run(refused, folder, tmp_path / "messages.json", out=tmp_path / "printed")
    assert finished.returncode == 0, finished.stderr
    prompt = "count is 'def f': for a prompt use complete(...) or given=Given(prefix=...)"
    shape = "registers have shape texts x registers x width, not"
    assert json.loads((tmp_path / "messages.json").read_text()) == [
        prompt,
        prompt,
        "given is a string: use Given(prefix=...)",
        "given has a string: use Given(prefix=...)",
        "length must be an integer, not 32.0",
        "registers should be a torch tensor or Registers, not ndarray",
        f"{shape} (8, 32): for one text use registers[0:1]",
        f"{shape} (32,)",
        "interpolate takes two strings",
    ]


def test_the_example_of_the_docs_runs(folder):
    text = (Path(__file__).parent.parent / "docs" / "sampling.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (block,) = [block for block in blocks if "pipe.interpolate" in block]
    block = block.replace("from_pretrained()", f"from_pretrained({str(folder)!r}, device='cpu')")
    exec(block.replace("generate(8", "generate(2"), {})


# ---------------------------------------------------------------- on disk


def test_swapped_priors_are_refused(pipe):
    with pytest.raises(ValueError, match="the prior has cross-attention, like a conditional prior"):
        replace(pipe, prior=pipe.conditional, conditional=pipe.prior)
    with pytest.raises(ValueError, match="the conditional prior has no cross-attention, like a plain prior"):
        replace(pipe, conditional=pipe.prior)


def test_priors_of_unequally_many_registers_are_refused(pipe):
    config = replace(pipe.conditional.config, num_registers=pipe.conditional.config.num_registers - 1)
    fewer = RegisterDenoiser(config).init_weights(generator_for("fewer"))
    with pytest.raises(ValueError, match="the priors draw 3 and 4 registers: they must be equal"):
        replace(pipe, conditional=fewer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoding": {"temperature": "hot"}}, r"crocodil.json: decoding.temperature should be a valid number"),
        ({"length": None}, r"crocodil.json: length should be a valid integer, not None"),
        ({"drawing": {"prior_steps": 10**9}}, r"crocodil.json: drawing.prior_steps should be less than or equal"),
        ({"drawing": {"colour": 1}}, r"crocodil.json: fields of Drawing differ: colour"),
        ({"lengths": [64, "x"]}, r"crocodil.json: lengths.1 should be a valid integer, not 'x'"),
    ],
)
def test_settings_of_a_wrong_type_or_range_are_one_line(folder, tmp_path, change, message):
    file = tmp_path / "crocodil.json"
    file.write_text(json.dumps(json.loads((folder / "crocodil.json").read_text()) | change))
    with pytest.raises(ValueError, match=message):
        read_settings(file)


def test_a_saved_model_generates_the_same_and_is_never_overwritten(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "copy")
    again = Crocodil.from_pretrained(tmp_path / "copy", device="cpu")
    assert again.settings == pipe.settings
    assert torch.equal(again.generate(2, calls=4).tokens, pipe.generate(2, calls=4).tokens)
    with pytest.raises(ValueError, match="models are never overwritten"):
        pipe.save_pretrained(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_model_in_int8_takes_a_third_of_the_size_and_says_much_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "int8", int8=True)
    pipe.save_pretrained(tmp_path / "whole")
    rounded = Crocodil.from_pretrained(tmp_path / "int8", device="cpu")
    for name in ("demasker", "encoder", "conditional"):  # so small that their headers and biases weigh
        sizes = [(tmp_path / kind / name / "model.safetensors").stat().st_size for kind in ("int8", "whole")]
        assert sizes[0] < sizes[1] / 3
    assert torch.cosine_similarity(rounded.encode([TEXT]).bank, pipe.encode([TEXT]).bank, dim=-1).min() > 0.99
    surprise = [cross_entropy_of(model, [TEXT, OTHER]) for model in (rounded, pipe)]
    assert surprise[0] == pytest.approx(surprise[1], rel=0.01)


def cross_entropy_of(pipe, texts):
    """At half of the tokens, guided by the registers of the text itself."""
    tokens, registers = pipe.tokens_of(texts), pipe.encode(texts).bank
    return demasking_accuracy(
        lambda noisy, rows: pipe.demasker(noisy, registers, rows=rows),
        tokens, 0.5, mask_id=pipe.mask_id, streams=Streams.of("half", samples=range(len(texts))),
    ).cross_entropy  # fmt: skip


def has_int4(directory):
    """Whether matrices are stored in four bits: two of them in a byte."""
    return any(weight.dtype == torch.uint8 for weight in load_file(directory / "model.safetensors").values())


@pytest.mark.parametrize(
    ("left_out", "method"),
    [
        ((), Method.CON_WITHIN_DISC),
        (("prior",), Method.CON_WITHIN_DISC),
        (("conditional",), Method.CON_THEN_DISC),
        (("prior", "conditional"), Method.BASE),
    ],
)
def test_the_default_method_of_an_exported_model_needs_no_network_that_it_lacks(
    trained, corpus, tmp_path, left_out, method
):
    without = [word for name in left_out for word in ("--without", name)]
    assert run("export", trained, "--data", corpus.directory, "--out", tmp_path / "model", *without).exit_code == 0
    model = Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    assert model.settings.method is method
    assert model.generate(1, calls=2, prior_steps=2, refresh_steps=1).texts


def test_export_takes_settings_and_leaves_networks_out(trained, corpus, tmp_path):
    asked = ["export", trained, "--data", corpus.directory, "--out", tmp_path / "model"]
    settings = ["--prior-steps", 12, "--refresh-steps", 4, "--eta", 1, "--temperature", 0.7, "--top-p", 0.9]
    settings += ["--pag-scale", 2, "--rule", "remask", "--calls", 8, "--autoguidance", 1.5]
    settings += ["--weak-prior", trained / "conditional" / "model" / "denoiser", "--license", "mit"]
    settings += ["--method", "conthendisc"]
    made = run(*asked, "--without", "base", "--without", "prior", "--bits", "4,encoder=8,conditional=5", *settings)
    names = ["demasker", "encoder", "conditional", "weak_prior"]
    sizes = [sum(file.stat().st_size for file in (tmp_path / "model" / name).iterdir()) / 1e6 for name in names]
    stated = ", ".join(f"{name} {size:.1f} MB" for name, size in zip(names, sizes, strict=True))
    assert made.output.startswith(f"{tmp_path / 'model'}: {stated}; ")
    model = Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    assert model.base is model.prior is None
    assert model.settings == Settings(
        length=64,
        method=Method.CON_THEN_DISC,
        decoding=Decoding(temperature=0.7, top_p=0.9, rule="remask", calls=8),
        drawing=Drawing(prior_steps=12, refresh_steps=4, eta=1.0, pag_scale=2.0, autoguidance=1.5),
    )
    assert torch.equal(model.weak_prior.proj_out.weight, model.conditional.proj_out.weight)
    in_int4 = {name: has_int4(tmp_path / "model" / name) for name in ("demasker", "encoder", "conditional")}
    assert in_int4 == {"demasker": True, "encoder": False, "conditional": True}
    card = (tmp_path / "model" / "README.md").read_text()
    assert re.search(r"\| guided \| 40 \| 16 \| adamw \| 0\.004 \| \d+\.\d \|", card)
    assert "| base | LLaDA" not in card
    assert "| denoiser, both priors | 2 layers x 64, 4 registers | " in card
    assert " | 5 bits |" in card
    assert "By default it fills 64 tokens, with `calls` 8, `rule` remask, `temperature` 0.7" in card
    assert "license: mit" in card
    for options, message in (
        (["--bits", 7], "stored in 8, 6, 5, 4 or 3 bits"),
        (["--bits", 4, "--int8"], "choose one"),
        (["--bits", "encode=4"], "no network 'encode'"),
        (["--bits", 4, "--bits", 8], "once for all networks"),
    ):
        failed = run(*asked[:-1], tmp_path / "other", *options)
        assert message in str(failed.exception)
    failed = run(*asked, "--without", "bass")
    assert failed.exit_code == 2
    assert "should be 'demasker', 'encoder'" in failed.output


def test_precision_is_an_argument(folder):
    pipe = Crocodil.from_pretrained(folder, device="cpu", dtype=torch.float64)
    made = pipe.generate(2, calls=4, given=Given(prefix="def"))
    assert all(text.startswith("def") for text in made.texts)
    assert pipe.encode([TEXT]).bank.dtype == torch.float64


def test_a_model_that_is_none_is_one_line(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"no model 'nowhere': a model is 'builtin', or a folder with crocodil\.json"
    ):
        Crocodil.from_pretrained("nowhere")
    networks = {"demasker": folder / "base", "encoder": folder / "encoder"}
    choices = {"tokenizer": folder / "tokenizer.json", "settings": Settings(length=64), "device": "cpu"}
    with pytest.raises(ValueError, match="base holds a LLaDA, not a Demasker"):
        Crocodil.assemble(networks, **choices)
    with pytest.raises(ValueError, match="a model needs a demasker and an encoder: demasker missing"):
        Crocodil.assemble({"encoder": folder / "encoder"}, **choices)
    (tmp_path / "crocodil.json").write_text('{"format": "other"}')
    with pytest.raises(ValueError, match="is not version 1 or 2 of this project's model format"):
        Crocodil.from_pretrained(tmp_path)


def test_settings_of_older_formats_are_read_as_they_were(folder, tmp_path):
    """Format 1 had all fields side by side; the first folders had neither coherence, rule nor time_shift."""
    file = tmp_path / "crocodil.json"
    first = {
        "format": "crocodil model", "format_version": 1, "length": 64, "lengths": [64], "largest_offset": 0.1,
        "prior_steps": 12, "refresh_steps": 4, "eta": 1.0, "num_registers": 2, "temperature": 0.5, "top_p": 1.0,
        "guidance": 1.0,
    }  # fmt: skip
    expected = Settings(
        length=64,
        decoding=Decoding(temperature=0.5),
        drawing=Drawing(prior_steps=12, refresh_steps=4, eta=1.0, num_registers=2),
    )
    file.write_text(json.dumps(first))
    assert read_settings(file) == expected
    file.write_text(json.dumps(first | {"coherence": 2.0, "rule": "at random", "time_shift": 0.4}))
    assert read_settings(file) == replace(
        expected,
        decoding=Decoding(temperature=0.5, rule="random"),
        drawing=replace(expected.drawing, pag_scale=2.0, time_shift=0.4),
    )
    for damaged, message in (
        (first | {"colour": "green"}, "fields of Settings differ: colour"),
        ({name: value for name, value in first.items() if name != "eta"}, "crocodil.json: eta is missing"),
    ):
        file.write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match=message):
            read_settings(file)


def test_a_knob_that_is_newer_than_a_folder_has_its_default(folder, tmp_path):
    values = json.loads((folder / "crocodil.json").read_text())
    del values["decoding"]["threshold"], values["drawing"]["pag_scale"], values["method"]
    del values["distilled_steps"]
    file = tmp_path / "crocodil.json"
    file.write_text(json.dumps(values))
    assert read_settings(file) == read_settings(folder / "crocodil.json")


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_the_same_bytes_and_what_the_library_gives(folder, pipe, method):
    asked = ["generate", "--model", folder, "--method", method, "--count", 2, "--calls", 8, "--seed", 5]
    first, second = run(*asked, "--format", "jsonl"), run(*asked, "--format", "jsonl", "--show")
    assert first.stdout_bytes == second.stdout_bytes
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    made = pipe.generate(2, method=method, calls=8, seed=5)
    assert [row["text"] for row in rows] == made.texts
    assert rows[1] == {"sample": 1, "method": method, "seed": 5, "text": made.texts[1], **vars(made.costs[1])}
    assert "seconds" in json.loads(run(*asked, "--format", "jsonl", "--timings").stdout.splitlines()[0])
    plain = run(*asked, "--verbose")
    assert plain.stdout == f"{made.texts[0]}\n{'-' * 40}\n{made.texts[1]}\n"
    assert re.search(r"^2 texts in [\d.]+ s, [\d.]+ s each$", first.stderr.splitlines()[-1])
    calls = plain.stderr.splitlines()[-1]
    assert re.match(r"calls per text: [\d.]+ of the demasker, [\d.]+ of the denoiser, [\d.]+ of", calls)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_method_the_models_own_is_used(pipe, method, tmp_path):
    own = replace(pipe, settings=replace(pipe.settings, method=method))
    expected = pipe.generate(1, method=method, calls=8, seed=5)
    made = own.generate(1, calls=8, seed=5)
    assert (made.texts, made.cost) == (expected.texts, expected.cost)
    own.save_pretrained(tmp_path / "model")
    printed = run("generate", "--model", tmp_path / "model", "--calls", 8, "--seed", 5, "--format", "jsonl")
    row = json.loads(printed.stdout)
    assert (row["method"], row["text"]) == (method, expected.texts[0])


def test_generate_takes_a_prefix_a_suffix_and_all_options_of_decoding(folder):
    made = run(
        "generate", "--model", folder, "--prefix", "def q", "--suffix", " total", "--length", 48, "--calls", 12,
        "--block-size", 16, "--temperature", 0.5, "--top-p", 0.9, "--guidance", 2, "--threshold", 0.8,
    )  # fmt: skip
    assert made.stdout.startswith("def q")
    assert made.stdout.endswith(" total\n")


def test_generate_passes_its_options_on(folder, pipe):
    asked = ["generate", "--model", folder, "--method", "conthendisc", "--calls", 8, "--temperature", 0]
    asked += ["--rule", "remask", "--prior-steps", 3, "--format", "jsonl"]
    knobs = {"calls": 8, "temperature": 0.0, "rule": "remask", "prior_steps": 3, "pag_scale": 1.0}
    expected = pipe.generate(1, method="conthendisc", **knobs)
    for flag in ("--pag-scale", "--coherence"):
        assert json.loads(run(*asked, flag, 1).stdout) == {
            "sample": 0, "method": "conthendisc", "seed": 0, "text": expected.texts[0], **vars(expected.costs[0])
        }  # fmt: skip


def test_texts_are_printed_as_soon_as_their_batch_is_finished(folder, pipe, monkeypatch):
    stream = Crocodil.stream_batches

    def first_two_batches(self, count, **options):
        yield from itertools.islice(stream(self, count, **options), 2)
        raise ValueError("stopped")

    monkeypatch.setattr(Crocodil, "stream_batches", first_two_batches)
    asked = ["generate", "--model", folder, "--method", "base", "--count", 3, "--calls", 2, "--batch-size", 1]
    stopped = run(*asked)
    assert str(stopped.exception) == "stopped"
    first, second, _ = pipe.generate(3, method="base", calls=2).texts
    assert stopped.stdout == f"{first}\n{'-' * 40}\n{second}\n"
    assert [json.loads(row)["text"] for row in run(*asked, "--format", "jsonl").stdout.splitlines()] == [
        first,
        second,
    ]


def test_generate_writes_each_text_to_a_file_of_a_new_folder(folder, pipe, tmp_path):
    out = tmp_path / "new" / "texts"
    asked = ["generate", "--model", folder, "--count", 2, "--calls", 2, "--out-dir", out, "--extension", "py"]
    made = run(*asked)
    files = [out / "0000.py", out / "0001.py"]
    assert made.stdout.splitlines() == [str(file) for file in files]
    assert sorted(out.iterdir()) == files
    assert [file.read_text() for file in files] == pipe.generate(2, calls=2).texts
    assert "texts is not empty: texts are never overwritten" in str(run(*asked).exception)
    empty = tmp_path / "empty"
    empty.mkdir()
    row = json.loads(
        run("generate", "--model", folder, "--calls", 2, "--out-dir", empty, "--format", "jsonl").stdout
    )
    assert row["file"] == str(empty / "0000.txt")
    assert row["text"] == (empty / "0000.txt").read_text()


def test_texts_become_registers_in_a_file_and_texts_again(folder, pipe, tmp_path):
    (tmp_path / "a.py").write_text(TEXT)
    (tmp_path / "long.py").write_text("total = 1\n" * 40)
    text = TEXT.removesuffix("\n")
    out = tmp_path / "registers.safetensors"
    encoded = run("encode", tmp_path / "a.py", tmp_path / "long.py", "--model", folder, "--out", out)
    assert re.search(
        r"long.py is longer than the model's 64 tokens: the last \d+ of 399 characters", encoded.stderr
    )
    registers = load_file(out)["registers"]
    assert torch.allclose(registers[:1], pipe.encode([text]).bank, atol=1e-5)
    again = run("encode", tmp_path / "a.py", "--model", folder, "--out", out)
    assert "registers.safetensors exists: registers are never overwritten" in str(again.exception)
    assert torch.equal(load_file(out)["registers"], registers)
    too_many = run("decode", out, "--model", folder, "--registers", 9)
    assert "has 8 registers per text: use --registers 8 or fewer" in str(too_many.exception)
    decoded = run("decode", out, "--model", folder, "--calls", 8, "--registers", 2, "--format", "jsonl")
    texts = [json.loads(line)["text"] for line in decoded.stdout.splitlines()]
    assert texts == pipe.decode(registers[:, :2], calls=8).texts


def test_interpolate_shows_the_texts_between_two_files(folder, pipe, tmp_path):
    for name, text in (("a", TEXT), ("b", OTHER)):
        (tmp_path / name).write_text(text)
    made = run("interpolate", tmp_path / "a", tmp_path / "b", "--steps", 3, "--model", folder, "--calls", 8)
    expected = pipe.interpolate(TEXT.removesuffix("\n"), OTHER.removesuffix("\n"), 3, calls=8)
    assert made.stdout == f"{expected}\n"
    piped = run("interpolate", "-", tmp_path / "b", "--steps", 3, "--model", folder, "--calls", 8, stdin=TEXT)
    assert piped.stdout == made.stdout


def test_autoencode_shows_what_differs_and_by_how_much(folder, pipe, tmp_path):
    metrics = pytest.importorskip("crocodil.metrics")
    (tmp_path / "a.py").write_text(TEXT)
    made = run("autoencode", tmp_path / "a.py", "--model", folder, "--calls", 8)
    text = TEXT.removesuffix("\n")  # a text of the corpus has no line break at its end
    found = pipe.autoencode([text], calls=8).texts[0]
    changes = difference(text, found, coloured=False)
    shown = f"---- CER {metrics.character_error_rate(text, found):.4f}: FILE\n{changes}\n"
    assert made.stdout == shown.replace("FILE", str(tmp_path / "a.py"))
    piped = run("autoencode", "-", "--model", folder, "--calls", 8, stdin=TEXT)
    assert piped.stdout == shown.replace("FILE", "stdin")


def test_a_text_from_stdin_is_encoded_and_stored_as_such(folder, pipe, tmp_path):
    out = tmp_path / "registers.safetensors"
    run("encode", "-", "--model", folder, "--out", out, stdin=TEXT)
    assert torch.allclose(load_file(out)["registers"], pipe.encode([TEXT.removesuffix("\n")]).bank, atol=1e-5)
    row = json.loads(run("decode", out, "--model", folder, "--calls", 2, "--format", "jsonl").stdout)
    assert row["file"] == "stdin"


def test_a_difference_marks_what_was_lost_and_what_came_instead():
    assert difference("a b c\n", "a x c\n", coloured=False).plain == "a [-b-]{+x+} c\n"
    shown = difference("a b c", "a x c", coloured=True)
    assert shown.plain == "a bx c"
    assert [str(span.style) for span in shown.spans] == ["red strike", "green"]


def test_a_partial_text_has_a_block_for_every_masked_token(pipe):
    special = pipe.tokenizer.special
    ids = [special.bos, *pipe.tokenizer.encode("def"), special.mask, special.mask, special.eos]
    assert partial_text(ids, pipe.tokenizer) == "def░░"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b" \n", "is empty"),
        (b"text \xff\xfe", "is not UTF-8 text: byte 5 is 0xff"),
        (b"PK\0\0", "is binary, not text"),
    ],
)
def test_a_file_that_is_no_text_is_one_line(tmp_path, content, message):
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    failed = run("encode", file, "--out", tmp_path / "out.safetensors")
    assert isinstance(failed.exception, ValueError)
    assert str(failed.exception) == f"{file} {message}"


def test_registers_that_are_none_and_runs_without_models_are_one_line(corpus, folder, tmp_path):
    (tmp_path / "file").write_text("nothing")
    for arguments, message in (
        (["decode", tmp_path / "missing"], "missing does not exist"),
        (["decode", tmp_path / "file"], "is not a safetensors file"),
        (["decode", folder / "base" / "model.safetensors"], "holds no registers"),
        (["export", tmp_path, "--data", corpus.directory, "--out", tmp_path / "m"], "holds no run"),
    ):
        failed = run(*arguments)
        assert isinstance(failed.exception, ValueError)
        assert message in str(failed.exception)


INTERRUPTED = """
import os, signal, sys, threading
import crocodil.cli.display  # torch and transformers: the timer is about sampling
from crocodil.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell starts its children deaf to it
threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
sys.argv = ["crocodil", "generate", "--count", "100000", "--format", "jsonl", "--model", sys.argv[1]]
main()
"""


@pytest.mark.slow
def test_ctrl_c_leaves_no_mess(folder):
    command = [sys.executable, "-c", INTERRUPTED, str(folder)]
    found = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert found.returncode == 130
    assert all(json.loads(row)["text"] is not None for row in found.stdout.splitlines())  # only whole rows
    assert b"Traceback" not in found.stderr
    assert found.stderr.endswith(b"crocodil: stopped\n")


def test_the_example_fine_tunes_for_the_rule_and_the_noise_that_the_model_samples_with(pipe):
    objective_for = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "own_data.py"))["objective_for"]
    assert (objective_for(pipe).draft_rate, objective_for(pipe).uniform_noise) == (0.0, False)
    decoding, drawing = replace(pipe.settings.decoding, rule="revise"), Drawing(register_noise=1.0)
    objective = objective_for(replace(pipe, settings=replace(pipe.settings, decoding=decoding, drawing=drawing)))
    assert objective.draft_rate > 0
    assert objective.uniform_noise
    assert noise_std_for_cosine(objective.register_cosine) == pytest.approx(1.0)


def test_a_method_that_the_model_cannot_use_is_refused_before_any_call(pipe):
    without = replace(pipe, prior=pipe.prior or pipe.conditional, conditional=None)
    for options in ({"method": "conwithindisc"}, {"method": "conthendisc", "given": Given(prefix="a")}):
        with pytest.raises(ValueError, match="no conditional prior: use conthendisc or base"):
            without.generate(1, calls=2, on_call=lambda snapshot: pytest.fail("a call was made"), **options)
    with pytest.raises(ValueError, match="no prior: it encodes and decodes"):
        replace(without, prior=None).generate(1, calls=2, method="conwithindisc")


def test_empty_texts_given_to_each_sample_are_no_given_text(pipe):
    each, none = (
        pipe.generate(2, method="conthendisc", calls=2, given=given) for given in ([Given()] * 2, Given())
    )
    assert torch.equal(each.registers, none.registers)


def test_only_the_prior_that_takes_more_steps_than_it_was_distilled_for_is_noted(pipe):
    drawing = replace(pipe.settings.drawing, prior_steps=2, refresh_steps=3, eta=0.0, pag_scale=0.0)
    student = fresh_noise_copy_of(pipe.conditional, torch.Generator().manual_seed(0))
    model = replace(pipe, settings=replace(pipe.settings, drawing=drawing, distilled_steps=3))
    conditional_only = replace(model, conditional=student)
    assert conditional_only.generate(1, calls=2, prior_steps=4).note == ""  # this prior was not distilled
    assert "distilled for 3 steps" in conditional_only.generate(1, calls=2, refresh_steps=4).note
    assert conditional_only.generate(1, calls=2, refresh_steps=4, method="conthendisc").note == ""  # no refresh
    both = replace(model, prior=None, conditional=student)
    assert "distilled for 3 steps" in both.generate(1, calls=2, prior_steps=4).note
    assert both.generate(1, calls=2, prior_steps=3).note == ""  # more than the default, 2


def test_more_steps_than_a_prior_was_distilled_for_are_made_and_noted(pipe):
    drawing = replace(pipe.settings.drawing, prior_steps=2, refresh_steps=2, eta=0.0, pag_scale=0.0)
    settings = replace(pipe.settings, drawing=drawing)
    student = fresh_noise_copy_of(pipe.conditional, torch.Generator().manual_seed(0))
    distilled = replace(pipe, prior=None, conditional=student, settings=settings)
    ordinary = replace(pipe, settings=settings)
    for model, noted in (
        (distilled, "this prior was distilled for few steps, perhaps for no more than its default of 2"),
        (ordinary, ""),
    ):
        assert model.generate(1, calls=2, prior_steps=3).note == noted
        assert model.generate(1, calls=2).note == ""


def test_more_steps_than_a_prior_was_distilled_for_are_noted_once_and_before_sampling(pipe, tmp_path, monkeypatch):
    drawing = replace(pipe.settings.drawing, prior_steps=2, refresh_steps=2, eta=0.0, pag_scale=0.0)
    settings = replace(pipe.settings, drawing=drawing, distilled_steps=2)
    student = fresh_noise_copy_of(pipe.conditional, torch.Generator().manual_seed(0))
    replace(pipe, prior=None, conditional=student, settings=settings).save_pretrained(tmp_path / "model")
    asked = ["generate", "--model", tmp_path / "model", "--calls", 2]
    note = "this prior was distilled for 2 steps"
    assert note not in run(*asked).stderr
    made = run(*asked, "--prior-steps", 3).stderr
    assert made.startswith(f"crocodil: {note}")
    assert made.count(note) == 1

    def fail(self, **options):
        raise ValueError("sampling has begun")

    monkeypatch.setattr(Crocodil, "stream_batches", fail)
    assert run(*asked, "--prior-steps", 3).stderr.startswith(f"crocodil: {note}")


def test_a_method_may_be_written_as_in_the_paper(pipe):
    for name in ("ConThenDisc", "CONTHENDISC"):
        assert Method(name) is Method.CON_THEN_DISC
    assert pipe.generate(1, method="Base", calls=2).texts == pipe.generate(1, method="base", calls=2).texts
    for method in ("Base", "base"):
        assert pipe.complete("x = ", count=1, calls=2, method=method)[0].cost.denoiser_calls == 0


def test_the_example_trains_a_distilled_prior_as_an_ordinary_one(pipe):
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "own_data.py"))
    with_ordinary_prior = example["with_ordinary_prior"]
    assert with_ordinary_prior(pipe) is pipe
    student = fresh_noise_copy_of(pipe.conditional, torch.Generator().manual_seed(0))
    made = with_ordinary_prior(replace(pipe, conditional=student))
    assert not made.conditional.config.fresh_noise
    assert (made.settings.drawing.prior_steps, made.settings.drawing.eta) == (16, 1.0)
    assert torch.equal(made.conditional.proj_in.weight, student.proj_in.weight)
    student = flow_map_of(pipe.conditional, torch.Generator().manual_seed(0))
    assert not with_ordinary_prior(replace(pipe, conditional=student)).conditional.config.is_distilled


def test_the_example_leaves_out_networks_of_the_old_registers(pipe):
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "own_data.py"))
    drawing = replace(pipe.settings.drawing, autoguidance=2.0)
    weak = copy.deepcopy(pipe.conditional)
    guided = replace(pipe, weak_prior=weak, settings=replace(pipe.settings, drawing=drawing))
    left = example["without_other_networks"](guided)
    assert left.prior is left.weak_prior is left.base is None
    assert left.conditional is pipe.conditional
    assert left.settings.drawing.autoguidance == 1


@pytest.mark.slow
def test_the_example_fine_tunes_a_model_on_own_code_and_can_be_given_again(folder, tmp_path):
    root = Path(__file__).parent.parent
    command = [sys.executable, root / "examples" / "own_data.py", root / "src", "--model", folder]
    command += ["--out", tmp_path / "own", "--steps", "2", "--device", "cpu"]
    subprocess.run(command, check=True, capture_output=True)
    tuned, before = (Crocodil.from_pretrained(path, device="cpu") for path in (tmp_path / "own" / "model", folder))
    assert tuned.prior is tuned.base is None
    assert not torch.equal(tuned.encode([TEXT]).bank, before.encode([TEXT]).bank)
    assert tuned.generate(1, calls=4).texts
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "models are never overwritten" in again.stderr
