"""Teacher texts: a demasker learns to decode in few calls what a model decodes in many (decision D77)."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.format import load_model
from crocodil.cli.teaching import Keep, _kept
from crocodil.metrics import parses_without_its_end
from crocodil.pipeline import Crocodil, Method
from crocodil.presets.runs import tiny
from crocodil.training.estimate import step_flops
from crocodil.training.record import read_checksummed
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import guided_stage
from crocodil.training.teacher_texts import TEACHER_FILE, TeacherData, TeacherTexts
from crocodil.training.work import FROZEN, TRAINED, encoder_flops
from crocodil.training.workspace import Workspace


@pytest.fixture(scope="module")
def exported(trained, corpus, tmp_path_factory):
    """The tiny model of the run, as a folder."""
    out = tmp_path_factory.mktemp("teacher") / "model"
    command(
        "export", trained, "--data", corpus.directory, "--out", out, "--register-noise", 0.5, "--prior-steps", 2
    )
    return out


@pytest.fixture(scope="module")
def taught(exported, tmp_path_factory):
    """Forty texts that it decodes in 8 calls."""
    out = tmp_path_factory.mktemp("texts") / "taught"
    command("teach", "--model", exported, "--out", out, "--count", 40, "--calls", 8, "--device", "cpu")
    return out


def command(*words):
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert done.exit_code == 0, done.exception or done.output
    return done.output


def learning(corpus, exported, *folders, **fields):
    run = tiny(corpus)
    loop = replace(run.guided_loop, num_steps=3, warmup_steps=0, average_decay=0.0)
    options = {"guided_start": exported, "teacher_texts": folders, "encoder_warmup_steps": 0, **fields}
    return replace(run, guided_loop=loop, **options)


def test_teacher_texts_are_the_samples_of_their_seed_with_their_registers(exported, taught):
    pipe = Crocodil.from_pretrained(exported, device="cpu")
    samples = pipe.generate(40, method=Method.CON_THEN_DISC, calls=8)
    texts = TeacherTexts(taught)
    assert np.array_equal(texts.tokens, samples.tokens)
    assert np.allclose(texts.registers, samples.registers, atol=5e-3)
    about = json.loads((taught / TEACHER_FILE).read_text())
    assert (about["texts"], about["decoded"], about["decoding"]["calls"]) == (40, 40, 8)
    assert about["drawing"]["register_noise"] == 0.5


def test_by_default_a_teacher_makes_twice_its_calls(exported, tmp_path):
    printed = command("teach", "--model", exported, "--out", tmp_path / "a", "--count", 2, "--device", "cpu")
    assert "2 of 2 texts, 8 calls each" in printed  # of 64 tokens, a model takes 4 calls


def test_on_demand_only_texts_that_parse_are_kept(exported):
    pipe = Crocodil.from_pretrained(exported, device="cpu")
    ended, cut, wrong = "x = 1\n", "x = 1\ny = 2\nz = (3,", "x = (1"
    tokens = pipe.tokens_of([ended, cut, cut, wrong])
    tokens[1] = tokens[1].masked_fill(tokens[1] == pipe.tokenizer.special.eos, tokens[1, 1])  # no end
    batch = replace(pipe.generate(4, calls=1), texts=[ended, cut, cut, wrong], tokens=tokens)
    assert _kept(pipe, batch, Keep.PARSES) == [0, 1]
    assert _kept(pipe, batch, Keep.ALL) == [0, 1, 2, 3]


def test_if_no_text_parses_nothing_is_written(exported, tmp_path):
    words = ["teach", "--model", exported, "--out", tmp_path / "b", "--calls", 1, "--register-noise", 900]
    words += ["--count", 3, "--keep", "parses", "--device", "cpu"]
    done = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert "none of 3 texts parses: decode more, or use --keep all" in str(done.exception)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("text", "parses"),
    [
        ("x = 1\ny = 2\nz = (3,", True),
        ("x = 1\ny = 2", True),
        ("x = (\ny = 2\nz = 3", False),
        ("x = 1\ny = (\nz =", False),  # too little would remain
        ("", False),
    ],
)
def test_a_text_that_was_cut_may_parse_without_its_last_lines(text, parses):
    assert parses_without_its_end(text) is parses


@pytest.mark.usefixtures("short_validation")
def test_a_demasker_learns_from_teacher_texts_and_its_encoder_stays(exported, taught, corpus, tmp_path):
    run, workspace = learning(corpus, exported, taught), Workspace(corpus, tmp_path, tmp_path)
    assert run_stage("guided", run, workspace)
    model = tmp_path / "guided" / "model"
    before, after = (load_model(folder / "encoder").state_dict() for folder in (exported, model))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    old, new = (load_model(folder / "demasker").state_dict() for folder in (exported, model))
    assert not any(torch.equal(new[name], value) for name, value in old.items() if value.ndim > 1)
    steps = [json.loads(line) for line in (tmp_path / "guided" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in steps if "loss" in row]
    assert all(row["loss"] == pytest.approx(row["demasking"] + row["taught"]) for row in steps)
    assert "teacher texts 1" in read_checksummed(tmp_path / "guided" / "stage.json")["sources"]


@pytest.mark.usefixtures("short_validation")
def test_a_stage_with_teacher_texts_resumes_to_the_same_bits(exported, taught, corpus, tmp_path):
    run, whole, parts = learning(corpus, exported, taught), tmp_path / "whole", tmp_path / "parts"
    assert run_stage("guided", run, Workspace(corpus, whole, whole))
    assert not run_stage("guided", run, Workspace(corpus, parts, parts), max_minutes=1e-9)
    assert run_stage("guided", run, Workspace(corpus, parts, parts), resume=True)
    first, second = (load_model(out / "guided/model/demasker").state_dict() for out in (whole, parts))
    assert all(torch.equal(second[name], value) for name, value in first.items())


def test_a_loss_on_teacher_texts_reads_the_registers_they_were_decoded_from(exported, taught, corpus, tmp_path):
    """With the registers of other texts the loss is higher."""
    stage, _ = guided_stage(
        learning(corpus, exported, taught, teacher_rate=0.9), Workspace(corpus, tmp_path, tmp_path)
    )
    other = tmp_path / "other"
    shutil.copytree(taught, other)
    np.save(other / "registers.npy", np.roll(TeacherTexts(taught).registers, 1, axis=0))
    wrong, _ = guided_stage(
        learning(corpus, exported, other, teacher_rate=0.9), Workspace(corpus, tmp_path, tmp_path)
    )
    with torch.no_grad():
        right_loss, wrong_loss = (
            sum(one.loss(step, range(16))["taught"].item() for step in range(4)) for one in (stage, wrong)
        )
    assert right_loss < wrong_loss


def test_teacher_texts_are_a_share_of_the_batches_of_their_length(taught):
    data = TeacherData([TeacherTexts(taught), TeacherTexts(taught)], num_registers=8, rate=0.25)
    assert [data.count(64, 16), data.count(32, 16), data.count(64, 1)] == [4, 0, 0]
    batch = data.batch(64, 3, range(12, 16), batch_size=16)
    assert batch.registers.shape == (4, 8, TeacherTexts(taught).registers.shape[2])
    assert batch.prefix_length.tolist() == [4] * 4
    assert not batch.registers[:, 4:].any()
    assert torch.equal(batch.tokens[1:], data.batch(64, 3, range(13, 16), batch_size=16).tokens)


def test_teacher_texts_save_the_cost_of_the_encoder(corpus, exported, taught):
    run = learning(corpus, exported, taught)
    encoding = encoder_flops(run.encoder, positions=64 + run.encoder.num_registers)
    saved = step_flops(replace(run, teacher_texts=()))["guided"] - step_flops(run)["guided"]
    assert saved == pytest.approx(run.guided_loop.batch_size * (TRAINED - 0.5 * FROZEN) * encoding)


def test_teacher_texts_that_do_not_fit_are_refused(corpus, exported, taught, tmp_path):
    workspace = Workspace(corpus, tmp_path, tmp_path)
    with pytest.raises(ValueError, match="teacher_texts needs guided_start"):
        learning(corpus, None, taught)
    with pytest.raises(ValueError, match=r"registers.npy is missing: teacher_texts are folders that"):
        run_stage("guided", learning(corpus, exported, tmp_path), workspace)
    with pytest.raises(ValueError, match="has texts of 64 tokens, which is none of lengths"):
        run_stage("guided", replace(learning(corpus, exported, taught), lengths=(32,)), workspace)
    shutil.copytree(taught, tmp_path / "texts")
    np.save(tmp_path / "texts" / "registers.npy", TeacherTexts(taught).registers[:, :, :5])
    with pytest.raises(ValueError, match="teach with a model of the same shape"):
        run_stage("guided", learning(corpus, exported, tmp_path / "texts"), workspace)
    (tmp_path / "texts" / "registers.npy").write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"registers.npy is damaged .*: write it again with `crocodil teach`"):
        run_stage("guided", learning(corpus, exported, tmp_path / "texts"), workspace)
