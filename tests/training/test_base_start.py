"""A base that goes on from a guided demasker, without its registers, or from an exported model (decision D86)."""

import shutil
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.format import load_model
from crocodil.presets.runs import tiny
from crocodil.training.record import read_checksummed
from crocodil.training.run import run_stage
from crocodil.training.run_config import Run
from crocodil.training.spent import inherited_flops, read_record
from crocodil.training.stage_setup import base_stage
from crocodil.training.workspace import Workspace


@pytest.fixture
def here(corpus, tmp_path):
    return Workspace(corpus, tmp_path / "run", tmp_path / "run")


def started_at(corpus, folder) -> Run:
    run = tiny(corpus)
    return replace(run, base_start=folder, base_loop=replace(run.base_loop, num_steps=1))


def test_preset_builtin_needs_no_causal_model_for_a_base_that_goes_on(corpus, trained, tmp_path):
    words = ["train", "base", "--preset", "builtin", "--data", corpus.directory, "--out", tmp_path / "run"]
    result = CliRunner().invoke(cli.app, [*map(str, words), "--set", f"base_start={trained / 'guided' / 'model'}"])
    assert "another shape" in str(result.exception)  # it gets as far as the networks


def weights_of(folder):
    network = load_model(folder)
    return getattr(network, "backbone", network).state_dict()


def begins_as(run, here):
    return base_stage(run, here)[0].demasker.state_dict()


def are_equal(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.usefixtures("short_validation")
def test_a_base_begins_as_a_guided_demasker_and_has_the_operations_of_both_stages(trained, corpus, here):
    start = trained / "guided" / "model"
    run = started_at(corpus, start)
    assert are_equal(begins_as(run, here), weights_of(start / "demasker"))
    assert run_stage("base", run, here)
    assert not are_equal(weights_of(here.out / "base" / "model" / "demasker"), weights_of(start / "demasker"))
    spent, work = read_record(trained)["work"], read_record(here.out)["work"]["base"]
    assert work.inherited == {"base": spent["base"].flops + spent["guided"].flops}
    assert work.flops == spent["base"].flops / tiny(corpus).base_loop.num_steps
    assert "base to go on from" in read_checksummed(here.out / "base" / "stage.json")["sources"]


@pytest.mark.usefixtures("short_validation")
def test_of_an_exported_model_it_takes_the_base_or_else_the_demasker(trained, corpus, here, tmp_path):
    exported = tmp_path / "exported"
    shutil.copytree(trained / "guided" / "model", exported)
    run = started_at(corpus, exported)
    assert are_equal(begins_as(run, here), weights_of(exported / "demasker"))
    shutil.copytree(trained / "base" / "model" / "demasker", exported / "base")
    assert are_equal(begins_as(run, here), weights_of(exported / "base"))
    assert not are_equal(weights_of(exported / "base"), weights_of(exported / "demasker"))
    assert run_stage("base", run, here)
    assert read_record(here.out)["work"]["base"].inherited == {"base": None}  # others may have trained it
    spent = read_record(trained)["work"]
    of_its_run = replace(here, source=trained)
    assert inherited_flops("base", run, of_its_run) == {"base": spent["base"].flops}
    shutil.rmtree(exported / "base")
    assert inherited_flops("base", run, of_its_run) == {"base": spent["base"].flops + spent["guided"].flops}


def test_it_has_priority_over_the_base_of_the_run_that_it_reads(trained, corpus, tmp_path):
    run = started_at(corpus, trained / "guided" / "model")
    here = Workspace(corpus, tmp_path, trained)
    assert are_equal(begins_as(run, here), weights_of(trained / "guided" / "model" / "demasker"))


def test_a_start_that_is_missing_or_has_another_shape_is_refused(trained, corpus, here, tmp_path):
    with pytest.raises(ValueError, match="base_start is the folder model of a finished stage base or guided"):
        run_stage("base", started_at(corpus, tmp_path), here)
    run = started_at(corpus, trained / "guided" / "model")
    backbone = replace(run.demasker.backbone, num_layers=run.demasker.backbone.num_layers + 1)
    with pytest.raises(ValueError, match="another shape than the run"):
        run_stage("base", replace(run, demasker=replace(run.demasker, backbone=backbone)), here)
    assert not here.out.exists()
