"""Stages that are trained for a time, not for a number of steps."""

import os
import signal
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from crocodil import cli
from crocodil.presets.runs import tiny
from crocodil.runtime.distributed import Ranks
from crocodil.training.by_clock import run_stage_for
from crocodil.training.journal import read_rows
from crocodil.training.loop import num_steps_done
from crocodil.training.record import read_checksummed
from crocodil.training.run import run_stage
from crocodil.training.stages import BaseStage
from crocodil.training.workspace import Workspace


def short(corpus, **loop):
    run = tiny(corpus)
    return replace(run, base_loop=replace(run.base_loop, evaluate_every=10**6, warmup_steps=0, **loop))


def test_a_stage_that_is_trained_for_a_time_ends_with_a_falling_rate(corpus, tmp_path):
    run = short(corpus, decay_share=0.5, batch_size=2)
    assert run_stage_for("base", run, Workspace(corpus, tmp_path, tmp_path), minutes=0.05)
    rates = [row["learning_rate"] for row in read_rows(tmp_path / "base") if "loss" in row]
    settings = read_checksummed(tmp_path / "base" / "stage.json")["settings"]
    num_steps, decay_share = (settings[f"base_loop.{name}"] for name in ("num_steps", "decay_share"))
    assert len(rates) == num_steps
    num_constant = round(num_steps * (1 - decay_share))
    assert 0 < num_constant < num_steps
    assert set(rates[: num_constant + 1]) == {run.base_loop.learning_rate}
    assert all(
        later < earlier for earlier, later in zip(rates[num_constant:], rates[num_constant + 1 :], strict=False)
    )
    assert (tmp_path / "base" / "model" / "demasker").is_dir()


def test_a_signal_stops_a_stage_although_its_time_is_nearly_up(corpus, tmp_path, monkeypatch):
    run, loss = short(corpus, decay_share=0.5, batch_size=2), BaseStage.loss

    def loss_and_signal(stage, step, indices):
        if step == 0:  # later, a slow machine might have no step left
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.4)  # the time of the constant rate is up
        return loss(stage, step, indices)

    monkeypatch.setattr(BaseStage, "loss", loss_and_signal)
    assert not run_stage_for("base", run, Workspace(corpus, tmp_path, tmp_path), minutes=0.01)
    assert num_steps_done(tmp_path / "base") <= 1


def test_a_time_too_short_to_train_the_demasker_is_refused(corpus, tmp_path):
    base = short(corpus, decay_share=0.5, num_steps=2)
    run_stage("base", base, Workspace(corpus, tmp_path, tmp_path))
    run = replace(base, guided_loop=base.base_loop, encoder_warmup_steps=10**6)
    with pytest.raises(ValueError, match="the demasker would never be trained"):
        run_stage_for("guided", run, Workspace(corpus, tmp_path, tmp_path), minutes=0.02)


def test_what_cannot_be_trained_for_a_time_is_refused(corpus, tmp_path):
    run, workspace = short(corpus, decay_share=0.5), Workspace(corpus, tmp_path, tmp_path)
    with pytest.raises(ValueError, match="takes no steps"):
        run_stage_for("registers", run, workspace, minutes=1)
    with pytest.raises(ValueError, match=r"--set base_loop.decay_share=0.4"):
        run_stage_for("base", short(corpus, decay_share=1.0), workspace, minutes=1)
    with pytest.raises(ValueError, match="one process only"):
        run_stage_for("base", run, replace(workspace, ranks=Ranks(count=2)), minutes=1)
    options = [
        "--preset",
        "tiny",
        "--data",
        str(corpus.directory),
        "--out",
        str(tmp_path / "run"),
        "--minutes",
        "1",
    ]
    found = CliRunner().invoke(cli.app, ["train", "base", *options, "--resume"])
    assert "--minutes starts a stage and finishes it" in str(found.exception)
    assert not (tmp_path / "run").exists()
