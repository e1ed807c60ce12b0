"""All stages of preset tiny, and what may go wrong."""

import json
import os
import re
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import forked
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.format import load_model, save_model
from crocodil.corpus.shards import Corpus
from crocodil.models.denoiser_starts import fresh_noise_copy_of
from crocodil.models.register_encoder import RegisterEncoder
from crocodil.objectives import DistilObjective, PriorObjective
from crocodil.pipeline import Crocodil
from crocodil.presets.ablated import ABLATIONS
from crocodil.presets.runs import tiny
from crocodil.runtime.distributed import Ranks
from crocodil.sampling.cost import Cost, num_parameters
from crocodil.seeding import generator_for
from crocodil.training import checkpointing, validation
from crocodil.training import data as training_data
from crocodil.training.distilling import DistilledStage
from crocodil.training.estimate import estimates, step_flops
from crocodil.training.history import history, recorded_run
from crocodil.training.loop import LoopConfig, Phase, initial_state, prepare, take_step, train, turn_at
from crocodil.training.matching import MatchedStage
from crocodil.training.record import read_checksummed
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import base_stage, conditional_stage, distilled_stage, guided_stage
from crocodil.training.work import demasker_flops, prior_flops
from crocodil.training.workspace import Workspace


def rows(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("stage", "num_steps", "bound"),
    [("base", 120, 2.4), ("guided", 120, 1.6), ("prior", 60, 0.35), ("conditional", 60, 0.35)],
)
def test_the_loss_of_every_stage_falls_below_its_bound(trained, stage, num_steps, bound):
    losses = [row["loss"] for row in rows(trained / stage) if "loss" in row]
    assert len(losses) == num_steps
    assert sum(losses[-10:]) / 10 < bound < sum(losses[:10]) / 10


def test_validation_improves_and_registers_help(trained):
    first, *_, last = [row for row in rows(trained / "guided") if "loss" not in row]
    name = "valid cross-entropy at mask 1.0"
    assert last[name] < first[name]
    assert last[name] < last[f"{name} with 4 registers"] < last[f"{name} without registers"] - 0.05


def test_visible_tokens_help_the_conditional_prior(trained):
    last = [row for row in rows(trained / "conditional") if "loss" not in row][-1]
    for at in (0.5, 0.7, 0.9):
        assert last[f"valid mse at time {at}, half visible"] < last[f"valid mse at time {at}"]


def test_finished_stages_leave_models_that_load(trained, corpus):
    run = tiny(corpus)
    assert load_model(trained / "base" / "model" / "demasker").config == run.demasker.backbone
    assert load_model(trained / "guided" / "model" / "demasker").config == run.demasker
    assert load_model(trained / "guided" / "model" / "encoder").config == run.encoder
    assert load_model(trained / "prior" / "model" / "denoiser").config == run.prior
    assert load_model(trained / "conditional" / "model" / "denoiser").config == run.conditional


def test_a_stage_is_known_by_its_own_record_and_not_by_the_run_file_of_a_later_stage(trained, tmp_path):
    values = json.loads((trained / "run.json").read_text())
    steps = values["guided_loop"]["num_steps"]
    values["guided_loop"] |= {"num_steps": 7, "learning_rate": 1.0}
    (tmp_path / "run.json").write_text(json.dumps(values))
    assert recorded_run(tmp_path) == values
    (tmp_path / "guided").mkdir()
    for name in ("stage.json", "metrics.jsonl"):
        (tmp_path / "guided" / name).write_text((trained / "guided" / name).read_text())
    assert recorded_run(tmp_path) == json.loads((trained / "run.json").read_text())
    guided, prior = history(tmp_path, ["guided", "prior"])
    seconds = [row["step_s"] for row in rows(trained / "guided") if "step_s" in row]
    assert (guided.num_steps, guided.minutes) == (steps, pytest.approx(sum(seconds) / 60))
    assert prior.minutes is None


def test_cached_registers_are_those_of_the_encoder(trained, corpus):
    workspace = Workspace(corpus, trained, trained)
    encoder = load_model(trained / "guided" / "model" / "encoder").eval()
    programs = corpus.programs("valid", length=64)
    cached = workspace.registers(tiny(corpus), "valid")[0]
    assert len(cached) == len(programs)
    ends = np.array([0, len(programs) - 1])
    tokens = torch.from_numpy(programs.batch(ends))
    with torch.no_grad():
        fresh = encoder(tokens)[:, :4]
    assert torch.allclose(cached.batch(ends, "cpu"), fresh, atol=5e-3)


@pytest.mark.usefixtures("short_validation")
@pytest.mark.parametrize("learns", [True, False])
def test_the_condition_encoder_is_trained_only_if_the_run_says_so(trained, corpus, tmp_path, learns):
    run = tiny(corpus)
    loop = replace(run.conditional_loop, num_steps=3, average_decay=0.0)
    run = replace(run, conditional_loop=loop, condition_encoder_learns=learns)
    assert run_stage("conditional", run, Workspace(corpus, tmp_path, trained))
    saved = tmp_path / "conditional" / "model" / "condition_encoder"
    assert saved.exists() is learns
    if learns:
        before = load_model(trained / "guided" / "model" / "encoder").suffix
        assert not torch.equal(load_model(saved).suffix, before)


def test_lengths_take_turns_and_one_denoiser_can_be_both_priors(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(training_data, "ROWS_AT_ONCE", 50)
    run = tiny(corpus)
    loop = replace(run.conditional_loop, num_steps=4, evaluate_every=4)
    run = replace(
        run, lengths=(32, 32, 64), conditional_loop=loop,
        conditional=replace(run.conditional, self_conditioned=True, standardised=True),
        prior_objective=replace(run.prior_objective, bare_rate=0.75),
    )  # fmt: skip
    data = Workspace(corpus, tmp_path, trained).data(run, loop)
    assert [data.tokens(step, range(3)).shape[1] for step in range(4)] == [32, 32, 64, 32]
    epoch = np.concatenate([data.program_ids(3 * step, range(16)) for step in range(len(data.train[0]) // 16)])
    assert len(set(epoch)) == len(epoch)  # each turn has its own order and skips no program
    assert not np.array_equal(data.program_ids(0, range(16)), data.program_ids(1, range(16)))
    longer = replace(data, steps_per_turn=2)  # each turn has the same batches in the same order
    for turn in range(3):
        one_by_one, in_pairs = (
            [one.program_ids(step, range(16)).tolist() for step in range(24) if one.turn(step) == turn]
            for one in (data, longer)
        )
        assert in_pairs == one_by_one
    (tmp_path / "guided").symlink_to(trained / "guided")
    for stage in ("registers", "conditional"):
        assert run_stage(stage, run, Workspace(corpus, tmp_path, tmp_path))
    assert sorted(path.name for path in (tmp_path / "registers").glob("*-*")) == [
        "train-32", "train-64", "valid-32", "valid-64",
    ]  # fmt: skip
    banks = [cached.bank.astype(float) for cached in Workspace(corpus, tmp_path, tmp_path).registers(run, "train")]
    mean = np.mean([bank.mean(axis=0) for bank in banks], axis=0)
    std = np.sqrt(np.mean([np.square(bank - mean).mean(axis=0) for bank in banks], axis=0))
    statistics = load_model(tmp_path / "conditional" / "model" / "denoiser").statistics
    assert np.allclose(statistics, [mean, std], atol=1e-6)  # each turn counts alike
    last = [row for row in rows(tmp_path / "conditional") if "loss" not in row][-1]
    assert {"valid mse at time 0.5, length 32", "valid mse at time 0.5, half visible, length 64"} < set(last)


# ---------------------------------------------------------------- stages that go on from others


@pytest.mark.usefixtures("short_validation")
def test_stage_guided_goes_on_from_another(trained, corpus, tmp_path):
    start = trained / "guided" / "model"
    run = replace(tiny(corpus), guided_start=start)
    begun = guided_stage(run, Workspace(corpus, tmp_path, tmp_path))[0].modules()
    for name, network in begun.items():
        same = load_model(start / name).state_dict()
        assert all(torch.equal(weight, same[key]) for key, weight in network.state_dict().items())
    shutil.copytree(start / "demasker", tmp_path / "start" / "demasker")
    with pytest.raises(ValueError, match=r"encoder is missing: guided_start is the folder model of"):
        run_stage(
            "guided", replace(run, guided_start=tmp_path / "start"), Workspace(corpus, tmp_path / "other", trained)
        )


@pytest.mark.usefixtures("short_validation")
def test_stages_go_on_from_an_exported_model_whose_compute_is_unknown(trained, corpus, tmp_path):
    exported = tmp_path / "exported"
    shutil.copytree(trained / "guided" / "model", exported)
    shutil.copytree(trained / "conditional" / "model" / "denoiser", exported / "conditional")
    run = live(corpus, guided_start=exported, conditional_start=exported)
    run = replace(run, guided_loop=replace(run.guided_loop, num_steps=2, warmup_steps=0), encoder_warmup_steps=0)
    workspace = Workspace(corpus, tmp_path / "run", tmp_path / "run")
    for stage in ("guided", "conditional"):
        assert run_stage(stage, run, workspace)
    begun = conditional_stage(run, workspace)[0].denoiser.state_dict()
    given = load_model(exported / "conditional").state_dict()
    assert all(torch.equal(begun[key], value) for key, value in given.items())
    record = read_checksummed(tmp_path / "run" / "guided" / "stage.json")
    assert {f"{name} to go on from" for name in ("demasker", "encoder")} <= record["sources"].keys()
    assert record["work"]["inherited"] == {"base": None, "guided": None}
    alone = Workspace(corpus, tmp_path / "alone", tmp_path / "alone")  # the denoiser alone
    shutil.copytree(exported, alone.out / "guided" / "model")
    shutil.copytree(alone.out, tmp_path / "cached")
    assert run_stage("conditional", run, alone)
    cached, run = Workspace(corpus, tmp_path / "cached", tmp_path / "cached"), replace(run, live_draws=0)
    for stage in ("registers", "conditional"):
        assert run_stage(stage, run, cached)


# ---------------------------------------------------------------- registers that are not cached


def live(corpus, **fields):
    run = tiny(corpus)
    loop = replace(run.conditional_loop, num_steps=3, batch_size=8, warmup_steps=0)
    return replace(run, conditional_loop=loop, live_draws=2, **fields)


def test_registers_that_are_encoded_in_every_step_are_those_that_were_cached(trained, corpus):
    workspace = Workspace(corpus, trained, trained)
    cached, alive = (
        conditional_stage(run, workspace)[0] for run in (replace(live(corpus), live_draws=0), live(corpus))
    )
    (tokens, registers), (same_tokens, same_registers) = (
        stage._batch(5, range(8), 3) for stage in (cached, alive)
    )
    assert torch.equal(tokens, same_tokens)
    assert torch.allclose(registers, same_registers, atol=2e-3)
    assert cached.evaluate() == pytest.approx(alive.evaluate(), rel=0.02, abs=0.02)


@pytest.mark.usefixtures("short_validation")
def test_a_conditional_prior_is_trained_without_stage_registers(trained, corpus, tmp_path):
    shutil.copytree(trained / "guided" / "model", tmp_path / "guided" / "model")
    workspace = Workspace(corpus, tmp_path, tmp_path)
    with pytest.raises(ValueError, match="run stage registers first"):
        run_stage("conditional", replace(live(corpus), live_draws=0), workspace)
    assert run_stage("conditional", live(corpus), workspace)
    record = read_checksummed(tmp_path / "conditional" / "stage.json")
    assert record["settings"]["live_draws"] == 2
    assert "registers/stage.json" not in record["sources"]
    assert len([row for row in rows(tmp_path / "conditional") if "loss" in row]) == 3


@pytest.mark.usefixtures("short_validation")
def test_stage_conditional_goes_on_from_another_and_counts_its_compute(trained, corpus, tmp_path):
    shutil.copytree(trained / "guided", tmp_path / "guided")
    shutil.copy(trained / "run.json", tmp_path)
    start, workspace = trained / "conditional" / "model", Workspace(corpus, tmp_path, tmp_path)
    run = live(corpus, conditional_start=start)
    begun = conditional_stage(run, workspace)[0].denoiser.state_dict()
    assert all(
        torch.equal(begun[key], value) for key, value in load_model(start / "denoiser").state_dict().items()
    )
    assert run_stage("conditional", run, workspace)
    record = read_checksummed(tmp_path / "conditional" / "stage.json")
    before = read_checksummed(trained / "conditional" / "stage.json")["work"]
    assert record["work"]["inherited"] == {**before["inherited"], "conditional": before["flops"]}
    assert "denoiser to go on from" in record["sources"]
    elsewhere = live(corpus, conditional_start=tmp_path)
    with pytest.raises(ValueError, match=r"denoiser is missing: conditional_start is the folder model of"):
        run_stage("conditional", elsewhere, Workspace(corpus, tmp_path / "other", trained))


def test_live_draws_cost_operations_and_need_a_fixed_encoder(corpus):
    run = live(corpus)
    cached = replace(run, live_draws=0)
    draw = run.conditional_loop.batch_size * prior_flops(run.conditional, self_condition_rate=0.5)
    more, most = (
        step_flops(one)["conditional"] - step_flops(cached)["conditional"]
        for one in (run, replace(run, live_draws=4))
    )
    assert most - more == pytest.approx(2 * draw)
    assert more > draw  # texts are encoded too
    with pytest.raises(ValueError, match="choose one of them"):
        replace(run, condition_encoder_learns=True)
    with pytest.raises(ValueError, match="set live_draws=0"):
        replace(run, conditional=replace(run.conditional, standardised=True))


# ---------------------------------------------------------------- distilled priors


def distilling(corpus, **objective):
    """A few steps of stage distilled, with a guided teacher."""
    run = tiny(corpus)
    loop = replace(run.distilled_loop, num_steps=2, evaluate_every=100, batch_size=8, warmup_steps=0)
    options = {"pag_scale": 1.0, "teacher_calls": 1, **objective}
    return replace(run, distilled_loop=loop, distil_objective=DistilObjective(**options))


def test_distilled_priors_resume_to_the_same_bits_and_become_the_priors_of_a_model(
    trained, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(validation, "NUM_DRAW_STEPS", 2)  # most of the time of a short run
    run, whole, parts = distilling(corpus), tmp_path / "whole", tmp_path / "parts"
    assert run_stage("distilled", run, Workspace(corpus, whole, trained))
    assert not run_stage("distilled", run, Workspace(corpus, parts, trained), max_minutes=1e-9)
    assert run_stage("distilled", run, Workspace(corpus, parts, trained), resume=True)
    assert equal(weights(parts / "distilled"), weights(whole / "distilled"))
    last = [row for row in rows(whole / "distilled") if "loss" not in row][-1]
    for part in ("prior", "conditional", "conditional, half visible"):
        for steps in (1, 4):
            assert 0 < last[f"valid distance to the teacher in {steps} steps of {part}"] < 2
        assert f"valid recall of drawn registers of {part}" in last
    for stage in ("base", "guided", "prior", "conditional"):
        (whole / stage).symlink_to(trained / stage)
    command = ["export", str(whole), "--data", str(corpus.directory), "--out"]
    for out, options in (("student", []), ("teacher", ["--teachers"])):
        made = CliRunner().invoke(cli.app, [*command, str(tmp_path / out), *options])
        assert made.exit_code == 0, made.output
    student, teacher = (Crocodil.from_pretrained(tmp_path / out, device="cpu") for out in ("student", "teacher"))
    assert student.prior.config.flow_map
    assert student.conditional.config.flow_map
    assert (student.settings.drawing.prior_steps, student.settings.drawing.refresh_steps) == (4, 4)
    assert (teacher.settings.drawing.prior_steps, teacher.prior.config.flow_map) == (128, False)
    card = (tmp_path / "student" / "README.md").read_text()
    assert re.findall(r"^\| (\w+) \| \d+ \|", card, re.M) == [
        "base",
        "guided",
        "prior",
        "conditional",
        "distilled",
    ]
    assert "| distilled | 2 | 8 |" in card
    made = student.generate(1, calls=2, prior_steps=2, refresh_steps=1, refresh_from=0.5)
    assert made.cost.denoiser_calls == 3
    with pytest.raises(ValueError, match="this prior is distilled, with its guidance inside"):
        student.generate(1, calls=2, pag_scale=1.0)


def test_distillation_comes_closer_to_the_teacher(trained, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(validation, "NUM_DRAW_STEPS", 8)
    run = distilling(corpus, teachers=("prior",), draw_steps=2, teacher_steps=8, own_rate=0.0)
    run = replace(run, distilled_loop=replace(run.distilled_loop, num_steps=15, learning_rate=5e-3, batch_size=32))
    assert run_stage("distilled", run, Workspace(corpus, tmp_path, trained))
    first, last = [row for row in rows(tmp_path / "distilled") if "loss" not in row]
    for steps in (1, 2):
        name = f"valid distance to the teacher in {steps} steps of prior"
        assert last[name] < 0.7 * first[name]


def test_a_distillation_that_cannot_work_is_one_clear_line(trained, corpus, tmp_path):
    workspace = Workspace(corpus, tmp_path, trained)
    with pytest.raises(ValueError, match="stage prior trained no self-conditioned prior, use 1"):
        run_stage("distilled", distilling(corpus, self_cond_scale=2.0), workspace)
    with pytest.raises(ValueError, match="autoguidance of the teacher needs both weak_prior and"):
        distilling(corpus, autoguidance=2.0)
    with pytest.raises(ValueError, match="teachers should be prior, conditional, or each of them once"):
        distilling(corpus, teachers=())
    with pytest.raises(ValueError, match="flow_map or fresh_noise is set: stage distilled sets it"):
        replace(tiny(corpus), prior=replace(tiny(corpus).prior, flow_map=True))
    with pytest.raises(ValueError, match="prior/model/denoiser is missing: train stage prior first"):
        run_stage("distilled", distilling(corpus), Workspace(corpus, tmp_path, tmp_path))


def test_critics_and_students_see_texts_of_all_lengths(trained, corpus, tmp_path):
    """With one turn per step, two lengths and two networks would give each network one length."""
    workspace = Workspace(corpus, tmp_path, tmp_path)
    run = distilling(corpus, pag_scale=0.0, by_matching=True, critic_steps=1, teachers=("conditional",))
    run = replace(run, lengths=(32, 64))
    for stage in ("guided", "conditional"):
        (tmp_path / stage).symlink_to(trained / stage)
    assert run_stage("registers", run, workspace)
    stage, _ = distilled_stage(run, workspace)
    seen = [(stage._trains_critics(step), stage.data.length(step)) for step in range(8)]
    assert len(set(seen)) == 4
    assert all(seen.count(one) == 2 for one in set(seen))


def test_matching_with_all_conditions_at_once_is_the_mean_over_bare_and_other_canvases(trained, corpus, tmp_path):
    run = distilling(corpus, pag_scale=0.0, by_matching=True, draw_steps=2, teachers=("conditional",))
    run = replace(run, prior_objective=replace(run.prior_objective, bare_rate=0.75))
    stage, loop = distilled_stage(run, Workspace(corpus, tmp_path, trained))
    indices = range(loop.batch_size)
    registers = stage.registers[0].batch(stage.data.program_ids(0, indices), "cpu")
    arguments = 0, indices, registers, stage.data.streams(0, indices)
    at_once, one_by_one = (kind._conditional_loss(stage, *arguments) for kind in (MatchedStage, DistilledStage))
    assert at_once.item() == pytest.approx(one_by_one.item(), rel=1e-5)


def test_settings_that_would_spoil_a_stage_are_refused_before_it_starts(trained, corpus, tmp_path):
    here = Workspace(corpus, tmp_path / "run", trained)
    noisy = replace(distilling(corpus, pag_scale=0.0), prior_objective=PriorObjective(smallest_noise=0.7))
    with pytest.raises(ValueError, match=r"and a flow map draws clean registers: set .*by_matching=true"):
        run_stage("distilled", noisy, here)
    run = tiny(corpus)
    size = run.base_loop.batch_size // run.base_loop.num_accumulated
    with pytest.raises(ValueError, match=rf"base_draft_rate=0.01 is no sample of a micro-batch of {size}"):
        run_stage("base", replace(run, base_draft_rate=0.01), here)
    drafts = replace(run.guided_objective, draft_rate=0.01)
    with pytest.raises(ValueError, match=r"guided_objective.draft_rate=0.01 is no sample of a micro-batch"):
        run_stage("guided", replace(run, guided_objective=drafts), here)
    assert not here.out.exists()


def test_matched_priors_resume_to_the_same_bits_and_become_the_priors_of_a_model(trained, corpus, tmp_path):
    """Decision D80."""
    matching = {"pag_scale": 0.0, "by_matching": True, "draw_steps": 2, "stop_noise": 0.7, "critic_steps": 1}
    run, whole, parts = distilling(corpus, **matching), tmp_path / "whole", tmp_path / "parts"
    assert run_stage("distilled", run, Workspace(corpus, whole, trained))
    assert not run_stage("distilled", run, Workspace(corpus, parts, trained), max_minutes=1e-9)
    assert run_stage("distilled", run, Workspace(corpus, parts, trained), resume=True)
    assert equal(weights(parts / "distilled"), weights(whole / "distilled"))
    critic, student, last = rows(whole / "distilled")[1:]
    rates = [run.distilled_loop.learning_rate_at(step) for step in (0, 1)]
    assert [critic["learning_rate"], student["learning_rate"]] == pytest.approx([rates[0], 0.6 * rates[1]])
    for name in ("prior", "conditional"):
        assert critic[f"{name}_critic_loss"] > 0
        assert student[f"{name}_loss"] > 0
    assert "valid recall of drawn registers of conditional, half visible" in last
    assert {folder.name for folder in (whole / "distilled/model").iterdir()} == {"prior", "conditional"}
    before, after = (
        load_model(out) for out in (trained / "prior/model/denoiser", whole / "distilled/model/prior")
    )
    assert not torch.equal(before.proj_out.weight, after.proj_out.weight)
    for stage in ("base", "guided", "prior", "conditional"):
        (whole / stage).symlink_to(trained / stage)
    command = ["export", str(whole), "--data", str(corpus.directory), "--out", str(tmp_path / "model")]
    made = CliRunner().invoke(cli.app, command)
    assert made.exit_code == 0, made.output
    model = Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    drawing = model.settings.drawing
    assert model.prior.config.fresh_noise
    assert model.conditional.config.fresh_noise
    assert (drawing.prior_steps, drawing.refresh_steps, drawing.early_stop, drawing.register_noise) == (
        2,
        2,
        True,
        0.7,
    )
    assert model.generate(1, calls=2).cost.denoiser_calls == 4
    made = CliRunner().invoke(cli.app, [*command[:-1], str(tmp_path / "quick"), "--prior-steps", "1"])
    assert made.exit_code == 0, made.output
    quick = Crocodil.from_pretrained(tmp_path / "quick", device="cpu")
    assert (quick.settings.drawing.prior_steps, quick.settings.distilled_steps) == (1, 2)
    notes = [quick.generate(1, calls=2, prior_steps=steps).note for steps in (2, 3)]
    assert notes == ["", "this prior was distilled for 2 steps, and not trained for more"]
    with pytest.raises(ValueError, match=r"stop_noise to 0\.8 or more"):
        replace(run, prior_objective=replace(run.prior_objective, smallest_noise=0.8))
    with pytest.raises(ValueError, match="stop_noise is in units of registers"):
        replace(run, prior=replace(run.prior, standardised=True))


def test_a_student_goes_on_where_another_stopped_and_its_critic_begins_as_the_teacher(trained, corpus, tmp_path):
    matching = {"pag_scale": 0.0, "by_matching": True, "draw_steps": 2, "stop_noise": 0.7, "critic_steps": 1}
    run = distilling(corpus, **matching, teachers=("conditional",))
    assert run_stage("distilled", run, Workspace(corpus, tmp_path / "first", trained))
    start, workspace = tmp_path / "first" / "distilled" / "model", Workspace(corpus, tmp_path / "second", trained)
    stage, _ = distilled_stage(replace(run, distilled_start=start), workspace)
    begun, teacher = load_model(start / "conditional"), load_model(trained / "conditional" / "model" / "denoiser")
    for name, weight in stage.students["conditional"].state_dict().items():
        assert torch.equal(weight, begun.state_dict()[name])
    for name, weight in stage.critics["conditional"].denoiser.state_dict().items():
        assert torch.equal(weight, teacher.state_dict()[name])
    assert run_stage("distilled", replace(run, distilled_start=start), workspace)
    before, record = (
        read_checksummed(tmp_path / name / "distilled" / "stage.json") for name in ("first", "second")
    )
    assert "student conditional to go on from" in record["sources"]
    assert record["work"]["inherited"]["distilled"] == before["work"]["flops"] > 0
    elsewhere, third = replace(run, distilled_start=tmp_path), Workspace(corpus, tmp_path / "third", trained)
    with pytest.raises(ValueError, match="conditional is missing: distilled_start is the folder model of"):
        run_stage("distilled", elsewhere, third)
    mixed = distilling(corpus, teachers=("conditional",))  # flow maps
    with pytest.raises(ValueError, match="conditional has another shape than the run"):
        distilled_stage(replace(mixed, distilled_start=start), workspace)


def test_a_matched_student_becomes_an_ordinary_prior_again(trained, corpus, tmp_path):
    student = fresh_noise_copy_of(load_model(trained / "conditional" / "model" / "denoiser"), generator_for("x"))
    save_model(student, tmp_path / "start" / "conditional")
    run = live(corpus, conditional_start=tmp_path / "start")
    stage, _ = conditional_stage(run, Workspace(corpus, tmp_path, trained))
    assert stage.denoiser.config == run.conditional_shape
    for name, weight in stage.denoiser.state_dict().items():
        assert torch.equal(weight, student.state_dict()[name])


# ---------------------------------------------------------------- the freezing schedule


def test_warm_up_trains_the_encoder_and_the_interface_but_not_the_demasker(trained, corpus):
    run = replace(tiny(corpus), encoder_warmup_steps=3)
    stage, loop = guided_stage(run, Workspace(corpus, trained, trained))
    state = initial_state(stage, loop)

    def moved(steps):
        before = {name: [p.detach().clone() for p in group] for name, group in stage.groups().items()}
        for _ in range(steps):
            take_step(stage, state, loop)
        return {
            name
            for name, group in stage.groups().items()
            if any(not torch.equal(old, new) for old, new in zip(before[name], group, strict=True))
        }

    assert moved(3) == {"encoder", "interface"}
    assert moved(1) == {"encoder", "interface", "demasker"}


def test_which_groups_are_trained_follows_from_the_step_alone():
    phases = (Phase(3, frozenset({"a"})), Phase(float("inf"), frozenset({"a", "b"})))
    trained = [turn_at(step, phases).train for step in (0, 2, 3, 99)]
    assert trained == [{"a"}, {"a"}, {"a", "b"}, {"a", "b"}]


# ---------------------------------------------------------------- resuming


def few_steps(corpus, num_steps=12):
    run = tiny(corpus)
    loop = replace(run.base_loop, num_steps=num_steps, save_every=4, evaluate_every=100)
    return replace(run, base_loop=loop)


def weights(directory):
    newest = sorted((directory / "checkpoints").glob("step-*"))[-1]
    return {file.name: load_file(file) for file in newest.glob("*.safetensors")}


def equal(one, other):
    return all(
        torch.equal(tensor, other[file][name]) for file, tensors in one.items() for name, tensor in tensors.items()
    )


@pytest.fixture(scope="session")
def uninterrupted(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    run_stage("base", few_steps(corpus), Workspace(corpus, out, out))
    return weights(out / "base")


@pytest.mark.usefixtures("short_validation")
def test_a_run_stopped_by_its_time_limit_resumes_to_the_same_bits(corpus, tmp_path, uninterrupted):
    workspace = Workspace(corpus, tmp_path, tmp_path)
    for step in range(1, 4):  # out of time after every step
        assert not run_stage("base", few_steps(corpus), workspace, resume=step > 1, max_minutes=1e-9)
        assert (tmp_path / "base" / "checkpoints" / f"step-{step:08d}").exists()
    assert run_stage("base", few_steps(corpus), workspace, resume=True)
    assert equal(weights(tmp_path / "base"), uninterrupted)


def few_steps_of_base(directory, out):
    """Begin or continue a run, in a process of its own."""
    corpus = Corpus(directory)
    run_stage("base", few_steps(corpus), Workspace(corpus, out, out), resume=(out / "base").exists())


def test_a_killed_run_resumes_to_the_same_bits(corpus, tmp_path, uninterrupted):
    work, printed = (few_steps_of_base, corpus.directory, tmp_path), tmp_path / "printed"
    process = forked.start(*work, out=printed)
    while not list(tmp_path.glob("base/checkpoints/step-00000004/state.json")):
        time.sleep(0.01)
        assert process.is_alive() or list(tmp_path.glob("base/checkpoints/step-*"))
    process.kill()
    process.join()
    assert forked.run(*work, out=printed).returncode == 0
    assert equal(weights(tmp_path / "base"), uninterrupted)
    assert [row["step"] for row in rows(tmp_path / "base") if "loss" in row] == list(range(1, 13))


@pytest.mark.usefixtures("short_validation")
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(corpus, tmp_path, uninterrupted):
    workspace = Workspace(corpus, tmp_path, tmp_path)
    stage, loop = base_stage(few_steps(corpus), workspace)
    train(stage, replace(loop, num_steps=8, decay_share=0.0), tmp_path / "half")
    newest = sorted((tmp_path / "half" / "checkpoints").glob("step-*"))
    assert [one.name for one in newest] == ["step-00000004", "step-00000008"]
    next(newest[-1].glob("*.safetensors")).write_bytes(b"damaged")
    state = initial_state(*base_stage(few_steps(corpus), workspace))
    with pytest.warns(UserWarning, match=r"step-00000008 is damaged: .*\.safetensors is missing or damaged"):
        assert checkpointing.restore(state, tmp_path / "half" / "checkpoints")
    assert state.step == 4


def test_accumulated_micro_batches_equal_one_batch(corpus, tmp_path):
    states = []
    for num_accumulated in (1, 4):
        run = replace(few_steps(corpus), lengths=(32, 64))  # of short texts there are 2 micro-batches, not 4
        stage, loop = base_stage(run, Workspace(corpus, tmp_path, tmp_path))
        loop = replace(loop, num_accumulated=num_accumulated)
        state = initial_state(stage, loop)
        for _ in range(3):
            take_step(stage, state, loop)
        states.append(state.parameters)
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])


def test_recomputed_blocks_give_the_same_steps(corpus, tmp_path):
    states = []
    for recompute in (False, True):
        stage, loop = base_stage(few_steps(corpus), Workspace(corpus, tmp_path, tmp_path))
        loop = replace(loop, recompute_blocks=recompute)
        prepare(stage, loop, Ranks())
        state = initial_state(stage, loop)
        take_step(stage, state, loop)
        states.append(state.parameters)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# ---------------------------------------------------------------- settings and mistakes


def test_stage_base_trains_on_drafts_if_asked(corpus, tmp_path):
    run, workspace = few_steps(corpus), Workspace(corpus, tmp_path, tmp_path)
    plain, drafting = (base_stage(replace(run, base_draft_rate=rate), workspace)[0] for rate in (0.0, 0.5))
    assert drafting.work().flops / plain.work().flops == pytest.approx(
        step_flops(replace(run, base_draft_rate=0.5))["base"] / step_flops(run)["base"]
    )
    assert drafting.loss(0, range(4)).item() != plain.loss(0, range(4)).item()


def test_validation_of_few_programs_at_a_time_gives_the_same_numbers(corpus, tmp_path, monkeypatch):
    workspace = Workspace(corpus, tmp_path, tmp_path)
    stage, _ = base_stage(few_steps(corpus), workspace)
    with torch.no_grad():
        expected = stage.evaluate()
        monkeypatch.setattr(validation, "MOST_LOGITS", 64 * 320 * 2)
        assert stage.evaluate() == pytest.approx(expected, rel=1e-5)


def with_little_room(*arguments):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    forked.command_line(*arguments)


def test_a_full_disk_is_one_clear_line_and_leaves_no_partial_checkpoint(corpus, tmp_path):
    out = tmp_path / "run"
    options = ["--preset", "tiny", "--data", str(corpus.directory), "--out", str(out), "--device", "cpu"]
    options += ["--set", "base_loop.num_steps=2"]
    failed = forked.run(with_little_room, "train", "base", *options, out=tmp_path / "printed")
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    assert re.search(r"crocodil: .*(too large|space)", failed.stderr)
    assert list((out / "base" / "checkpoints").iterdir()) == []
    again = CliRunner().invoke(cli.app, ["train", "base", *options, "--resume"])
    assert "finished" in again.output


def test_an_empty_split_is_one_clear_line(corpus, tmp_path):
    description = json.loads((corpus.directory / "corpus.json").read_text())
    description["splits"]["valid"]["shards"] = []
    copy = tmp_path / "corpus"
    copy.mkdir()
    for path in corpus.directory.iterdir():
        if path.name != "corpus.json":
            (copy / path.name).symlink_to(path)
    (copy / "corpus.json").write_text(json.dumps(description))
    with pytest.raises(ValueError, match="the valid split has no program of at most 64 tokens"):
        run_stage("base", tiny(corpus), Workspace(Corpus(copy), tmp_path, tmp_path))
    assert not (tmp_path / "base").exists()


def test_the_learning_rate_warms_up_holds_and_decays():
    cosine = LoopConfig(num_steps=100, batch_size=1, learning_rate=1.0, warmup_steps=10)
    assert cosine.learning_rate_at(0) == pytest.approx(0.1, rel=0.01)
    assert cosine.learning_rate_at(50) == pytest.approx(0.5, abs=0.01)
    assert cosine.learning_rate_at(99) < 0.001
    stable = replace(cosine, decay_share=0.2)
    assert [stable.learning_rate_at(step) for step in (10, 50, 80)] == [1, 1, 1]
    assert stable.learning_rate_at(90) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="do not divide a batch of 10"):
        replace(cosine, batch_size=10, num_accumulated=3)


@pytest.mark.usefixtures("short_validation")
def test_a_loss_that_is_not_finite_stops_the_run_before_saving_and_says_where(corpus, tmp_path):
    stage, loop = base_stage(few_steps(corpus), Workspace(corpus, tmp_path, tmp_path))
    loss = stage.loss
    stage.loss = lambda step, indices: loss(step, indices) * (torch.nan if step == 6 else 1)
    with pytest.raises(FloatingPointError, match="stage base: loss nan at step 6 on rank 0"):
        train(stage, loop, tmp_path / "run")
    assert [one.name for one in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]


def test_a_stage_that_cannot_run_is_one_clear_line(corpus, tmp_path, trained):
    run, workspace = tiny(corpus), Workspace(corpus, tmp_path, tmp_path)
    with pytest.raises(ValueError, match="no stage 'nonsense'"):
        run_stage("nonsense", run, workspace)
    with pytest.raises(ValueError, match="train stage base first"):
        run_stage("guided", run, workspace)
    with pytest.raises(ValueError, match="run stage registers first"):
        run_stage("prior", run, workspace)
    with pytest.raises(ValueError, match="this stage is finished"):
        run_stage("base", run, Workspace(corpus, trained, trained))
    wrong = replace(run, demasker=replace(run.demasker, backbone=replace(run.demasker.backbone, vocab_size=999)))
    with pytest.raises(ValueError, match="the corpus has a vocabulary of 320, the run one of 999"):
        run_stage("base", wrong, workspace)
    run_stage("base", few_steps(corpus), workspace, max_minutes=1e-9)
    with pytest.raises(ValueError, match="already holds a run"):
        run_stage("base", few_steps(corpus), workspace)
    wider = replace(run, demasker=replace(run.demasker, backbone=replace(run.demasker.backbone, width=32)))
    with pytest.raises(ValueError, match=r"base was started with demasker.backbone.width=64, not 32 \("):
        run_stage("base", wider, workspace, resume=True)
    with pytest.raises(ValueError, match="has shape"):
        checkpointing.restore(initial_state(*base_stage(wider, workspace)), tmp_path / "base" / "checkpoints")


def test_a_run_saves_when_it_is_asked_to_stop(corpus, tmp_path):
    stage, loop = base_stage(few_steps(corpus, 1000), Workspace(corpus, tmp_path, tmp_path))
    loss = stage.loss

    def loss_and_signal(step, indices):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(step, indices)

    stage.loss = loss_and_signal
    assert train(stage, loop, tmp_path / "run").step == 3
    assert (tmp_path / "run" / "checkpoints" / "step-00000003").exists()


# ---------------------------------------------------------------- the command line


def test_the_command_line_trains_resumes_shows_and_estimates(corpus, tmp_path):
    command, data, out = CliRunner(), str(corpus.directory), str(tmp_path / "run")
    options = ["--preset", "tiny", "--data", data, "--out", out, "--device", "cpu"]
    options += ["--set", "base_loop.num_steps=4"]
    dry = command.invoke(cli.app, ["train", "base", *options, "--dry-run"])
    assert "What the run needs" in dry.output
    assert not (tmp_path / "run").exists()
    stopped = command.invoke(cli.app, ["train", "base", *options, "--max-minutes", "0.000001"])
    assert "stopped; continue with --resume" in stopped.output
    assert "finished" in command.invoke(cli.app, ["train", "base", *options, "--resume"]).output
    shown = command.invoke(cli.app, ["runs", "show", out]).output
    assert "base: loss" in shown
    assert "valid top-1 at mask 0.5" in shown
    assert command.invoke(cli.app, ["train", "show", out]).output == shown  # the old form
    listed = command.invoke(cli.app, ["runs", "list", str(tmp_path)]).output
    assert re.search(r"│ run\s+│ finished │ -\s+│ -\s+│ -\s+│ -\s+│\s", listed)
    for arguments, message in (
        (["train", "base", "--preset", "tiny", "--out", out], "--data .* and --out .* are required"),
        (["runs", "show", str(tmp_path)], "holds no run"),
        (["runs", "list", out], "has no runs: none of its folders has a run.json"),
    ):
        failed = command.invoke(cli.app, arguments)
        assert isinstance(failed.exception, ValueError)
        assert re.search(message, str(failed.exception))


def test_register_noise_can_begin_later(trained, corpus):
    always, later, never = (
        guided_stage(run, Workspace(corpus, trained, trained))[0]
        for run in (
            tiny(corpus),
            ABLATIONS["register noise from halfway"](tiny(corpus)),
            ABLATIONS["without register noise"](tiny(corpus)),
        )
    )
    with torch.no_grad():
        before, after = ([float(one.loss(step, range(4))) for one in (always, later, never)] for step in (59, 60))
    assert before[1] == before[2] != before[0]
    assert after[1] == after[0] != after[2]


def test_every_ablation_is_a_change_of_a_run(corpus):
    run = tiny(corpus)
    changed = {name: change(run) for name, change in ABLATIONS.items()}
    assert all(other != run for other in changed.values())
    assert changed["without register noise"].guided_objective.register_cosine == 1
    assert changed["without block offsets"].prior_objective.largest_offset == 0
    assert changed["literal two-axis RoPE"].demasker.literal_positions


def test_the_estimate_counts_the_parameters_that_are_trained(corpus):
    run = tiny(corpus)
    found = {one.stage: one for one in estimates(run)}
    stage, _ = base_stage(run, Workspace(corpus, corpus.directory, corpus.directory))
    assert found["base"].trained == sum(p.numel() for p in stage.demasker.parameters())
    assert found["base"].tokens == 120 * 16 * 64
    assert found["conditional"].frozen > 0
    assert found["distilled"].frozen == sum(found[stage].trained for stage in ("prior", "conditional")) + sum(
        p.numel() for p in RegisterEncoder(run.encoder).parameters()
    )
    assert found["distilled"].flops > found["prior"].flops + found["conditional"].flops
    kept = replace(run, encoder_learns=False, guided_start=Path("model"))
    fixed = {one.stage: one for one in estimates(kept)}["guided"]
    assert fixed.frozen == found["conditional"].frozen  # the encoder
    assert fixed.trained + fixed.frozen == found["guided"].trained
    assert fixed.gigabytes < found["guided"].gigabytes
    flow_map, matched = (
        {one.stage: one for one in estimates(replace(run, distil_objective=objective))}["distilled"]
        for objective in (
            DistilObjective(teachers=("prior",)),
            DistilObjective(teachers=("prior",), by_matching=True),
        )
    )
    assert matched.trained > 2 * found["prior"].trained  # the student, and the critic with its classifier
    assert matched.flops > flow_map.flops  # every text has a whole draw


# ---------------------------------------------------------------- a prior that begins as the demasker (D79)


@pytest.mark.usefixtures("short_validation")
def test_a_conditional_prior_begins_as_the_demasker_and_draws_registers(trained, corpus, tmp_path):
    for stage in ("base", "guided"):
        shutil.copytree(trained / stage, tmp_path / stage)
    workspace, run = Workspace(corpus, tmp_path, tmp_path), live(corpus, denoiser_begins_as_demasker=True)
    demasker = load_model(trained / "guided" / "model" / "demasker")
    begun = conditional_stage(run, workspace)[0].denoiser
    for mine, its in zip(begun.repeated_blocks.parameters(), demasker.backbone.blocks.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert run_stage("conditional", run, workspace)
    assert "guided/model/demasker" in read_checksummed(tmp_path / "conditional" / "stage.json")["sources"]
    command = ["export", str(tmp_path), "--data", str(corpus.directory), "--without", "base", "--out"]
    made = CliRunner().invoke(cli.app, [*command, str(tmp_path / "model")])
    assert made.exit_code == 0, made.output
    pipe = Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    assert pipe.conditional.config == run.conditional_shape
    for method in ("conthendisc", "conwithindisc"):
        made = pipe.generate(2, method=method, length=min(run.lengths), calls=2, show_progress=False)
        assert len(made.texts) == 2
    positions = begun.config.num_positions
    assert positions == run.conditional.num_registers + 2 + run.conditional.condition_length
    denoising = pipe.pricing.flop_nfe(Cost(denoiser_calls=1), length=64, num_registers=None)
    expected = num_parameters(begun) * positions / (num_parameters(demasker.backbone) * 64)
    assert denoising == pytest.approx(expected)


def test_a_prior_that_begins_as_the_demasker_costs_operations_like_it_and_needs_a_trained_one(corpus):
    run = live(corpus, denoiser_begins_as_demasker=True, guided_start=None)
    shape = run.conditional_shape
    blocks = demasker_flops(run.demasker.backbone, positions=shape.num_positions, rows=0)
    assert 3 * blocks < prior_flops(shape, self_condition_rate=0.5) < 4 * blocks  # and the maps around them
    assert step_flops(run)["conditional"] > step_flops(live(corpus))["conditional"]
