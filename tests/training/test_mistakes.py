"""Mistakes of a user before training starts, and damaged files: one clear line each."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace

import pytest
from tiny_causal import save_causal
from typer.testing import CliRunner

from crocodil import cli
from crocodil.presets.ablated import ABLATIONS
from crocodil.presets.assumed import assumed_corpus
from crocodil.presets.changes import with_changes
from crocodil.presets.runs import (
    FROM_CAUSAL,
    FROM_PRETRAINED,
    FROM_SCRATCH,
    tiny,
)
from crocodil.presets.runs import preset as preset_of
from crocodil.runtime.devices import checked_device
from crocodil.runtime.progress import rate
from crocodil.training.adapting import LoRA
from crocodil.training.estimate import estimates
from crocodil.training.history import read_run_summary
from crocodil.training.journal import curves, last_values, metrics_log
from crocodil.training.run import run_stage
from crocodil.training.run_config import Pretrained
from crocodil.training.workspace import Workspace


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["base_loop.save_every=0"], "save_every should be greater than or equal to 1, not 0"),
        (["base_loop.evaluate_every=0"], "evaluate_every should be"),
        (["base_loop.num_accumulated=0"], "num_accumulated should be"),
        (["base_loop.betas=[0.9]"], "betas"),
        (["base_loop.num_steps=-1"], "num_steps should be"),
        (["base_loop.learning_rate=1e999"], "learning_rate should be a finite number"),
        (["base_loop.learning_rate=NaN"], "learning_rate should be"),
        (["base_loop.seed=" + "9" * 5000], "seed should be"),
        (["base_loop.seed=" + "9" * 50], "seed should be"),
        (["demasker.backbone.width=0"], "width should be"),
        (["demasker.backbone.num_layers=-1"], "num_layers should be"),
        (["demasker.backbone.num_layers=1000000000"], "num_layers should be"),
        (["lengths=" + "[" * 100_000], "lengths: the value is nested too deeply"),
        (["lengths=" + "[" * 500 + "]" * 500], "lengths.0 should be a valid integer"),
        (["lengths=[]"], "lengths"),
        (["lengths={}"], "lengths should be a valid tuple"),
        (["lora=1"], "lora should be"),
        (["=1"], "no field ''"),
        (
            ["demasker.register_width=16"],
            "demasker.register_width is 16 and encoder.register_width is 32: they must",
        ),
        (["prior.register_width=16"], "prior.register_width is 16 and encoder.register_width is 32"),
        (["encoder.num_registers=9"], "demasker.num_registers is 8 and encoder.num_registers is 9"),
        (["prior.num_registers=2"], "conditional.num_registers is 4 and prior.num_registers is 2"),
        (["prior.num_registers=9", "conditional.num_registers=9"], "prior.num_registers is 9: .* has only 8"),
        (["guided_objective.prefix_lengths=[1,9]"], "prefix_lengths: the encoder has only 8 registers"),
        (["conditional.condition_width=16"], "conditional.condition_width is 16 and encoder.register_width is 32"),
        (["prior.condition_width=32", "prior.condition_length=8"], "only conditional has a condition"),
    ],
)
def test_an_invalid_setting_is_one_line(corpus, changes, message):
    with pytest.raises(ValueError, match=message) as found:
        with_changes(tiny(corpus), changes)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 300


def test_settings_that_must_agree_are_set_together(corpus):
    names = ("demasker.register_width", "encoder.register_width", "prior.register_width")
    names += ("conditional.register_width", "conditional.condition_width")
    run = with_changes(tiny(corpus), [f"{name}=16" for name in names])
    assert run.conditional.condition_width == run.prior.register_width == 16
    run = with_changes(run, ["base_loop.batch_size=9", "base_loop.num_accumulated=3"])
    assert run.base_loop.num_accumulated == 3


def test_adapters_need_existing_projections():
    with pytest.raises(ValueError, match=r"lora.targets must be one or more of query, .*, not \['keys'\]"):
        LoRA(targets=("query", "keys"))


def test_settings_that_do_not_fit_are_refused_before_anything_is_written(corpus, tmp_path, monkeypatch):
    run, workspace = tiny(corpus), Workspace(corpus, tmp_path / "run", tmp_path / "run")
    slow = replace(run, encoder_warmup_steps=120)
    read = replace(run, encoder=replace(run.encoder, vocab_size=999))
    other = replace(run, encoder_begins_as_base=True, encoder=replace(run.encoder, mlp_width=64))
    for stage, wrong, where, message in (
        (
            "base",
            replace(run, lengths=(100_000,)),
            workspace,
            "lengths: 100000 tokens, but the longest program .* has",
        ),
        (
            "guided",
            slow,
            workspace,
            "encoder_warmup_steps is 120 and guided_loop.num_steps 120: the demasker would never",
        ),
        (
            "guided",
            replace(run, register_noise_from=120),
            workspace,
            "register_noise_from is 120 and guided_loop.num_steps 120: registers would never be noised",
        ),
        ("guided", read, workspace, "the encoder has a vocabulary of 999, the corpus one of 320"),
        ("guided", other, workspace, "encoder.mlp_width is 64, but the base has 192: make them fit"),
        ("registers", run, workspace, "train stage guided first"),
        ("guided", run, Workspace(corpus, tmp_path / "run", tmp_path), "holds no run: run.json is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            run_stage(stage, wrong, where)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match="LoRA needs peft"):
        run_stage("guided", replace(run, lora=LoRA(rank=2)), workspace)
    for minutes in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"max_minutes is .*: give a finite number above 0"):
            run_stage("base", run, workspace, max_minutes=minutes)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- the command line


def test_options_outside_their_range_are_refused(corpus, tmp_path):
    for option, value in (("--gpus", 0), ("--gpus", -1), ("--max-minutes", "nan"), ("--max-minutes", "-1"),
                          ("--max-minutes", 0), ("--max-minutes", "inf"), ("--minutes", 0)):  # fmt: skip
        found = invoke("train", "base", "--preset", "tiny", "--dry-run", option, value)
        assert found.exit_code == 2, option
        assert option in found.output
    run = ("train", "base", "--preset", "tiny", "--data", corpus.directory, "--out", tmp_path / "run")
    for device in ("gpu", "mps", "cuda:x", ""):
        found = invoke(*run, "--device", device)
        assert found.exit_code == 2
        assert f"no device '{device}'" in found.output
    assert not (tmp_path / "run").exists()


def test_a_device_is_the_cpu_or_an_available_gpu():
    assert checked_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="device cuda:9999: "):
        checked_device("cuda:9999")
    for name in ("gpu", "mps", "CPU", "cpu:0", "cuda:-1", "cuda:٣"):
        with pytest.raises(ValueError, match=r"no device .*: use cpu, cuda, or cuda:N"):
            checked_device(name)


def test_a_loss_that_diverges_names_stage_and_step_and_says_what_to_do(corpus, tmp_path):
    found = invoke("train", "base", "--preset", "tiny", "--data", corpus.directory, "--out", tmp_path / "run",
                   "--device", "cpu", "--set", "base_loop.learning_rate=1e30")  # fmt: skip
    assert isinstance(found.exception, ArithmeticError)
    assert "stage base: " in str(found.exception)
    assert "at step 1" in str(found.exception)
    assert "start again with a lower learning rate and another --out" in str(found.exception)


@pytest.mark.parametrize("preset", [*FROM_SCRATCH, *FROM_CAUSAL, *FROM_PRETRAINED])
def test_an_estimate_needs_no_folder_and_no_corpus(preset):
    found = invoke("train", "guided", "--preset", preset, "--dry-run", "--gpus", 8)
    assert found.exit_code == 0
    assert "conditional" in found.output
    others = {
        "laptop": "a vocabulary of 4,096",
        "builtin": "a vocabulary of 12,288",
        "medium": "the vocabulary of Qwen2.5-Coder-0.5B, 151,936",
    }
    scratch = others.get(preset, "a vocabulary of 8,192")
    assumed = "12,000,000 programs, as in the paper" if preset in FROM_PRETRAINED else scratch
    assert f"No --data is given, so this is assumed: {assumed}.\n" in found.output
    assert "GB per device: estimated." in found.output
    assert re.search(r"^- (measured|estimated).*\(.*guided.*\)$", found.output, re.MULTILINE)
    if preset in FROM_PRETRAINED:
        assert "70,313" in found.output  # 3 epochs in batches of 512


def test_hours_follow_from_a_rate_that_is_given():
    found = invoke("train", "base", "--preset", "small", "--dry-run", "--rate", 100, "--gpus", 2)
    work = estimates(preset_of("small", assumed_corpus("small")[0], Pretrained()))[0].flops
    assert f"│  {work / 200e12 / 3600:.2f} │" in found.output
    stages = "base, guided, prior, conditional, distilled, prompted, head"
    assert f"estimated: 100 TFLOP/s (--rate) ({stages})" in found.output


def test_an_ablation_is_trained_by_its_name():
    found = invoke("train", "prior", "--preset", "small", "--ablation", "as printed", "--dry-run", "--rate", 100)
    printed = ABLATIONS["as printed"](preset_of("small", assumed_corpus("small")[0], Pretrained()))
    assert f"│  {estimates(printed)[2].flops / 100e12 / 3600:.2f} │" in found.output


def test_a_corpus_in_another_vocabulary_is_refused_in_one_line_before_weights_are_read(corpus, tmp_path):
    arguments = ("train", "base", "--preset", "medium", "--data", corpus.directory, "--out", tmp_path / "run")
    found = invoke(*arguments, "--device", "cpu")
    assert str(found.exception) == "preset medium begins as a causal model: give the folder of one with --causal"
    save_causal(tmp_path / "causal")
    (tmp_path / "causal" / "model.safetensors").unlink()
    rebuild = "build the corpus with the base's own tokenizer (`crocodil corpus build --tokenizer`)"
    found = invoke(*arguments, "--device", "cpu", "--causal", tmp_path / "causal")
    assert str(found.exception) == f"the mask token has id 0 in the corpus, 258 in the base: {rebuild}"
    file = tmp_path / "causal" / "tokenizer.json"
    values = json.loads((corpus.directory / "tokenizer.json").read_text())
    ids = values["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]  # the same size and special tokens
    file.write_text(json.dumps(values))
    found = invoke(*arguments, "--device", "cpu", "--causal", tmp_path / "causal")
    differs = f"token {ids['b']} of the corpus is 'a', which is another one in {file}"
    assert str(found.exception) == f"{differs}: {rebuild}"
    assert not (tmp_path / "run").exists()


def test_data_without_a_corpus_is_one_line(tmp_path):
    for verb in (("train", "base", "--out", tmp_path / "run"), ("train", "base", "--dry-run")):
        found = invoke(*verb, "--data", tmp_path)
        assert isinstance(found.exception, ValueError)
        assert "is not a finished corpus" in str(found.exception)


# ---------------------------------------------------------------- damaged files

ROWS = '{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n'
DAMAGED = ["[]", '{"loss": 1}', '{"step": "1"}', '{"step": 1, "loss": []}', "\x00\x01", "[" * 10_000,
           '{"step": 1, "loss": 1' + "0" * 400 + "}", '{"step": 2, "lo']  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_of_metrics_is_skipped_and_removed_on_resume(tmp_path, line):
    stage = tmp_path / "base"
    stage.mkdir()
    (stage / "metrics.jsonl").write_bytes((line + "\n").encode() + b"\xff\xfe\n" + ROWS.encode())
    with pytest.warns(UserWarning, match=r"metrics\.jsonl: skipped line 1 and 1 more, damaged"):
        assert last_values(tmp_path) == {"base": [("step", "2"), ("loss", "1")]}
    with pytest.warns(UserWarning, match="skipped"):
        assert "1.000" in curves(tmp_path)["base: loss"]
    with metrics_log(stage, 2) as log:
        log({"step": 3, "loss": 0.5})
    found = [json.loads(row) for row in (stage / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == [1, 2, 3]
    (stage / "metrics.jsonl").write_text(line)
    with pytest.raises(ValueError, match="no line holds metrics"):
        last_values(tmp_path)
    (stage / "metrics.jsonl").unlink()
    os.mkfifo(stage / "metrics.jsonl")
    with pytest.raises(ValueError, match="is not a regular file"):
        last_values(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"[]", b"\xff\xfe", b"", b"{}", b'{"lengths": [64]}', b"[" * 100_000,
        b'{"lengths": "64", "prior_objective": {}, "pretrained": {}}',
        b'{"lengths": [64], "prior_objective": [], "pretrained": {}}',
        b'{"lengths": [64], "prior_objective": {}, "pretrained": null}',
        b'{"lengths": [64], "prior_objective": {"largest_offset": 7}, "pretrained": {}}',
    ],
)  # fmt: skip
def test_a_damaged_run_file_is_one_line(corpus, tmp_path, text):
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"run\.json"):
        read_run_summary(tmp_path)
    found = invoke("export", tmp_path, "--data", corpus.directory, "--out", tmp_path / "model")
    assert "run.json" in str(found.exception)
    assert isinstance(found.exception, ValueError)


def test_a_corpus_with_other_tokens_is_refused_although_they_are_as_many(trained, corpus, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(corpus.directory, other)
    tokens = json.loads((other / "tokenizer.json").read_text())
    ids = tokens["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    for words in (
        ("export", trained, "--data", other, "--out", tmp_path / "model"),
        ("train", "guided", "--preset", "tiny", "--data", other, "--out", tmp_path / "run", "--from", trained),
    ):
        assert "was trained with other tokens than the corpus has" in str(invoke(*words).exception)


def test_a_model_is_not_exported_with_settings_that_it_cannot_use(trained, corpus, tmp_path):
    def message(*options):
        found = invoke("export", trained, "--data", corpus.directory, "--out", tmp_path / "model", *options)
        return str(found.exception)

    assert "use 64 or fewer" in message("--calls", 1000)
    assert "does not divide length 64" in message("--block-size", 7)
    assert "--in-turn new needs a causal head" in message("--in-turn", "new")
    assert "--autoguidance needs a weak prior" in message("--autoguidance", 2)
    assert "a model needs its demasker" in message("--without", "demasker")
    assert not (tmp_path / "model").exists()


def test_options_of_a_dry_run_are_refused_without_it(corpus, tmp_path):
    words = ("train", "base", "--preset", "tiny", "--data", corpus.directory, "--out", tmp_path)
    for option in (("--gpus", 4), ("--rate", 3)):
        assert "use torchrun" in str(invoke(*words, *option).exception)


# ---------------------------------------------------------------- progress


def test_rates_are_written_for_people():
    assert rate(73_412.5, "tokens") == "73,400 tokens/s"
    assert rate(5.2149, "steps") == "5.21 steps/s"
    assert rate(99.96, "steps") == "100 steps/s"
    assert rate(1e9, "tokens") == "1,000,000,000 tokens/s"
    assert rate(0.00412, "programs") == "0.0041 programs/s"
    assert rate(0, "texts") == "0 texts/s"
