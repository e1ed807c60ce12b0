"""Two processes give the losses, weights and registers of one process, and one can load a checkpoint of two."""

import json
import shutil
from dataclasses import replace

import forked
import numpy as np
import pytest
import torch
from tiny_run import SHORT_VALIDATION
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from crocodil.checkpoints.format import load_model
from crocodil.corpus.pairs import write_pairs
from crocodil.corpus.shards import Corpus
from crocodil.objectives import DistilObjective, PromptedObjective
from crocodil.presets.causal_starts import begin_as_causal
from crocodil.presets.runs import tiny
from crocodil.runtime.distributed import Ranks, process_group
from crocodil.training import checkpointing, validation
from crocodil.training.loop import LoopConfig, initial_state
from crocodil.training.run import run_stage
from crocodil.training.run_config import CausalStart
from crocodil.training.stage_setup import base_stage, guided_stage
from crocodil.training.workspace import Workspace

STAGES = ("base", "guided", "registers", "prior", "conditional", "distilled", "prompted", "head")


def short(corpus):
    """A few steps of every stage; the demasker is unfrozen half way through stage guided.

    The base begins as a causal model.
    """
    folder = corpus.directory.parent / "causal of ranks"
    start = CausalStart(directory=folder, layers=(0, 2))
    run = begin_as_causal(tiny(corpus), start)
    loop = replace(run.base_loop, num_steps=4, save_every=2, evaluate_every=100)
    return replace(
        run, base_loop=loop, guided_loop=loop, prior_loop=loop, conditional_loop=loop, encoder_warmup_steps=2,
        distilled_loop=replace(loop, num_steps=2), distil_objective=DistilObjective(draw_steps=1, teacher_calls=1),
        prior=replace(run.prior, standardised=True),
        head_loop=replace(loop, num_steps=2),
        prompted_loop=replace(loop, num_steps=2), prompted_objective=PromptedObjective(own_encoder=True),
        pairs=corpus.directory.parent / "pairs of ranks",
    )  # fmt: skip


def matching(corpus):
    """Stage distilled by matching. Each rank weighs encoded registers by its own texts: here they hardly count."""
    run = short(corpus)
    objective = {"by_matching": True, "teachers": ("conditional",), "critic_steps": 1, "real_weight": 1e-6}
    prior = replace(run.prior, standardised=False)
    return replace(run, prior=prior, distil_objective=DistilObjective(**objective))


def train_all(corpus, out, ranks):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT_VALIDATION.items():
            patch.setattr(validation, name, value)
        for stage in STAGES:
            assert run_stage(stage, short(corpus), Workspace(corpus, out, out, ranks))
        assert run_stage("distilled", matching(corpus), Workspace(corpus, out / "matched", out, ranks))


@pytest.fixture(scope="session")
def causal_folder(corpus):
    """A causal checkpoint in the vocabulary of the corpus, where `short` reads it."""
    from tiny_causal import save_causal

    folder = corpus.directory.parent / "causal of ranks"
    save_causal(folder)
    write_pairs(corpus.directory, corpus.directory.parent / "pairs of ranks", count=8)
    shutil.copy(corpus.directory / "tokenizer.json", folder)


@pytest.fixture(scope="session")
def by_one(corpus, causal_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("one")
    train_all(corpus, out, Ranks())
    return out


def launch(directory, out):
    """Train with two ranks as `torchrun --standalone` starts them, but forked."""
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="ranks", rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=0, start_method="fork",
    )  # fmt: skip
    elastic_launch(config, train_as_rank)(directory, out)


def train_as_rank(directory, out):
    torch.set_num_threads(1)
    corpus = Corpus(directory)
    with process_group("cpu") as ranks:
        train_all(corpus, out, ranks)
        unfreeze_after_resuming(corpus, out, ranks)
        with pytest.raises(ValueError, match="this stage is finished"):  # the main rank checks, all ranks raise
            run_stage("base", short(corpus), Workspace(corpus, out, out, ranks))


def unfreeze_after_resuming(corpus, out, ranks):
    """In bfloat16, stop stage guided while the demasker is frozen, and go on until it is trained."""
    run, here = short(corpus), Workspace(corpus, out / "in bfloat16", out, ranks)
    run = replace(run, guided_loop=replace(run.guided_loop, bf16=True))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT_VALIDATION.items():
            patch.setattr(validation, name, value)
        assert not run_stage("guided", run, here, max_minutes=1e-9)
        assert run_stage("guided", run, here, resume=True)


@pytest.fixture(scope="session")
def by_two(corpus, causal_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("two")
    done = forked.run(launch, corpus.directory, out, out=out / "printed")
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def losses(directory):
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize(
    "stage", ["base", "guided", "prior", "conditional", "distilled", "matched/distilled", "head"]
)
def test_the_loss_curve_does_not_depend_on_the_number_of_ranks(by_one, by_two, stage):
    assert losses(by_two / stage) == pytest.approx(losses(by_one / stage), rel=1e-4)


def test_two_ranks_finish_with_the_same_models_as_one(by_one, by_two):
    for stage, module in (
        ("base", "demasker"),
        ("guided", "encoder"),
        ("guided", "demasker"),
        ("conditional", "denoiser"),
        ("head", "causal_head"),
    ):
        one, two = (load_model(out / stage / "model" / module) for out in (by_one, by_two))
        assert type(one) is type(two)
        for name, weight in one.state_dict().items():
            assert torch.allclose(weight, two.state_dict()[name], atol=1e-4), name


def test_two_ranks_cache_the_same_registers_as_one(by_one, by_two):
    one, two = (np.load(out / "registers" / "train-64" / "registers.npy") for out in (by_one, by_two))
    assert one.shape == two.shape
    assert np.allclose(one, two, atol=2e-2)


def test_a_demasker_is_unfrozen_after_a_resume_in_bfloat16(by_two):
    """FSDP2 would read no dtype for gradients of weights that are frozen in the first step."""
    begun, trained = (
        load_model(folder / "guided" / "model" / "demasker") for folder in (by_two, by_two / "in bfloat16")
    )
    base = load_model(by_two / "base" / "model" / "demasker").state_dict()
    for model in (begun, trained):
        assert any((weight != base[name]).any() for name, weight in model.backbone.state_dict().items())


@pytest.mark.parametrize("build", [base_stage, guided_stage])
def test_a_checkpoint_of_two_ranks_loads_in_one_process(corpus, by_one, by_two, build):
    workspace = Workspace(corpus, by_two, by_two)
    states = []
    for out in (by_one, by_two):
        stage, loop = build(short(corpus), workspace)
        state = initial_state(stage, loop)
        assert checkpointing.restore(state, out / stage.name / "checkpoints")
        states.append(state)
    one, two = states
    assert two.step == one.step == 4
    for name, parameter in one.parameters.items():
        assert torch.allclose(parameter, two.parameters[name], atol=1e-4), name
        assert torch.allclose(one.averages[name], two.averages[name], atol=1e-4), name
        moments, other = (state.optimiser.state[state.parameters[name]] for state in states)
        assert set(moments) == set(other)
        assert all(torch.allclose(moment, other[key], atol=1e-4) for key, moment in moments.items()), name


def test_ranks_share_a_batch_without_gap_or_overlap():
    indices = range(8, 24)
    shares = [list(Ranks(rank, 4).share(indices)) for rank in range(4)]
    assert [index for share in shares for index in share] == list(indices)
    assert {len(share) for share in shares} == {4}
    config = LoopConfig(num_steps=1, batch_size=6, learning_rate=1.0, num_accumulated=2)
    assert list(config.micro_batches(Ranks())) == [range(3), range(3, 6)]
    with pytest.raises(ValueError, match="2 ranks do not divide a micro-batch of 3"):
        list(config.micro_batches(Ranks(0, 2)))


def test_short_texts_take_fewer_micro_batches_than_the_longest():
    config = LoopConfig(num_steps=1, batch_size=24, learning_rate=1.0, num_accumulated=6)
    sizes = {share: [len(part) for part in config.micro_batches(Ranks(1, 2), share)] for share in (0.2, 0.6, 1.0)}
    assert sizes == {0.2: [6, 6], 0.6: [3, 3, 3, 3], 1.0: [2] * 6}
