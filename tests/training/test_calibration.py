"""Matrices that are rounded for the inputs they see when the model is used (decision D82)."""

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from crocodil import cli
from crocodil.pipeline import Crocodil
from crocodil.pipeline.calibration import _input_moments, calibrate

TEXTS = ["def f(x):\n    return x\n", "class A:\n    pass\n", "import os\n\nprint(os.name)\n"]


@pytest.fixture(scope="module")
def model(trained, corpus, tmp_path_factory):
    """The tiny model of the run, without its base."""
    out = tmp_path_factory.mktemp("calibrated") / "whole"
    assert export(trained, corpus, out).exit_code == 0
    return Crocodil.from_pretrained(out, device="cpu")


def export(run, corpus, out, *options):
    words = ["export", run, "--data", corpus.directory, "--out", out, "--without", "base"]
    return CliRunner().invoke(cli.app, [str(word) for word in (*words, "--prior-steps", 4, *options)])


def test_moments_are_sums_over_all_inputs_of_the_layers_of_blocks():
    network = torch.nn.Sequential()
    network.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(32, 8))])
    network.head = torch.nn.Linear(32, 8)
    inputs = torch.randn(3, 5, 32)
    with _input_moments(network) as moments:
        network.blocks[0](inputs)
        network.blocks[0](inputs[:1])
        network.head(inputs)
    network.blocks[0](inputs)  # no longer counted
    rows = torch.cat([inputs.flatten(0, 1), inputs[0]])
    assert set(moments) == {"blocks.0.0.weight"}
    assert torch.allclose(moments["blocks.0.0.weight"], rows.T @ rows, rtol=1e-4, atol=1e-4)


def test_calibration_sees_every_network_that_generation_uses(model):
    moments = calibrate(model, TEXTS)
    assert set(moments) == {"demasker", "encoder", "prior", "conditional"}
    for of_network in moments.values():
        assert of_network
        assert all(one.diagonal().sum() > 0 for one in of_network.values())
    with pytest.raises(ValueError, match="at least one text"):
        calibrate(model, [])


def test_a_calibrated_model_is_closer_to_the_exact_one_at_the_same_size(model, trained, corpus, tmp_path):
    options = ("--bits", 3)
    assert export(trained, corpus, tmp_path / "nearest", *options).exit_code == 0
    assert export(trained, corpus, tmp_path / "calibrated", *options, "--calibrate", 24).exit_code == 0
    stored = [load_file(tmp_path / name / "encoder/model.safetensors") for name in ("nearest", "calibrated")]
    assert {name: value.shape for name, value in stored[0].items()} == {
        name: value.shape for name, value in stored[1].items()
    }
    nearest, calibrated = (
        Crocodil.from_pretrained(tmp_path / name, device="cpu") for name in ("nearest", "calibrated")
    )
    exact = model.encode(TEXTS).bank
    errors = [(one.encode(TEXTS).bank - exact).square().mean() for one in (nearest, calibrated)]
    assert errors[1] < 0.8 * errors[0]
    assert "Few bits were rounded for 24 programs" in (tmp_path / "calibrated/README.md").read_text()
    assert calibrated.settings == model.settings


def test_calibration_is_for_few_bits(trained, corpus, tmp_path):
    refused = export(trained, corpus, tmp_path / "model", "--calibrate", 4, "--bits", 8)
    assert "--calibrate is for 6 or fewer bits" in str(refused.exception)
