"""A base that begins as a causal language model: shapes, alignment, frozen embeddings, choice of layers."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from tiny_causal import save_causal
from typer.testing import CliRunner

from crocodil import cli
from crocodil.checkpoints.causal import load_causal
from crocodil.checkpoints.format import load_model
from crocodil.models.llada import LLaDA
from crocodil.objectives import alignment_loss, causal_states
from crocodil.presets.causal_starts import BASE_RATES, begin_as_causal, continue_from_causal
from crocodil.presets.runs import small, tiny
from crocodil.training.adapting import check_encoder_fits_base
from crocodil.training.loop import initial_state, take_step
from crocodil.training.pruning import causal_loss, choose_layers, greedy_layers, spaced_layers
from crocodil.training.run import run_stage
from crocodil.training.run_config import CausalStart, read_causal_start
from crocodil.training.stage_setup import Workspace, base_stage


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """A causal checkpoint of four layers in the vocabulary of the corpus."""
    directory = tmp_path_factory.mktemp("causal")
    save_causal(directory, num_layers=4)
    shutil.copy(corpus.directory / "tokenizer.json", directory)
    return directory


def short(corpus, folder, *, num_steps=3, preset=tiny, **fields):
    run = begin_as_causal(preset(corpus), CausalStart(directory=folder, **fields))
    loop = replace(run.base_loop, num_steps=num_steps, batch_size=4, save_every=2, evaluate_every=100)
    return replace(run, base_loop=loop, lengths=(32,))


def workspace(corpus, out):
    return Workspace(corpus, out, out)


def losses(out, name="loss"):
    lines = (out / "base" / "metrics.jsonl").read_text().splitlines()
    return [row[name] for row in map(json.loads, lines) if name in row]


# ---------------------------------------------------------------- the run


def test_everything_that_depends_on_the_base_follows_its_shape(corpus, folder):
    run = short(corpus, folder, preset=small, layers=(0, 1, 3))
    shape = load_causal(folder, layers=(0, 1, 3)).config
    assert run.demasker.backbone == shape
    assert (run.demasker.register_width, run.encoder.register_width) == (64, 64)
    check_encoder_fits_base(run.encoder, shape)
    assert run.encoder.num_layers == 3  # small has four
    assert run.base_loop.learning_rate == BASE_RATES["muon"] < small(corpus).base_loop.learning_rate


def test_the_base_begins_as_the_causal_model_and_later_stages_know_it(corpus, folder, tmp_path):
    run = short(corpus, folder, layers=(0, 2))
    stage, _ = base_stage(run, workspace(corpus, tmp_path))
    begun = load_causal(folder, layers=(0, 2)).state_dict()
    assert all(torch.equal(begun[name], weight) for name, weight in stage.demasker.state_dict().items())
    assert run_stage("base", run, workspace(corpus, tmp_path))
    assert read_causal_start(tmp_path) == run.causal
    assert load_model(tmp_path / "base" / "model" / "demasker").config.parents == ("llama-4x32-320",)
    assert continue_from_causal(tiny(corpus), workspace(corpus, tmp_path)).demasker == run.demasker
    assert continue_from_causal(tiny(corpus), workspace(corpus, tmp_path / "other")) == tiny(corpus)


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


def test_a_shape_that_is_not_the_causal_model_s_is_refused(corpus, folder, tmp_path):
    run = short(corpus, folder)
    wrong = replace(run, causal=replace(run.causal, shifted=True))
    with pytest.raises(ValueError, match=r"is not the shape of .* not with --set"):
        run_stage("base", wrong, workspace(corpus, tmp_path))


# ---------------------------------------------------------------- alignment


@pytest.mark.parametrize("by", ["token", "position"])
@pytest.mark.parametrize("shifted", [False, True])
def test_alignment_moves_states_towards_those_of_the_causal_model(corpus, folder, tmp_path, by, shifted):
    run = short(corpus, folder, layers=(0, 2), align_weight=10.0, align_by=by, shifted=shifted)
    stage, loop = base_stage(run, workspace(corpus, tmp_path))
    assert len(stage.alignment.model.blocks) == 3  # up to the last kept layer
    assert stage.work().flops > replace(stage, alignment=None).work().flops
    state = initial_state(stage, loop)
    assert not any("alignment" in name for name in state.parameters)
    plain = replace(stage, alignment=None).loss(0, range(4))
    parts = stage.loss(0, range(4))
    assert parts["demasking_loss"].item() == pytest.approx(plain.item())
    for _ in range(3):
        result = take_step(stage, state, loop)
        assert result.losses.item() == pytest.approx(sum(part.item() for part in result.parts.values()))
    assert stage.loss(0, range(4))["alignment_loss"] < parts["alignment_loss"]


def test_states_of_the_same_model_on_the_same_text_are_aligned(folder):
    model = load_causal(folder)
    tokens = torch.arange(4, 36).view(2, 16)
    states = causal_states(model, tokens, (0, 1, 3))
    _, own = model(tokens, causal=True, with_states=True)
    where = torch.ones_like(tokens, dtype=torch.bool)
    assert alignment_loss([own[0], own[1], own[3]], states, where).item() == pytest.approx(0, abs=1e-6)
    opposite = [-state for state in states]
    assert alignment_loss(opposite, states, where & (tokens > 20)).item() == pytest.approx(2 / 2 * 1, abs=1)
    assert alignment_loss(opposite, states, ~where) == 0


@pytest.mark.parametrize("fields", [{"align_weight": 10.0, "freeze_embeddings": True}], ids=["all options"])
def test_a_resumed_run_gives_the_same_losses_and_weights(corpus, folder, tmp_path, fields):
    run = short(corpus, folder, num_steps=4, layers=(0, 3), **fields)
    assert run_stage("base", run, workspace(corpus, tmp_path / "whole"))
    stopped = workspace(corpus, tmp_path / "stopped")
    assert not run_stage("base", run, stopped, max_minutes=1e-9)
    assert run_stage("base", run, stopped, resume=True)
    for name in ("loss", "demasking_loss", "alignment_loss"):
        assert losses(tmp_path / "whole", name) == losses(tmp_path / "stopped", name)
    whole, resumed = (load_model(tmp_path / name / "base/model/demasker") for name in ("whole", "stopped"))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


# ---------------------------------------------------------------- frozen embeddings


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_of_frozen_embeddings_only_the_mask_row_is_trained(corpus, tmp_path, tied):
    save_causal(tmp_path / "causal", num_layers=1, tie_word_embeddings=tied)
    shutil.copy(corpus.directory / "tokenizer.json", tmp_path / "causal")
    run = short(corpus, tmp_path / "causal", freeze_embeddings=True)
    stage, loop = base_stage(run, workspace(corpus, tmp_path))
    names = set(initial_state(stage, loop).parameters)
    assert "demasker.embed.mask_row" in names
    assert not names & {"demasker.embed.table", "demasker.head.weight"}
    assert run_stage("base", run, workspace(corpus, tmp_path))
    before, after = load_causal(tmp_path / "causal"), load_model(tmp_path / "base" / "model" / "demasker")
    changed = (before.embed.weight != after.embed.weight).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [run.demasker.backbone.mask_id]
    if not tied:
        assert torch.equal(before.head.weight, after.head.weight)
    assert not torch.equal(before.blocks[0].up.weight, after.blocks[0].up.weight)


# ---------------------------------------------------------------- the choice of layers


def test_greedy_removal_of_one_layer_is_the_best_of_all(corpus, folder, tmp_path):
    model = load_causal(folder)
    tokens = torch.from_numpy(corpus.programs("train", length=32).batch(range(8)))
    others = [tuple(kept for kept in range(4) if kept != removed) for removed in range(4)]
    best = min(others, key=lambda kept: causal_loss(load_causal(folder, layers=kept), tokens))
    assert greedy_layers(model, tokens, 3, shown=False) == best
    assert set(greedy_layers(model, tokens, 2, shown=False)) < set(best)
    assert len(model.blocks) == 4
    chosen = choose_layers(folder, 2, "greedy", workspace(corpus, tmp_path), length=32)
    assert chosen == choose_layers(folder, 2, "greedy", workspace(corpus, tmp_path), length=32)


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


def test_the_command_records_the_chosen_layers_and_resumes_with_them(corpus, folder, tmp_path):
    common = ("train", "base", "--preset", "tiny", "--data", corpus.directory, "--out", tmp_path / "run",
              "--device", "cpu", "--set", "base_loop.num_steps=2", "--set", "lengths=[32]")  # fmt: skip
    options = ("--causal", folder, "--keep-layers", 2, "--align", 10)
    stopped = crocodil(*common, *options, "--max-minutes", 1e-9)
    assert stopped.exit_code == 0, stopped.output
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["causal"]
    assert (len(recorded["layers"]), recorded["align_weight"]) == (2, 10.0)
    assert "finished" in crocodil(*common, "--resume").output
    for wrong, message in (
        (("--align", 1), "need --causal"),
        (("--causal", folder, "--layers", "0,1", "--keep-layers", 1), "exclude each other"),
        (("--causal", folder, "--layers", "0,x"), "is not a list of layers"),
        (("--causal", folder, "--layers", "1,0"), "layers must rise"),
    ):
        result = crocodil(*common, *wrong)
        assert message in f"{result.output} {result.exception}"
    later = crocodil("train", "guided", *common[2:], "--causal", folder)
    assert "--causal is for stage base" in f"{later.output} {later.exception}"
    estimate = crocodil("train", "base", "--dry-run", "--causal", folder, "--keep-layers", 2)
    assert estimate.exit_code == 0, estimate.output


@pytest.mark.slow
def test_all_stages_from_a_causal_checkpoint_end_in_texts(corpus, folder, tmp_path):
    run, model = tmp_path / "run", tmp_path / "model"
    common = ("--preset", "tiny", "--data", corpus.directory, "--out", run, "--device", "cpu")
    loops = [f"{name}_loop.num_steps=4" for name in ("base", "guided", "prior", "conditional")]
    changes = [part for change in (*loops, "encoder_warmup_steps=2") for part in ("--set", change)]
    for stage in ("base", "guided", "registers", "prior", "conditional"):
        start = ("--causal", folder, "--keep-layers", 3, "--shift", "--align", 10, "--freeze-embeddings")
        result = crocodil("train", stage, *common, *changes, *(start if stage == "base" else ()))
        assert "finished" in result.output, f"{result.output} {result.exception}"
    assert crocodil("export", run, "--data", corpus.directory, "--out", model).exit_code == 0
    result = crocodil("generate", "--model", model, "--method", "conthendisc", "--count", 2, "--device", "cpu")
    assert result.exit_code == 0, f"{result.output} {result.exception}"
    assert isinstance(load_model(model / "base"), LLaDA)
