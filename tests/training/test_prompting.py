"""P(x | c) end to end, at toy size: pairs, stage prompted, a model with it, and its answers (decision D57)."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from crocodil import cli
from crocodil.corpus import pair_tokens
from crocodil.corpus.cuts import Cuts
from crocodil.corpus.order import Order
from crocodil.corpus.pair_tokens import tokens_of
from crocodil.corpus.pairs import Pairs, write_pairs
from crocodil.models.denoiser_starts import flow_map_of, fresh_noise_copy_of
from crocodil.objectives import PromptedObjective
from crocodil.pipeline import Crocodil, Method
from crocodil.pipeline.answering import answer_drawing
from crocodil.pipeline.completing import complete_all
from crocodil.presets.runs import tiny
from crocodil.reproduce.experiments.completions import price
from crocodil.runtime.distributed import Ranks
from crocodil.sampling.cost import Cost
from crocodil.text.positions import Place
from crocodil.text.prompts import TokenizedPair, at_column, tokenize_pairs
from crocodil.text.tokenizer import SpecialIds, Tokenizer
from crocodil.training.estimate import step_flops
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import pair_data, pair_source, prompted_stage
from crocodil.training.workspace import Workspace

SPECIAL = SpecialIds(mask=0, bos=1, eos=2, pad=3)


def test_prompt_answer_and_text_stand_on_their_canvases():
    pair = TokenizedPair([10, 11, 12], [20, 21], [30, 31])
    assert pair.prompt_canvas(SPECIAL, 9) == [1, 10, 11, 12, 0, 30, 31, 2, 2]
    assert pair.prompt_canvas(SPECIAL, 6) == [1, 11, 12, 0, 30, 2]
    assert pair.answer_canvas(SPECIAL, 5) == [1, 20, 21, 2, 2]
    assert pair.text_canvas(SPECIAL, 9) == ([1, 10, 11, 12, 20, 21, 30, 31, 2], range(4, 6))
    assert pair.text_canvas(SPECIAL, 7) == ([1, 11, 12, 20, 21, 30, 2], range(3, 5))


def test_the_indentation_of_an_answer_belongs_to_its_prompt_if_it_starts_a_line():
    assert at_column("def f():\n", "    return 1", "\n") == ("def f():\n    ", "return 1", "\n")
    assert at_column("What is", " it?", "") == ("What is", " it?", "")


@pytest.fixture(scope="module")
def pairs(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "pairs"
    write_pairs(corpus.directory, out, cuts=Cuts(kinds=("body", "middle")), count=40)
    return out


def prompting(corpus, pairs, **objective):
    run = tiny(corpus)
    loop = replace(run.prompted_loop, num_steps=4, save_every=2, evaluate_every=100, batch_size=4)
    options = {"answer_length": 32, "prompt_length": 48, **objective}
    return replace(run, prompted_loop=loop, prompted_objective=PromptedObjective(**options), pairs=pairs)


@pytest.mark.parametrize("text_length", [16, 64])
def test_a_batch_is_that_of_pairs_tokenized_when_they_are_needed(corpus, pairs, text_length):
    run = prompting(corpus, pairs, prompt_length=12)
    source = replace(pair_source(run, Workspace(corpus, pairs, pairs)), text_length=text_length)
    data = pair_data(source, run.prompted_loop, Ranks())
    tokenizer = Tokenizer.load(source.tokenizer_file)
    splits = [at_column(pair.prompt, pair.answer, pair.suffix) for pair in Pairs(pairs).split("train")]
    fitting = [pair for pair in tokenize_pairs(splits, tokenizer) if 0 < len(pair.answer) <= source.room.answer]
    assert any(len(pair.prefix) > source.room.prompt for pair in fitting)
    for step in (0, 20):  # in the first epoch, and in a later one
        batch = data.batch(step, range(1, 4))
        order = Order(len(fitting), f"prompted {run.prompted_loop.seed}")
        chosen = [fitting[number] for number in order.at(4 * step + np.arange(1, 4))]
        special = tokenizer.special
        texts, places = zip(*(pair.text_canvas(special, text_length) for pair in chosen), strict=True)
        assert batch.prompts.noisy_tokens.tolist() == [pair.prompt_canvas(special, 12) for pair in chosen]
        assert batch.answers.tolist() == [pair.answer_canvas(special, 32) for pair in chosen]
        assert batch.texts.tolist() == list(texts)
        assert [row.nonzero()[:, 0].tolist() for row in batch.is_answer] == [list(place) for place in places]


def test_the_number_of_processes_does_not_change_the_tokens_of_pairs(corpus, pairs, monkeypatch):
    source = pair_source(prompting(corpus, pairs), Workspace(corpus, pairs, pairs))
    one = source.tokens("train", Ranks())
    monkeypatch.setattr(pair_tokens, "PAIRS_OF_A_PART", 30)
    two = tokens_of(Pairs(pairs).split("train"), source.tokenizer_file, source.room, num_processes=2)
    assert one.tokens.dtype == two.tokens.dtype == np.uint16
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.edges, two.edges)


def weights(folder):
    return {file.parent.name: load_file(file) for file in folder.rglob("model/*/model.safetensors")}


@pytest.fixture(scope="module")
def prompted(trained, corpus, pairs, tmp_path_factory):
    """A run with stage prompted, and an encoder of its own for prompts."""
    from tiny_run import SHORT_VALIDATION

    from crocodil.training import validation

    out = tmp_path_factory.mktemp("prompted")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT_VALIDATION.items():
            patch.setattr(validation, name, value)
        assert run_stage("prompted", prompting(corpus, pairs, own_encoder=True), Workspace(corpus, out, trained))
    return out


@pytest.mark.usefixtures("short_validation")
def test_stage_prompted_resumes_to_the_same_bits(trained, corpus, pairs, prompted, tmp_path):
    run, workspace = prompting(corpus, pairs, own_encoder=True), Workspace(corpus, tmp_path, trained)
    assert not run_stage("prompted", run, workspace, max_minutes=1e-9)
    assert run_stage("prompted", run, workspace, resume=True)
    whole, parts = weights(prompted / "prompted"), weights(tmp_path / "prompted")
    assert set(whole) == {"denoiser", "length_head", "prompt_encoder", "demasker"}
    for name, tensors in whole.items():
        assert all(torch.equal(tensor, parts[name][key]) for key, tensor in tensors.items())
    rows = [json.loads(line) for line in (prompted / "prompted" / "metrics.jsonl").read_text().splitlines()]
    assert {"valid nats of the length", "valid mse at time 0.5", "valid mse at time 0.5, without prompt"} < set(
        next(row for row in rows if "loss" not in row)
    )


def test_every_part_has_a_gradient_and_a_shared_encoder_rests(trained, corpus, pairs):
    for own in (False, True):
        stage, _ = prompted_stage(
            prompting(corpus, pairs, own_encoder=own, prompt_drop_rate=0.0), Workspace(corpus, trained, trained)
        )
        sum(stage.loss(0, range(4)).values()).backward()
        assert ("prompt_encoder" in stage.modules()) == own
        for name, module in stage.modules().items():
            gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
            assert any(gradient.abs().max() > 0 for gradient in gradients), name
        assert all(parameter.grad is None for parameter in stage.encoder.parameters())


@pytest.mark.parametrize(
    "options", [{"draft_rate": 0.5}, {"uniform_noise": True}, {"partial_rate": 0.5}, {"noise_prefix_rate": 0.5}]
)
def test_the_demasker_is_corrupted_as_in_stage_guided_and_the_others_learn_as_before(
    trained, corpus, pairs, options
):
    run, workspace = prompting(corpus, pairs), Workspace(corpus, trained, trained)
    corrupting = replace(run, guided_objective=replace(run.guided_objective, **options))
    plain, corrupted = (prompted_stage(one, workspace)[0] for one in (run, corrupting))
    before, after = (stage.loss(0, range(16)) for stage in (plain, corrupted))  # 4 answers are soon all hidden
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"demasking_loss"}
    assert corrupted.work().flops / plain.work().flops == pytest.approx(
        step_flops(corrupting)["prompted"] / step_flops(run)["prompted"]
    )
    assert (corrupted.work().flops > plain.work().flops) == ("draft_rate" in options)


def test_a_stage_without_pairs_is_one_clear_line(trained, corpus, pairs, tmp_path):
    workspace = Workspace(corpus, tmp_path, trained)
    with pytest.raises(ValueError, match="stage prompted needs --pairs"):
        run_stage("prompted", replace(prompting(corpus, pairs), pairs=None), workspace)
    with pytest.raises(ValueError, match="no pair whose answer has at most 1 tokens"):
        run_stage("prompted", prompting(corpus, pairs, answer_length=3), workspace)


# ---------------------------------------------------------------- answers


@pytest.fixture(scope="module")
def folder(trained, corpus, prompted, tmp_path_factory):
    """A model folder with the networks of stage prompted, made as a user makes it."""
    for stage in ("base", "guided", "prior", "conditional"):
        (prompted / stage).symlink_to(trained / stage)
    out = tmp_path_factory.mktemp("model") / "model"
    words = [
        "export",
        prompted,
        "--data",
        corpus.directory,
        "--out",
        out,
        "--prior-steps",
        2,
        "--refresh-steps",
        2,
    ]
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def pipe(folder):
    return Crocodil.from_pretrained(folder, device="cpu")


PROMPT = "def q1_alpha_0(q1_delta):\n"
PROMPT_AND_SUFFIX = (PROMPT, "\n\n")


@pytest.mark.parametrize("method", ["conthendisc", "conwithindisc"])
def test_answers_follow_prompt_condition_and_length_head(pipe, method):
    options = {"count": 2, "calls": 4, "bound_draws": 2, "method": method}
    answers = pipe.complete(PROMPT, "\n\n", **options)
    assert (answers.prompt, answers.suffix) == (PROMPT, "\n\n")
    assert [one.nats for one in answers] == sorted(one.nats for one in answers)
    assert all(re.match(r"    \S", answer.text) for answer in answers)  # the indentation that Python expects
    refreshes = int(method == "conwithindisc")
    assert answers[0].cost == Cost(2 + 4 + 1, 2 * (1 + refreshes), 1 + refreshes)
    guided = pipe.complete(PROMPT, "\n\n", **options, prompt_scale=3.0, condition_scale=2.0, batch_size=1)
    assert guided[0].cost.denoiser_calls == (2 * 2 + 2 * 3 if refreshes else 2 * 2)
    if refreshes:
        again = pipe.complete(PROMPT, "\n\n", **options, batch_size=1)
        assert [one.text for one in again] == [one.text for one in answers]


def test_a_long_prompt_is_seen_as_far_as_the_lengths_drawn_for_its_answers_allow(pipe):
    prompt, options = PROMPT + "    q1_delta = 1\n" * 20, {"count": 1, "calls": 2, "bound_draws": 0}
    longest = pipe.answering.longest
    short, drawn, long = (pipe.complete(prompt, tokens=tokens, **options) for tokens in (4, None, longest))
    assert prompt.endswith(short.prompt)
    assert len(short.prompt) > len(drawn.prompt) > len(long.prompt)


def test_answers_are_not_drawn_in_the_few_steps_of_a_distilled_prior(pipe):
    generator = torch.Generator().manual_seed(0)
    few = replace(pipe.settings.drawing, eta=0.0, pag_scale=0.0, early_stop=True, register_noise=0.5)
    model = replace(pipe, settings=replace(pipe.settings, drawing=few))
    assert answer_drawing(model) == few
    matched, flow_map = fresh_noise_copy_of(pipe.conditional, generator), flow_map_of(pipe.prior, generator)
    again = replace(model, conditional=matched)
    assert answer_drawing(again) == replace(few, refresh_steps=32)  # the first draw is that of an ordinary prior
    assert answer_drawing(replace(again, prior=flow_map)) == replace(few, prior_steps=128, refresh_steps=32)
    both, options = replace(again, prior=None), {"count": 1, "calls": 2, "bound_draws": 0}
    assert both.complete(PROMPT, **options)[0].cost.denoiser_calls == 128 + 32
    assert both.complete(PROMPT, **options, prior_steps=3, refresh_steps=2)[0].cost.denoiser_calls == 3 + 2
    assert both.generate(1, calls=2).cost.denoiser_calls == 2 + 2


def test_answers_may_be_revised_and_their_registers_noisy_while_the_prompt_stays(pipe):
    options = {"count": 2, "calls": 4, "bound_draws": 2, "rule": "revise", "register_noise": 0.5}
    answers = pipe.complete(PROMPT, "\n\n", **options, early_stop=True)
    assert (answers.prompt, answers.suffix) == (PROMPT, "\n\n")
    assert all(re.match(r"    \S", answer.text) for answer in answers)
    others = pipe.complete(PROMPT, "\n\n", **{**options, "rule": "confidence"}, early_stop=True)
    assert [one.text for one in answers] != [one.text for one in others]


def test_many_places_have_the_answers_that_they_have_alone_and_a_price(pipe):
    places = [Place(PROMPT, "\n\n", False), Place("def f(x):\n    ", "", True)]
    options = {"count": 2, "calls": 4, "bound_draws": 2}
    batch = complete_all(pipe, places, length=64, **options)
    alone = complete_all(pipe, places, length=64, **options, batch_size=1)
    assert [[one.text for one in answers] for answers in batch] == [
        [one.text for one in answers] for answers in alone
    ]
    first = pipe.complete(*PROMPT_AND_SUFFIX, length=64, **options)
    assert [one.text for one in first] == [one.text for one in batch[0]]
    assert [one.nats for one in first] == pytest.approx([one.nats for one in batch[0]])
    cost = price(pipe, Method.CON_WITHIN_DISC, first, 64)
    assert cost.nfe > sum(one.cost.demasker_calls for one in first)  # and the calls of the prior
    assert cost.ranking_flop_nfe == 2 * 2 * first.ranking.length / 64
    fewer = replace(pipe.settings, drawing=replace(pipe.settings.drawing, num_registers=1))
    assert price(replace(pipe, settings=fewer), Method.CON_WITHIN_DISC, first, 64).flop_nfe < cost.flop_nfe


def test_a_given_length_is_kept_and_too_long_a_one_is_refused(pipe):
    drawn = pipe.answering.lengths(pipe.answering.encode_prompts([TokenizedPair([5], [], [])], 1), 4)
    assert len(set(drawn)) > 1  # the head is hardly trained
    (answer,) = pipe.complete(PROMPT, count=1, tokens=3, calls=2, bound_draws=1)
    assert answer.text.strip()
    with pytest.raises(ValueError, match="answers with at most 30 tokens, not 31"):
        pipe.complete(PROMPT, tokens=31)
    with pytest.raises(ValueError, match="need a model with stage prompted"):
        pipe.complete(PROMPT, method="base", prompt_scale=2.0)


def test_a_refresh_reads_the_answer_on_a_canvas_of_its_own(pipe):
    model, special = pipe.answering, pipe.tokenizer.special
    texts = torch.tensor([[special.bos, 7, special.mask, 9, 8, special.eos]])
    canvas = model.answer_canvases(texts, [range(2, 4)])
    assert canvas.shape == (1, 32)
    assert canvas[0, :4].tolist() == [special.bos, special.mask, 9, special.eos]


def test_networks_that_do_not_belong_together_are_refused(pipe):
    with pytest.raises(ValueError, match="both a prompted prior and a length head"):
        replace(pipe, length_head=None)
    with pytest.raises(ValueError, match="unlike its encoder"):
        replace(pipe, prompted=pipe.conditional)
