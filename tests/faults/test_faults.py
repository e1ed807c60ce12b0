"""A short campaign, and tests that the campaign detects faults."""

import os
import runpy
import sys
import time
from pathlib import Path

import forked
import pytest

from faults.arguments import right_calls, verbs
from faults.calling import Fault, Outcome, check
from faults.pool import run_trials
from faults.processes import JOBS, same, tree
from faults.world import World

ROOT = Path(__file__).parents[2]


def campaign(*arguments):
    """Do what `python -m tests.faults` does."""
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    sys.argv = ["tests.faults", *arguments]
    runpy.run_module("tests.faults", run_name="__main__")


def test_a_short_campaign_finds_no_fault(tmp_path):
    done = forked.run(campaign, "--seed", "0", "--inputs", "40", "--kills", "2", out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    *_, total = done.stdout.splitlines()
    assert int(total.split()[1]) >= 40


def test_every_verb_has_a_call_that_is_mutated(tmp_path):
    assert set(verbs()) <= set(right_calls(World(tmp_path), tmp_path))
    assert len(verbs()["generate"]) > 10


@pytest.mark.parametrize(
    ("outcome", "category"),
    [
        (Outcome(("x",), 1, "", "Traceback (most recent call last):\nKeyError: 1\n"), "traceback"),
        (Outcome(("x",), -1, "", "", "Traceback ...\nKeyError: 1"), "traceback"),
        (Outcome(("x",), -1, "", "", "Hang", hung=True), "hang"),
        (Outcome(("x",), 1, "", ""), "no clear line"),
        (Outcome(("x",), 1, "", "Aborted.\n"), "no clear line"),
        (Outcome(("x",), 1, "", "strange\ncrocodil: no model\n"), "no clear line"),
        (Outcome(("x",), 139, "", "crocodil: no model\n"), "no clear line"),
    ],
)
def test_an_unclear_answer_is_a_fault(outcome, category):
    with pytest.raises(Fault) as caught:
        check(outcome)
    assert caught.value.category == category


def test_a_correct_result_and_one_clear_line_are_not_faults():
    check(Outcome(("x",), 0, "text", "1 text in 1 s\n"))
    check(Outcome(("x",), 1, "", "reading: 3/4 units, 2 a second, 1 s left\ncrocodil: no model\n"))


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_trial_that_fails_dies_or_writes_elsewhere_is_found_and_the_others_continue(tmp_path):
    world = World(tmp_path / "world")
    world.root.mkdir()
    world.texts.write_text("{}")

    def wrong(world, random, sandbox):
        raise Fault("silent wrong result", "on purpose")

    trials = {
        "well": lambda world, random, sandbox: (sandbox / "x").touch(),
        "wrong": wrong,
        "dies": lambda world, random, sandbox: os._exit(3),
        "raises": lambda world, random, sandbox: 1 / 0,
        "loses": lambda world, random, sandbox: world.texts.write_text("changed"),
    }
    wanted = [(name, 0) for name in trials]
    findings = run_trials(trials, wanted, world, 0, workers=1, until=time.monotonic() + 60)
    found = {finding.kind: finding.category for finding in findings}
    assert found == {
        "well": "", "wrong": "silent wrong result", "dies": "died", "raises": "traceback", "loses": "lost file",
    }  # fmt: skip


def test_files_that_differ_in_more_than_times_are_a_fault(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0, "step_s": 0.1}\n')
    (tmp_path / "model").write_bytes(b"weights")
    before = tree(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0, "step_s": 0.2}\n')
    same(JOBS[0], before, tmp_path, "nothing")
    (tmp_path / "model").write_bytes(b"Weights")
    with pytest.raises(Fault, match="model differ"):
        same(JOBS[0], before, tmp_path, "a byte")
    (tmp_path / "model").unlink()
    with pytest.raises(Fault, match="model missing"):
        same(JOBS[0], before, tmp_path, "a file")
