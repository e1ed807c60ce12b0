"""A stage that is killed, given twice, given with other settings, or out of disk space loses and mixes nothing."""

import json
import os
import resource
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from crocodil.checkpoints.format import load_model
from crocodil.cli.train import export
from crocodil.corpus.shards import Corpus
from crocodil.pipeline import Crocodil
from crocodil.presets.runs import changed, tiny
from crocodil.runtime.atomic import locked, whole_directory
from crocodil.runtime.distributed import Ranks
from crocodil.training import checkpointing
from crocodil.training.cached_registers import _open_bank
from crocodil.training.loop import start, train
from crocodil.training.record import write_sealed
from crocodil.training.run import Place, base_stage, run_stage


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
        assert run_stage(stage, quick(corpus), Place(corpus, out, out))
    return out


def leftovers(directory):
    return sorted(directory.rglob(".unfinished-*"))


# ---------------------------------------------------------------- killed

# One process that imports, and forks the ones that are killed.
KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import test_interrupted as here
import crocodil.runtime.distributed as distributed
import crocodil.training.run as running
from crocodil.corpus.shards import Corpus

corpus, done, out = Corpus(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])

def dies_at(module, name, count):
    before, calls = getattr(module, name), []
    def dying(*args, **options):
        calls.append(name)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*args, **options)
    setattr(module, name, dying)

for stage, module, name, count in (
    ("guided", running, "save_model", 2),  # the encoder is written, the demasker is not
    ("base", distributed, "finish_directory", 2),  # the second checkpoint
    ("registers", distributed, "finish_directory", 2),  # those of train are there, those of valid are not
):
    if not os.fork():
        dies_at(module, name, count)
        running.run_stage(stage, here.quick(corpus), running.Place(corpus, out, done))
        os._exit(0)
    assert os.wait()[1] == signal.SIGKILL
"""


@pytest.fixture(scope="module")
def killed(corpus, done, tmp_path_factory):
    """A run in which three stages were killed while they wrote."""
    out = tmp_path_factory.mktemp("killed")
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", KILLED, here, str(corpus.directory), str(done), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr[-3000:]
    return out


@pytest.mark.parametrize("stage", ["base", "guided"])
def test_a_stage_killed_while_it_writes_goes_on_and_leaves_the_same_networks(corpus, done, killed, stage):
    assert leftovers(killed / stage)
    assert not (killed / stage / "model").exists()
    assert run_stage(stage, quick(corpus), Place(corpus, killed, done), resume=True)
    networks = {path.name: path for path in (done / stage / "model").iterdir()}
    assert {path.name for path in (killed / stage / "model").iterdir()} == set(networks)
    for name, path in networks.items():
        one, other = (load_file(root / "model.safetensors") for root in (path, killed / stage / "model" / name))
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert not leftovers(killed / stage)


def test_registers_that_were_killed_go_on_with_what_is_missing(corpus, done, killed):
    assert leftovers(killed / "registers")
    first = (killed / "registers" / "train-64" / "registers.npy").stat().st_mtime_ns
    assert run_stage("registers", quick(corpus), Place(corpus, killed, done))
    assert not leftovers(killed / "registers")
    assert (killed / "registers" / "train-64" / "registers.npy").stat().st_mtime_ns == first
    assert (killed / "registers" / "valid-64" / "registers.npy").exists()


# ---------------------------------------------------------------- given twice


def test_a_second_process_on_a_stage_is_told_so_and_other_stages_go_on(corpus, tmp_path):
    place = Place(corpus, tmp_path, tmp_path)
    with (
        locked(tmp_path / "base"),
        pytest.raises(ValueError, match="base is in use by another process"),
    ):
        run_stage("base", quick(corpus), place)
    assert [path.name for path in (tmp_path / "base").iterdir()] == [".lock"]
    with locked(tmp_path / "guided"):
        assert run_stage("base", quick(corpus), place)


def test_the_example_is_given_once_at_a_time(tmp_path):
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


def test_a_folder_that_two_make_at_once_is_that_of_the_first(tmp_path):
    target = tmp_path / "model"

    def make_late():
        with whole_directory(target) as late, whole_directory(target) as first:
            (late / "file").write_text("late")
            (first / "file").write_text("first")

    with pytest.raises(ValueError, match="model exists: another process made it meanwhile, choose another"):
        make_late()
    assert (target / "file").read_text() == "first"
    assert not leftovers(tmp_path)


# ---------------------------------------------------------------- other settings


@pytest.fixture(scope="module")
def begun(corpus, tmp_path_factory):
    """A base after its first step."""
    out = tmp_path_factory.mktemp("begun")
    assert not run_stage("base", quick(corpus), Place(corpus, out, out), max_minutes=1e-9)
    return out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "base_loop.learning_rate=0.5",
            "begun with base_loop.learning_rate=0.004, not 0.5: go on with the old value",
        ),
        (
            "base_loop.batch_size=8",
            "begun with base_loop.batch_size=16, not 8: .* or start anew with another --out",
        ),
        ("base_loop.num_steps=3", "begun with base_loop.num_steps=2, not 3"),
        ("base_loop.seed=1", "begun with base_loop.seed=0, not 1"),
        ("base_loop.optimiser=muon", 'begun with base_loop.optimiser="adamw", not "muon"'),
        ("lengths=[32]", r"begun with lengths=\[64\], not \[32\]"),
    ],
)
def test_a_stage_goes_on_with_what_it_began_with(corpus, begun, change, message):
    other = changed(quick(corpus), [change])
    with pytest.raises(ValueError, match=message):
        run_stage("base", other, Place(corpus, begun, begun), resume=True)


def test_what_changes_no_step_may_change(corpus, begun, tmp_path):
    shutil.copytree(begun, tmp_path / "run")
    loop = ("evaluate_every=1", "save_every=7", "keep_checkpoints=1", "num_accumulated=2", "recompute_blocks=true")
    fields = [f"base_loop.{change}" for change in loop]
    others = ["guided_loop.learning_rate=0.5", "guided_objective.all_mask_rate=0.0", "encoder_warmup_steps=1"]
    run = changed(quick(corpus), [*fields, *others])
    assert run_stage("base", run, Place(corpus, tmp_path / "run", tmp_path / "run"), resume=True)


def test_without_decay_a_stage_may_be_made_longer(corpus, tmp_path):
    run, place = changed(quick(corpus), ["base_loop.decay_share=0.0"]), Place(corpus, tmp_path, tmp_path)
    assert not run_stage("base", run, place, max_minutes=1e-9)
    assert not run_stage("base", changed(run, ["base_loop.num_steps=9"]), place, resume=True, max_minutes=1e-9)
    with pytest.raises(ValueError, match="base is at step 2 already: num_steps 1 is less"):
        run_stage("base", changed(run, ["base_loop.num_steps=1"]), place, resume=True)


def another(corpus, directory):
    """The same programs; one checksum differs."""
    description = json.loads((corpus.directory / "corpus.json").read_text())
    description["sha256"][next(iter(description["sha256"]))] = "0" * 64
    directory.mkdir()
    for path in corpus.directory.iterdir():
        if path.name != "corpus.json":
            (directory / path.name).symlink_to(path)
    (directory / "corpus.json").write_text(json.dumps(description))
    return Corpus(directory)


def test_a_stage_goes_on_with_the_corpus_and_the_networks_it_began_with(corpus, done, begun, tmp_path):
    with pytest.raises(ValueError, match="was begun with another corpus: give it that one, or start anew"):
        run_stage("base", quick(corpus), Place(another(corpus, tmp_path / "corpus"), begun, begun), resume=True)
    shutil.copytree(done / "base", tmp_path / "base")
    shutil.copy(done / "run.json", tmp_path / "run.json")
    place = Place(corpus, tmp_path / "run", tmp_path)
    assert not run_stage("guided", quick(corpus), place, max_minutes=1e-9)
    for file in (tmp_path / "base" / "model" / "demasker").iterdir():
        file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(ValueError, match="begun with another base/model/demasker"):
        run_stage("guided", quick(corpus), place, resume=True)


def test_a_record_that_is_altered_or_lost_is_one_line(corpus, begun, tmp_path):
    shutil.copytree(begun, tmp_path / "run")
    place, file = Place(corpus, tmp_path / "run", tmp_path / "run"), tmp_path / "run" / "base" / "stage.json"
    for text in (file.read_text().replace("0.004", "0.5"), "[]", "{}", "\0"):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"stage\.json"):
            run_stage("base", changed(quick(corpus), ["base_loop.learning_rate=0.5"]), place, resume=True)
    file.unlink()
    with pytest.raises(ValueError, match=r"stage\.json is missing, so nobody knows"):
        run_stage("base", quick(corpus), place, resume=True)


def test_registers_of_other_settings_are_refused(corpus, done, tmp_path):
    place = Place(corpus, tmp_path / "run", tmp_path)
    for name in ("guided", "run.json"):
        (tmp_path / name).symlink_to(done / name)
    assert run_stage("registers", quick(corpus), place)
    fewer = changed(quick(corpus), ["prior.num_registers=2", "conditional.num_registers=2"])
    with pytest.raises(ValueError, match=r"registers was begun with prior.num_registers=4, not 2"):
        run_stage("registers", fewer, place)
    with pytest.raises(ValueError, match=r"train-64 holds registers of shape \(\d+, 4, 32\), this run needs"):
        run_stage("prior", fewer, Place(corpus, tmp_path / "run", tmp_path / "run"))
    with pytest.raises(ValueError, match="registers was made with another corpus: run stage registers"):
        run_stage(
            "prior",
            quick(corpus),
            Place(another(corpus, tmp_path / "corpus"), tmp_path / "run", tmp_path / "run"),
        )
    (tmp_path / "run" / "registers" / "valid-64" / "registers.npy").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"registers\.npy is damaged"):
        run_stage("prior", quick(corpus), Place(corpus, tmp_path / "run", tmp_path / "run"))


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


def seal(**values):
    return lambda directory: write_sealed(directory / "state.json", values)


def add_weights(directory):
    (directory / "more.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    "damage",
    [
        alter_step, alter_step_everywhere, rename, add_weights, write(b"[]"), write(b"null"), write(b"\xff\x00"),
        write(b"{}"), write(b"[" * 100_000), seal(step=-8, sha256={}), seal(step=8.0, sha256={}),
        seal(step=8, sha256=[]), seal(step=8), seal(step=8, sha256={"../state.json": "0"}),
        seal(step=8, sha256={}),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_not_as_it_was_written_is_not_used(corpus, tmp_path, damage):
    state = start(*base_stage(quick(corpus), Place(corpus, tmp_path, tmp_path)))
    for step in (4, 8):
        state.step = step
        checkpointing.save(state, tmp_path, keep=2)
    damage(tmp_path / "step-00000008")
    with pytest.warns(UserWarning, match="is not used: .*; falling back to the one before"):
        assert checkpointing.restore(state, tmp_path)
    assert state.step == 4
    assert [path.name for path in checkpointing.checkpoints_in(tmp_path)] == ["step-00000004"]
    write(b"[]")(tmp_path / "step-00000004")
    with (
        pytest.warns(UserWarning, match="not used"),
        pytest.raises(ValueError, match=r"no checkpoint in .* is whole: start anew"),
    ):
        checkpointing.restore(state, tmp_path)


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_is_saved(corpus, tmp_path):
    stage, loop = base_stage(quick(corpus), Place(corpus, tmp_path, tmp_path))
    loss = stage.loss
    weight = next(stage.demasker.parameters())

    def steep(step, places):
        """A finite loss, whose gradient is not."""
        return loss(step, places) + 0 * torch.sqrt(weight.abs().sum() * 0)

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


def test_a_disk_that_fills_before_the_end_loses_nothing(corpus, done, tmp_path):
    for name in ("base", "run.json"):
        shutil.copytree(done / name, tmp_path / name) if name == "base" else shutil.copy(done / name, tmp_path)
    shutil.rmtree(tmp_path / "base" / "model")
    place = Place(corpus, tmp_path, tmp_path)
    metrics = (tmp_path / "base" / "metrics.jsonl").read_text()
    for size in (100, 100_000):  # too small for the metrics; for the model
        with files_of_at_most(size), pytest.raises(OSError, match="too large"):
            run_stage("base", quick(corpus), place, resume=True)
        assert not leftovers(tmp_path)
        assert not (tmp_path / "base" / "model").exists()
    assert run_stage("base", quick(corpus), place, resume=True)
    assert len((tmp_path / "base" / "metrics.jsonl").read_text().splitlines()) == len(metrics.splitlines())
    assert load_model(tmp_path / "base" / "model" / "demasker")


def test_registers_need_their_space_before_the_work(corpus, done, tmp_path):
    place = Place(corpus, tmp_path, done)
    with files_of_at_most(10_000), pytest.raises(OSError, match="too large"):
        run_stage("registers", quick(corpus), place)
    assert not leftovers(tmp_path)
    assert run_stage("registers", quick(corpus), place)


def test_the_space_of_registers_is_taken_when_their_file_is_made(tmp_path):
    _open_bank(tmp_path / "bank.npy", (1000, 4, 32), Ranks())
    status = (tmp_path / "bank.npy").stat()
    assert status.st_blocks * 512 >= status.st_size
