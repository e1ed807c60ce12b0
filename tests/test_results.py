"""The results that are committed: from this model, and nothing said of them that rows and runs do not say."""

import json
import re
from pathlib import Path

import pytest
import torch

from crocodil.pipeline import Crocodil, Method
from crocodil.reproduce.context import parts, with_base
from crocodil.reproduce.document import as_markdown
from crocodil.reproduce.experiments import read_all
from crocodil.reproduce.experiments.training_compute import base_compute_share
from crocodil.reproduce.figures import can_draw
from crocodil.reproduce.report import TITLE, report, summary, timed
from crocodil.reproduce.sweep import candidate_of, own_candidate
from crocodil.training.run_config import read_run_file

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
README, CARD = ROOT / "README.md", ROOT / "src" / "crocodil" / "builtin" / "README.md"
LOG = ROOT / "docs" / "research-log.md"
NAMES = {"conwithindisc": "ConWithinDisc", "conthendisc": "ConThenDisc"}


@pytest.fixture(scope="module")
def rows():
    return timed(read_all(RESULTS))


@pytest.fixture(scope="module")
def found(rows):
    return json.loads(json.dumps(summary(rows), allow_nan=False))


@pytest.fixture(scope="module")
def pipe(rows):
    dtype = getattr(torch, rows["model"][0]["dtype"])
    return with_base(Crocodil.from_pretrained(device="cpu", dtype=dtype), RESULTS / "base")


def prose(file):
    return " ".join(file.read_text().split())


def times(factor):
    return f"{factor:.1f} x" if factor >= 1 else f"{factor:.2f} x"


def test_the_summary_is_what_the_rows_say(found):
    assert found == json.loads((RESULTS / "summary.json").read_text())


@pytest.mark.skipif(not can_draw(), reason="needs matplotlib")
def test_the_report_is_what_the_rows_say(rows):
    pictures = {file.stem: f"figures/{file.name}" for file in (RESULTS / "figures").glob("*.svg")}
    assert as_markdown(TITLE, report(rows), pictures) == (RESULTS / "report.md").read_text()


def test_the_rows_are_of_the_built_in_model_and_of_the_base_beside_them(rows, pipe):
    for row in rows["model"]:
        assert parts(pipe) == row["model"]


def test_the_bases_share_of_compute_follows_from_the_records_of_the_runs(rows, found, pipe):
    training = {"run": read_run_file(RESULTS / "training"), "base": read_run_file(RESULTS / "base")}
    share, with_priors = (base_compute_share(pipe, training, with_priors=priors) for priors in (False, True))
    assert share == pytest.approx(0.90, abs=0.005)
    assert with_priors == pytest.approx(0.74, abs=0.005)
    for row in rows["model"]:
        assert row["base_compute_share"] == pytest.approx(share)
        assert row["base_compute_share_with_priors"] == pytest.approx(with_priors)
    for file in (README, CARD):
        assert f"{share:.2f} times the compute of demasker and encoder, {with_priors:.2f} times where" in prose(
            file
        )
        assert "less compute, which flatters the speed-ups" in prose(file)
    assert f"**{share:.2f}** times the compute of demasker and encoder, and {with_priors:.2f} times" in prose(LOG)
    assert "less compute, which flatters the speed-ups" in (RESULTS / "report.md").read_text()


@pytest.mark.parametrize("file", [README, CARD], ids=["README", "model card"])
def test_the_headline_is_held_against_the_bases_own_best_in_three_units(file, found, rows):
    text = file.read_text().replace("**", "")
    assert (found["own_best_calls"]["256"], found["own_best_calls"]["512"]) == (128, 256)
    for length, methods in found["speedup"].items():
        for method, name in NAMES.items():
            factors = " | ".join(times(methods[method][unit]) for unit in ("flops", "seconds", "nfe"))
            calls = found["at_calls"][length][method]
            before = f"{length} tokens, base at {found['own_best_calls'][length]} calls: "
            where = before if method == Method.CON_WITHIN_DISC else ""
            assert f"| {where}{name}, {calls} calls | {factors} |" in text


def test_the_papers_factors_stand_beside_its_unit_and_its_target_alone(found):
    text = README.read_text().replace("**", "")
    for length, published in {"256": "6 x", "512": "13 x"}.items():
        own = found["speedup_at_one_call_a_token"][length]["conwithindisc"]
        factors = [times(own[unit]) for unit in ("flops", "seconds", "nfe")]
        line = f"| {length} tokens: ConWithinDisc, 16 calls | {' | '.join(factors)} (paper: {published}) |"
        assert line in text
    assert len(re.findall(r"paper: \d+ x", text)) == 2
    assert not re.findall(r"paper: \d+ x", CARD.read_text())


def test_exact_copies_are_told_beside_the_error(rows):
    exact = {
        (row["length"], row["calls"]): f"{row['exact_share']:.0%}"
        for row in rows["autoencoder"]
        if row["block"] == row["length"]
    }
    assert f"{exact[256, 16]} and {exact[256, 64]} of the copies exact" in prose(README)
    assert f"{exact[512, 16]} and {exact[512, 64]} exact" in prose(README)
    shorter, longer = (f"{exact[length, 16]}, {exact[length, 64]}" for length in (256, 512))
    assert f"| exact copies among them | {shorter}; {longer} at 512 tokens |" in CARD.read_text()


def test_rows_name_the_settings_that_their_method_generated_with(rows, pipe):
    for row in rows["cpu-seconds"]:
        assert candidate_of(row) == own_candidate(pipe, Method(row["method"]))
    (copied,) = rows["memorisation"]
    for method, chosen in copied["chosen"].items():
        assert chosen == own_candidate(pipe, Method(method))


def test_what_the_built_in_model_cannot_do_is_said(pipe):
    kept, trained = (
        pipe.settings.drawing.num_registers,
        {0, *read_run_file(RESULTS / "base")["guided_objective"]["prefix_lengths"]},
    )
    assert kept not in trained
    for file in (README, CARD):
        assert f"generates with {kept} registers, a prefix length that it was never trained on" in prose(file)
        assert "cannot be rebuilt exactly" in prose(file)
    assert pipe.demasker.config.across_text
    assert "in the built-in model register i has a place of its own across the text" in prose(README)
