"""A demasker that is trained alone: the registers stay, so the priors of the model still fit (decision D81)."""

from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.format import load_model
from crocodil.pipeline import Crocodil
from crocodil.presets.runs import tiny
from crocodil.training.estimate import estimates, step_flops
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import guided_stage
from crocodil.training.work import FROZEN, TRAINED, encoder_flops
from crocodil.training.workspace import Workspace


@pytest.fixture(scope="module")
def exported(trained, corpus, tmp_path_factory):
    """The tiny model of the run, as a folder."""
    out = tmp_path_factory.mktemp("start") / "model"
    made = export(trained, corpus, out, "--register-noise", 0.5, "--prior-steps", 2, "--eta", 1)
    assert made.exit_code == 0, made.exception
    return out


def export(folder, corpus, out, *options):
    words = ["export", folder, "--data", corpus.directory, "--out", out, *options]
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def further(corpus, exported, *, encoder_learns):
    run = tiny(corpus)
    loop = replace(run.guided_loop, num_steps=3, warmup_steps=0, average_decay=0.0)
    return replace(
        run, guided_loop=loop, guided_start=exported, encoder_learns=encoder_learns, encoder_warmup_steps=0
    )


@pytest.mark.usefixtures("short_validation")
def test_a_demasker_learns_alone_and_keeps_the_priors_of_its_model(exported, corpus, tmp_path):
    run = further(corpus, exported, encoder_learns=False)
    assert run_stage("guided", run, Workspace(corpus, tmp_path, tmp_path))
    before, after = (
        load_model(folder / "encoder").state_dict() for folder in (exported, tmp_path / "guided" / "model")
    )
    assert all(torch.equal(after[name], value) for name, value in before.items())
    old, new = (load_model(folder / "demasker") for folder in (exported, tmp_path / "guided" / "model"))
    assert not torch.equal(old.register_map.weight, new.register_map.weight)
    made = export(tmp_path, corpus, tmp_path / "model", "--priors-of", exported, "--prior-steps", 3)
    assert made.exit_code == 0, made.exception
    start, model = (Crocodil.from_pretrained(folder, device="cpu") for folder in (exported, tmp_path / "model"))
    assert model.settings.drawing == replace(start.settings.drawing, prior_steps=3)
    assert torch.equal(model.conditional.proj_out.weight, start.conditional.proj_out.weight)
    assert torch.equal(model.demasker.register_map.weight, new.register_map.weight)
    assert "Its priors are those of `model`." in (tmp_path / "model" / "README.md").read_text()
    fewer = export(tmp_path, corpus, tmp_path / "fewer", "--priors-of", exported, "--without", "prior")
    assert fewer.exit_code == 0, fewer.exception
    for folder, has_prior in (("model", True), ("fewer", False)):
        assert (tmp_path / folder / "conditional").exists()
        assert (tmp_path / folder / "prior").exists() == has_prior


@pytest.mark.usefixtures("short_validation")
def test_priors_of_another_encoder_are_refused(exported, corpus, tmp_path):
    run = further(corpus, exported, encoder_learns=True)
    assert run_stage("guided", run, Workspace(corpus, tmp_path, tmp_path))
    refused = export(tmp_path, corpus, tmp_path / "model", "--priors-of", exported)
    assert "has another encoder than the run" in str(refused.exception)
    without = tmp_path / "without"
    assert export(tmp_path, corpus, without).exit_code == 0  # stage guided alone: no prior
    assert f"{without} has no prior" in str(
        export(tmp_path, corpus, tmp_path / "model", "--priors-of", without).exception
    )


def test_a_fixed_encoder_gets_no_gradient_and_costs_one_pass(exported, corpus, tmp_path):
    learns, fixed = (further(corpus, exported, encoder_learns=learns) for learns in (True, False))
    stage, _ = guided_stage(fixed, Workspace(corpus, tmp_path, tmp_path))
    assert set(stage.groups()) == {"interface", "demasker"}
    stage.loss(0, range(4)).backward()
    assert all(parameter.grad is None for parameter in stage.encoder.parameters())
    assert stage.demasker.register_map.weight.grad is not None
    encoding = encoder_flops(fixed.encoder, positions=64 + fixed.encoder.num_registers)
    saved = step_flops(learns)["guided"] - step_flops(fixed)["guided"]
    assert saved == pytest.approx(fixed.guided_loop.batch_size * (TRAINED - FROZEN) * encoding)
    trained, kept = ({one.stage: one for one in estimates(run)}["guided"] for run in (learns, fixed))
    assert kept.frozen == trained.trained - kept.trained > 0


def test_a_fixed_encoder_must_come_from_a_model(exported, corpus):
    with pytest.raises(ValueError, match="encoder_learns=false needs guided_start"):
        replace(tiny(corpus), encoder_learns=False)
