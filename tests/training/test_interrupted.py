"""A stage that is killed, started twice, resumed with other settings or out of disk space loses no work."""

import json
import os
import resource
import runpy
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import forked
import pytest
import torch
from safetensors.torch import load_file

from crocodil.checkpoints.format import load_model
from crocodil.cli.exporting import export
from crocodil.corpus.shards import Corpus
from crocodil.pipeline import Crocodil
from crocodil.presets.changes import with_changes
from crocodil.presets.runs import tiny
from crocodil.runtime.atomic import locked, whole_directory
from crocodil.runtime.distributed import Ranks
from crocodil.training import checkpointing
from crocodil.training.data import _open_bank
from crocodil.training.journal import read_rows
from crocodil.training.loop import initial_state, train
from crocodil.training.record import read_checksummed, write_checksummed
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import base_stage
from crocodil.training.workspace import Workspace

pytestmark = pytest.mark.usefixtures("short_validation")


def quick(corpus):
    """Two steps of every stage."""
    run = tiny(corpus)
    loop = replace(run.base_loop, num_steps=2, save_every=1, evaluate_every=100)
    return replace(
        run, base_loop=loop, guided_loop=loop, prior_loop=loop, conditional_loop=loop, encoder_warmup_steps=0
    )


@pytest.fixture(scope="module")
def done(corpus, tmp_path_factory):
    """A run with base and guided finished."""
    out = tmp_path_factory.mktemp("done")
    for stage in ("base", "guided"):
        assert run_stage(stage, quick(corpus), Workspace(corpus, out, out))
    return out


def workspace_of(stage, corpus, out, done):
    """The base starts anew; other stages take the earlier ones from a finished run."""
    return Workspace(corpus, out, out if stage == "base" else done)


def leftovers(directory):
    return sorted(directory.rglob(".unfinished-*"))


# ---------------------------------------------------------------- killed


def die_in_second_call(module, name, stage, directory, done, out):
    """Run a stage in a process that kills itself when a function is called for the second time."""
    module = import_module(module)
    before, calls = getattr(module, name), []

    def dying(*args, **options):
        calls.append(name)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*args, **options)

    setattr(module, name, dying)
    corpus = Corpus(directory)
    run_stage(stage, quick(corpus), workspace_of(stage, corpus, out, done))


@pytest.fixture(scope="module")
def killed(corpus, done, tmp_path_factory):
    """A run in which three stages were killed while they wrote."""
    out = tmp_path_factory.mktemp("killed")
    for stage, module, name in (
        ("guided", "training.run", "save_model"),  # the encoder is written, the demasker is not
        ("base", "runtime.distributed", "finish_directory"),  # the second checkpoint
        ("registers", "runtime.distributed", "finish_directory"),  # train is there, valid is not
    ):
        work = (die_in_second_call, f"crocodil.{module}", name, stage, corpus.directory, done, out)
        found = forked.run(*work, out=out / f"printed-{stage}")
        assert found.returncode == -signal.SIGKILL, found.stderr[-3000:]
    return out


@pytest.mark.parametrize("stage", ["base", "guided"])
def test_a_stage_killed_while_writing_resumes_to_the_same_networks(corpus, done, killed, stage):
    assert leftovers(killed / stage)
    assert not (killed / stage / "model").exists()
    assert run_stage(stage, quick(corpus), workspace_of(stage, corpus, killed, done), resume=True)
    networks = {path.name: path for path in (done / stage / "model").iterdir()}
    assert {path.name for path in (killed / stage / "model").iterdir()} == set(networks)
    for name, path in networks.items():
        one, other = (load_file(root / "model.safetensors") for root in (path, killed / stage / "model" / name))
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert not leftovers(killed / stage)


def test_killed_registers_resume_with_the_missing_files(corpus, done, killed):
    assert leftovers(killed / "registers")
    first = (killed / "registers" / "train-64" / "registers.npy").stat().st_mtime_ns
    assert run_stage("registers", quick(corpus), Workspace(corpus, killed, done))
    assert not leftovers(killed / "registers")
    assert (killed / "registers" / "train-64" / "registers.npy").stat().st_mtime_ns == first
    assert (killed / "registers" / "valid-64" / "registers.npy").exists()


# ---------------------------------------------------------------- started twice


def test_a_second_process_on_a_stage_is_refused_and_other_stages_run(corpus, tmp_path):
    workspace = Workspace(corpus, tmp_path, tmp_path)
    with (
        locked(tmp_path / "base"),
        pytest.raises(ValueError, match="base is in use by another process"),
    ):
        run_stage("base", quick(corpus), workspace)
    assert [path.name for path in (tmp_path / "base").iterdir()] == [".lock"]
    with locked(tmp_path / "guided"):
        assert run_stage("base", quick(corpus), workspace)


def test_the_example_runs_once_at_a_time(tmp_path):
    file = Path(__file__).parents[2] / "examples" / "own_data.py"
    main = runpy.run_path(str(file))["main"]
    with (
        locked(tmp_path),
        pytest.raises(ValueError, match="is in use by another process"),
    ):
        main(tmp_path / "code", tmp_path, model="no model")


def test_two_exports_at_once_leave_one_complete_model(corpus, done, tmp_path):
    def make(_):
        try:
            export(done, corpus.directory, tmp_path / "model")
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as both:
        winner, loser = sorted(both.map(make, range(2)))
    assert winner == ""
    assert "model exists: " in loser
    assert Crocodil.from_pretrained(tmp_path / "model", device="cpu")
    assert not leftovers(tmp_path)


def test_a_folder_made_by_two_processes_at_once_is_the_first_one(tmp_path):
    target = tmp_path / "model"

    def make_late():
        with whole_directory(target) as late, whole_directory(target) as first:
            (late / "file").write_text("late")
            (first / "file").write_text("first")

    with pytest.raises(ValueError, match="model exists: another process has just made it, choose another"):
        make_late()
    assert (target / "file").read_text() == "first"
    assert not leftovers(tmp_path)


# ---------------------------------------------------------------- other settings


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
    """A run whose base is stopped after its first step."""
    out = tmp_path_factory.mktemp("stopped")
    assert not run_stage("base", quick(corpus), Workspace(corpus, out, out), max_minutes=1e-9)
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "base_loop.learning_rate=0.5",
            "started with base_loop.learning_rate=0.004, not 0.5: resume with the old value",
        ),
        (
            "base_loop.batch_size=8",
            "started with base_loop.batch_size=16, not 8: .* or start again with another --out",
        ),
        ("base_loop.num_steps=3", "started with base_loop.num_steps=2, not 3"),
        ("base_loop.seed=1", "started with base_loop.seed=0, not 1"),
        ("base_loop.optimiser=muon", 'started with base_loop.optimiser="adamw", not "muon"'),
        ("lengths=[32]", r"started with lengths=\[64\], not \[32\]"),
    ],
)
def test_a_stage_resumes_only_with_its_settings(corpus, stopped, change, message):
    other = with_changes(quick(corpus), [change])
    with pytest.raises(ValueError, match=message):
        run_stage("base", other, Workspace(corpus, stopped, stopped), resume=True)


def test_settings_that_change_no_step_may_change(corpus, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    loop = ("evaluate_every=1", "save_every=7", "keep_checkpoints=1", "num_accumulated=2", "recompute_blocks=true")
    fields = [f"base_loop.{change}" for change in loop]
    others = ["guided_loop.learning_rate=0.5", "guided_objective.all_mask_rate=0.0", "encoder_warmup_steps=1"]
    run = with_changes(quick(corpus), [*fields, *others])
    file = tmp_path / "run" / "base" / "stage.json"
    record = read_checksummed(file)
    record["settings"]["base_loop.record_steps"] = False  # an older version wrote it
    write_checksummed(file, record)
    assert run_stage("base", run, Workspace(corpus, tmp_path / "run", tmp_path / "run"), resume=True)


def test_a_stage_may_be_prolonged_or_brought_to_its_end_until_its_learning_rate_decays(corpus, tmp_path):
    workspace = Workspace(corpus, tmp_path, tmp_path)

    def resume(*changes, resume=True, max_minutes=1e-9):  # one step
        run = with_changes(quick(corpus), [f"base_loop.{change}" for change in changes])
        return run_stage("base", run, workspace, resume=resume, max_minutes=max_minutes)

    assert not resume("decay_share=0.0", resume=False)
    assert not resume("decay_share=0.0", "num_steps=9")
    with pytest.raises(ValueError, match="base is already at step 2: num_steps must not be less"):
        resume("decay_share=0.0", "num_steps=1")
    with pytest.raises(ValueError, match=r"started with base_loop\.num_steps=9, not 4"):  # it would have decayed
        resume("decay_share=1.0", "num_steps=4")
    assert not resume("decay_share=0.5", "num_steps=4")  # steps 3 and 4 decay
    with pytest.raises(ValueError, match=r"started with base_loop\.num_steps=4, not 9"):  # step 3 has decayed
        resume("decay_share=0.0", "num_steps=9")
    assert resume("decay_share=0.5", "num_steps=4", max_minutes=None)
    rates = [row["learning_rate"] for row in read_rows(tmp_path / "base") if "learning_rate" in row]
    whole = replace(quick(corpus).base_loop, num_steps=4, decay_share=0.5)
    assert rates == pytest.approx([whole.learning_rate_at(step) for step in range(4)])


def other_corpus(corpus, directory):
    """A corpus with the same programs, but another checksum."""
    description = json.loads((corpus.directory / "corpus.json").read_text())
    description["sha256"][next(iter(description["sha256"]))] = "0" * 64
    directory.mkdir()
    for path in corpus.directory.iterdir():
        if path.name != "corpus.json":
            (directory / path.name).symlink_to(path)
    (directory / "corpus.json").write_text(json.dumps(description))
    return Corpus(directory)


def test_a_stage_resumes_only_with_its_corpus_and_networks(corpus, done, stopped, tmp_path):
    other = Workspace(other_corpus(corpus, tmp_path / "corpus"), stopped, stopped)
    with pytest.raises(ValueError, match="was started with another corpus: use that one, or start again"):
        run_stage("base", quick(corpus), other, resume=True)
    shutil.copytree(done / "base", tmp_path / "base")
    shutil.copy(done / "run.json", tmp_path / "run.json")
    workspace = Workspace(corpus, tmp_path / "run", tmp_path)
    assert not run_stage("guided", quick(corpus), workspace, max_minutes=1e-9)
    for file in (tmp_path / "base" / "model" / "demasker").iterdir():
        file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(ValueError, match="started with another base/model/demasker"):
        run_stage("guided", quick(corpus), workspace, resume=True)


def test_an_edited_or_missing_stage_file_is_one_line(corpus, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    workspace = Workspace(corpus, tmp_path / "run", tmp_path / "run")
    file = tmp_path / "run" / "base" / "stage.json"
    for text in (file.read_text().replace("0.004", "0.5"), "[]", "{}", "\0"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"stage\.json"):
            run_stage("base", with_changes(quick(corpus), ["base_loop.learning_rate=0.5"]), workspace, resume=True)
    file.unlink()
    with pytest.raises(ValueError, match=r"stage\.json is missing, so the stage's settings are unknown"):
        run_stage("base", quick(corpus), workspace, resume=True)


def test_registers_of_other_settings_are_refused(corpus, done, tmp_path):
    workspace = Workspace(corpus, tmp_path / "run", tmp_path)
    for name in ("guided", "run.json"):
        (tmp_path / name).symlink_to(done / name)
    assert run_stage("registers", quick(corpus), workspace)
    fewer = with_changes(quick(corpus), ["prior.num_registers=2", "conditional.num_registers=2"])
    with pytest.raises(ValueError, match=r"registers was started with prior.num_registers=4, not 2"):
        run_stage("registers", fewer, workspace)
    with pytest.raises(ValueError, match=r"train-64 holds registers of shape \(\d+, 4, 32\), but this run needs"):
        run_stage("prior", fewer, Workspace(corpus, tmp_path / "run", tmp_path / "run"))
    with pytest.raises(ValueError, match="registers was made with another corpus: run stage registers"):
        run_stage(
            "prior",
            quick(corpus),
            Workspace(other_corpus(corpus, tmp_path / "corpus"), tmp_path / "run", tmp_path / "run"),
        )
    (tmp_path / "run" / "registers" / "valid-64" / "registers.npy").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"registers\.npy is damaged"):
        run_stage("prior", quick(corpus), Workspace(corpus, tmp_path / "run", tmp_path / "run"))


# ---------------------------------------------------------------- checkpoints


def alter_step(directory):
    values = json.loads((directory / "state.json").read_text())
    (directory / "state.json").write_text(json.dumps({**values, "step": 6}))


def alter_step_everywhere(directory):
    alter_step(directory)
    directory.rename(directory.with_name("step-00000006"))


def rename(directory):
    directory.rename(directory.with_name("step-00000009"))


def write(text):
    return lambda directory: (directory / "state.json").write_bytes(text)


def checksummed(**values):
    return lambda directory: write_checksummed(directory / "state.json", values)


def add_weights(directory):
    (directory / "more.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        alter_step, alter_step_everywhere, rename, add_weights, write(b"[]"), write(b"null"), write(b"\xff\x00"),
        write(b"{}"), write(b"[" * 100_000), checksummed(step=-8, sha256={}), checksummed(step=8.0, sha256={}),
        checksummed(step=8, sha256=[]), checksummed(step=8), checksummed(step=8, sha256={"../state.json": "0"}),
        checksummed(step=8, sha256={}),
    ],
)  # fmt: skip
def test_a_damaged_or_edited_checkpoint_is_not_used(corpus, tmp_path, damage):
    state = initial_state(*base_stage(quick(corpus), Workspace(corpus, tmp_path, tmp_path)))
    for step in (4, 8):
        state.step = step
        checkpointing.save(state, tmp_path, keep=2)
    damage(tmp_path / "step-00000008")
    with pytest.warns(UserWarning, match="is damaged: .*; using the checkpoint before it"):
        assert checkpointing.restore(state, tmp_path)
    assert state.step == 4
    assert [path.name for path in checkpointing.checkpoints_in(tmp_path)] == ["step-00000004"]
    write(b"[]")(tmp_path / "step-00000004")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(ValueError, match=r"all checkpoints in .* are damaged: start again"),
    ):
        checkpointing.restore(state, tmp_path)


def test_a_gradient_that_is_not_finite_stops_the_run_before_saving(corpus, tmp_path):
    stage, loop = base_stage(quick(corpus), Workspace(corpus, tmp_path, tmp_path))
    loss = stage.loss
    weight = next(stage.demasker.parameters())

    def steep(step, indices):
        """A finite loss with a gradient that is not finite."""
        return loss(step, indices) + 0 * torch.sqrt(weight.abs().sum() * 0)

    stage.loss = steep
    with pytest.raises(FloatingPointError, match=r"stage base: gradient norm nan at step 0: .* lower learning"):
        train(stage, loop, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()


# ---------------------------------------------------------------- a full disk


@contextmanager
def files_of_at_most(size):
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))


def test_a_full_disk_at_the_end_loses_nothing(corpus, done, tmp_path):
    for name in ("base", "run.json"):
        shutil.copytree(done / name, tmp_path / name) if name == "base" else shutil.copy(done / name, tmp_path)
    shutil.rmtree(tmp_path / "base" / "model")
    workspace = Workspace(corpus, tmp_path, tmp_path)
    metrics = (tmp_path / "base" / "metrics.jsonl").read_text()
    for size in (100, 100_000):  # too small for the metrics; for the model
        with files_of_at_most(size), pytest.raises(OSError, match="too large"):
            run_stage("base", quick(corpus), workspace, resume=True)
        assert not leftovers(tmp_path)
        assert not (tmp_path / "base" / "model").exists()
    assert run_stage("base", quick(corpus), workspace, resume=True)
    assert len((tmp_path / "base" / "metrics.jsonl").read_text().splitlines()) == len(metrics.splitlines())
    assert load_model(tmp_path / "base" / "model" / "demasker")


def test_registers_reserve_their_space_before_encoding(corpus, done, tmp_path):
    workspace = Workspace(corpus, tmp_path, done)
    with files_of_at_most(10_000), pytest.raises(OSError, match="too large"):
        run_stage("registers", quick(corpus), workspace)
    assert not leftovers(tmp_path)
    assert run_stage("registers", quick(corpus), workspace)


def test_the_space_of_registers_is_allocated_with_their_file(tmp_path):
    _open_bank(tmp_path / "bank.npy", (1000, 4, 32), Ranks())
    status = (tmp_path / "bank.npy").stat()
    assert status.st_blocks * 512 >= status.st_size
