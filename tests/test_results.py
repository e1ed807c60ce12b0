"""The results that are committed: from this model, and nothing in them that the rows do not say."""

import json
from pathlib import Path

import torch

from crocodil.pipeline import Crocodil
from crocodil.reproduce.experiments import read_all
from crocodil.reproduce.lab import parts, with_base
from crocodil.reproduce.report import summary, timed

RESULTS = Path(__file__).parent.parent / "results"


def test_the_summary_is_what_the_rows_say():
    found = json.loads(json.dumps(summary(timed(read_all(RESULTS))), allow_nan=False))
    assert found == json.loads((RESULTS / "summary.json").read_text())


def test_the_rows_are_of_the_built_in_model_and_of_the_base_beside_them():
    for row in read_all(RESULTS)["model"]:
        pipe = with_base(Crocodil.from_pretrained(dtype=getattr(torch, row["dtype"])), RESULTS / "base")
        assert parts(pipe) == row["model"]
        assert row["base_compute_share"] >= 1
