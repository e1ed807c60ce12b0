"""A base that begins as a causal language model: shapes, rates, choice of layers."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_causal import save_causal
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.causal import load_causal
from crocodil.checkpoints.format import load_model, save_model
from crocodil.models.demasker import Demasker
from crocodil.models.llada import LLaDA
from crocodil.presets.causal_starts import begin_as_causal, continue_from_causal, fitting_muon_rate
from crocodil.presets.runs import small, tiny
from crocodil.training import pruning, validation
from crocodil.training.adapting import check_encoder_fits_base
from crocodil.training.pruning import causal_loss, choose_layers, greedy_layers, spaced_layers
from crocodil.training.record import write_or_check_record
from crocodil.training.run import run_stage
from crocodil.training.run_config import CausalStart, read_causal_start
from crocodil.training.stage_setup import base_stage
from crocodil.training.workspace import Workspace


@pytest.fixture(scope="module", autouse=True)
def short_validation():
    """Validate at one mask probability: validation takes most of the time of a short run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "MASK_PROBS", (0.5,))
        patch.setattr(pruning, "NUM_PROGRAMS", 8)
        yield


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """A causal checkpoint of four layers in the vocabulary of the corpus."""
    directory = tmp_path_factory.mktemp("causal")
    save_causal(directory, num_layers=4)
    shutil.copy(corpus.directory / "tokenizer.json", directory)
    return directory


STEPS = 2


def short(corpus, folder, *, preset=tiny, **fields):
    """A run of few steps that begins as a causal model."""
    run = begin_as_causal(preset(corpus), CausalStart(directory=folder, **fields))
    loop = replace(run.base_loop, num_steps=STEPS, batch_size=4, num_accumulated=1)
    return replace(run, base_loop=loop, lengths=(32,))


@pytest.fixture(scope="module")
def trained_base(corpus, folder, tmp_path_factory):
    """A run with a finished base that has used all options, and its config."""
    out = tmp_path_factory.mktemp("run")
    layers = choose_layers(folder, 2, "greedy", workspace(corpus, out), length=64)
    run = short(corpus, folder, layers=layers, shifted=True)
    assert run_stage("base", run, workspace(corpus, out))
    return out, run


def workspace(corpus, out):
    return Workspace(corpus, out, out)


def base_of(out):
    return load_model(out / "base" / "model" / "demasker")


def losses(out):
    rows = map(json.loads, (out / "base" / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


# ---------------------------------------------------------------- the run


def test_everything_that_depends_on_the_base_follows_its_shape(corpus, folder):
    run = short(corpus, folder, preset=small, layers=(0, 1, 3))
    shape = load_causal(folder, layers=(0, 1, 3)).config
    assert run.demasker.backbone == shape
    assert (run.demasker.register_width, run.encoder.register_width) == (64, 64)
    check_encoder_fits_base(run.encoder, shape)
    assert run.encoder.num_layers == 3  # small has four


def test_the_rate_of_muon_follows_the_size_of_the_weights(corpus, folder, tmp_path):
    rate = fitting_muon_rate(folder)
    run = short(corpus, folder, preset=small, muon_rate=rate)
    assert (run.base_loop.learning_rate, run.guided_loop.learning_rate) == (rate, rate / 2)
    shutil.copytree(folder, tmp_path / "half")
    for file in (tmp_path / "half").glob("*.safetensors"):
        save_file({name: tensor / 2 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    assert fitting_muon_rate(tmp_path / "half") == pytest.approx(rate / 2, rel=0.05)  # two digits


def test_the_base_begins_as_the_chosen_layers_of_the_causal_model(corpus, folder, tmp_path):
    stage, _ = base_stage(short(corpus, folder, layers=(0, 2)), workspace(corpus, tmp_path))
    begun = load_causal(folder, layers=(0, 2)).state_dict()
    assert all(torch.equal(begun[name], weight) for name, weight in stage.demasker.state_dict().items())


def test_later_stages_know_what_the_base_began_as(corpus, trained_base, tmp_path):
    out, run = trained_base
    assert read_causal_start(out) == run.causal
    assert base_of(out).config.parents == ("llama-4x32-320",)
    assert continue_from_causal(tiny(corpus), workspace(corpus, out)).demasker == run.demasker
    assert continue_from_causal(tiny(corpus), workspace(corpus, tmp_path)) == tiny(corpus)
    only_guided = tmp_path / "only guided"  # a run whose stage guided goes on from another run
    save_model(Demasker(run.demasker), only_guided / "guided" / "model" / "demasker")
    shutil.copy(out / "run.json", only_guided)
    assert continue_from_causal(tiny(corpus), workspace(corpus, only_guided)).demasker == run.demasker
    record = tmp_path / "record"  # of a run whose networks are elsewhere
    record.mkdir()
    shutil.copy(out / "run.json", record)
    assert continue_from_causal(tiny(corpus), workspace(corpus, record)).demasker == run.demasker


def test_weights_that_were_stored_in_bfloat16_are_trained_in_float32(corpus, trained_base, tmp_path):
    source, _ = trained_base
    half = base_of(source).to(torch.bfloat16)
    save_model(half, tmp_path / "half" / "base" / "model" / "demasker")
    shutil.copy(source / "run.json", tmp_path / "half")
    here = Workspace(corpus, tmp_path / "more", tmp_path / "half")
    stage, _ = base_stage(continue_from_causal(tiny(corpus), here), here)
    stored, more = half.state_dict(), stage.demasker.state_dict()
    assert all(more[name].dtype == torch.float32 for name in more)
    assert all(torch.equal(more[name], stored[name].float()) for name in more)


def test_a_base_goes_on_from_the_base_of_another_run_without_the_causal_model(corpus, trained_base, tmp_path):
    source, _ = trained_base
    here = Workspace(corpus, tmp_path, source)
    run = continue_from_causal(tiny(corpus), here)
    run = replace(
        run,
        base_loop=replace(run.base_loop, num_steps=1, batch_size=4, num_accumulated=1),
        lengths=(32,),
        causal=replace(run.causal, directory=tmp_path / "gone"),
        base_draft_rate=0.5,
    )
    stage, _ = base_stage(run, here)
    began, more = base_of(source).state_dict(), stage.demasker.state_dict()
    assert all(torch.equal(began[name], more[name]) for name in began)
    assert run_stage("base", run, here)
    assert any((base_of(tmp_path).state_dict()[name] != began[name]).any() for name in began)
    with pytest.raises(ValueError, match="another shape than the run"):
        run_stage("base", tiny(corpus), Workspace(corpus, tmp_path / "new", source))
    (tmp_path / "empty").mkdir()
    shutil.copy(source / "run.json", tmp_path / "empty")
    with pytest.raises(ValueError, match="train stage base first"):
        run_stage("base", run, Workspace(corpus, tmp_path / "other", tmp_path / "empty"))


def test_a_corpus_in_another_vocabulary_is_refused(corpus, tmp_path):
    for name, values, message in (
        ("ids", {}, "the mask token has id 0 in the corpus, 258 in the base: build the corpus with"),
        ("rows", {"num_rows": 300}, "a vocabulary of 320, the run one of 300"),
    ):
        save_causal(tmp_path / name, num_layers=1, **values)
        with pytest.raises(ValueError, match=message):
            run_stage("base", short(corpus, tmp_path / name), workspace(corpus, tmp_path / "run"))
        with pytest.raises(ValueError, match=message):
            choose_layers(tmp_path / name, 1, "greedy", workspace(corpus, tmp_path / "run"), length=32)
    assert not (tmp_path / "run").exists()


def test_a_shape_other_than_that_of_the_causal_model_is_refused(corpus, folder, tmp_path):
    run = short(corpus, folder)
    wrong = replace(run, causal=replace(run.causal, shifted=True))
    with pytest.raises(ValueError, match=r"is not the shape of .* not with --set"):
        run_stage("base", wrong, workspace(corpus, tmp_path))


def test_a_stage_of_an_older_version_resumes_if_newer_fields_are_off(tmp_path):
    write_or_check_record(tmp_path, {"base_loop.seed": 0}, {}, started=False)
    off = {"base_loop.seed": 0, "causal": None, "demasker.backbone.shifted": False}
    write_or_check_record(tmp_path, off, {}, started=True)
    with pytest.raises(ValueError, match=r'shifted="unset", not true'):
        write_or_check_record(tmp_path, off | {"demasker.backbone.shifted": True}, {}, started=True)
    (tmp_path / "older").mkdir()
    write_or_check_record(tmp_path / "older", {"seed": 0, "removed": False, "used": 2}, {}, started=False)
    with pytest.raises(ValueError, match=r'started with used=2, not "unset":'):
        write_or_check_record(tmp_path / "older", {"seed": 0}, {}, started=True)


# ---------------------------------------------------------------- the choice of layers


def test_greedy_removal_of_one_layer_is_the_best_of_all(corpus, folder):
    model = load_causal(folder)
    tokens = torch.from_numpy(corpus.programs("train", length=32).batch(range(4)))
    others = [tuple(kept for kept in range(4) if kept != removed) for removed in range(4)]
    best = min(others, key=lambda kept: causal_loss(load_causal(folder, layers=kept), tokens))
    assert greedy_layers(model, tokens, 3, shown=False) == best
    assert set(greedy_layers(model, tokens, 2, shown=False)) < set(best)
    assert len(model.blocks) == 4


def test_the_causal_loss_is_that_of_transformers_on_the_text(tmp_path):
    theirs = save_causal(tmp_path, num_layers=1)
    tokens = torch.tensor([[256, 5, 6, 7, 256, 256], [256, 9, 256, 256, 256, 256]])
    labels = torch.tensor([[256, 5, 6, 7, 256, -100], [256, 9, 256, -100, -100, -100]])
    assert causal_loss(load_causal(tmp_path), tokens) == pytest.approx(theirs(tokens, labels=labels).loss.item())


def test_spaced_layers_include_both_ends():
    assert spaced_layers(30, 30) == tuple(range(30))
    assert spaced_layers(30, 2) == (0, 29)
    assert all(1 <= b - a <= 3 for a, b in pairwise(spaced_layers(30, 12)))
    for wrong in (0, 31):
        with pytest.raises(ValueError, match=f"{wrong} layers cannot be kept: the causal model has 30"):
            spaced_layers(30, wrong)


# ---------------------------------------------------------------- the command


def crocodil(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_the_command_chooses_the_same_layers_and_a_resumed_run_gives_the_same_losses(
    corpus, folder, trained_base, tmp_path
):
    changes = (f"--set=base_loop.num_steps={STEPS}", "--set=base_loop.batch_size=4", "--set=lengths=[32]")
    common = ("--preset", "tiny", "--data", corpus.directory, "--out", tmp_path, "--device", "cpu", *changes)
    causal = ("--causal", folder, "--keep-layers", 2, "--shift")
    assert "stopped" in crocodil("train", "base", *common, *causal, "--max-minutes", 1e-9).output
    assert "finished" in crocodil("train", "base", *common, "--resume").output
    out, run = trained_base
    assert read_causal_start(tmp_path) == run.causal
    assert losses(tmp_path) == losses(out)
    pairs = zip(base_of(tmp_path).parameters(), base_of(out).parameters(), strict=True)
    assert all(torch.equal(resumed, whole) for resumed, whole in pairs)


def test_options_that_do_not_fit_together_are_refused(corpus, folder, tmp_path):
    common = ("--preset", "tiny", "--data", corpus.directory, "--out", tmp_path, "--device", "cpu")
    for stage, options, message in (
        ("base", ("--shift",), "need --causal"),
        ("base", ("--causal", folder, "--layers", "0,1", "--keep-layers", 1), "exclude each other"),
        ("base", ("--causal", folder, "--layers", "0,x"), "is not a list of layers"),
        ("base", ("--causal", folder, "--layers", "1,0"), "layers must rise"),
        ("guided", ("--causal", folder), "--causal is for stage base"),
        ("base", ("--causal", folder, "--from", folder), "--causal and --from exclude each other"),
    ):
        result = crocodil("train", stage, *common, *options)
        assert message in f"{result.output} {result.exception}"
    estimate = crocodil("train", "base", "--dry-run", "--causal", folder, "--keep-layers", 2)
    assert estimate.exit_code == 0, estimate.output


@pytest.mark.slow
def test_all_stages_from_a_causal_checkpoint_end_in_texts(corpus, folder, tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    common = ("--preset", "tiny", "--data", corpus.directory, "--out", run, "--device", "cpu")
    loops = [f"{name}_loop.num_steps=4" for name in ("base", "guided", "prior", "conditional")]
    changes = [part for change in (*loops, "encoder_warmup_steps=2") for part in ("--set", change)]
    for stage in ("base", "guided", "registers", "prior", "conditional"):
        start = ("--causal", folder, "--keep-layers", 3, "--shift")
        result = crocodil("train", stage, *common, *changes, *(start if stage == "base" else ()))
        assert "finished" in result.output, f"{result.output} {result.exception}"
    assert crocodil("export", run, "--data", corpus.directory, "--out", model).exit_code == 0
    result = crocodil("generate", "--model", model, "--method", "conthendisc", "--count", 2, "--device", "cpu")
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    assert isinstance(load_model(model / "base"), LLaDA)
