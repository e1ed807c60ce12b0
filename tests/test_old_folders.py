"""Model folders and corpora of format version 1 still load and give the same tokens.

tests/fixtures/model-v1 has all five networks, untrained and of width 16, and settings with old option names.
model-v1-expected.json holds what the code that wrote the folder generated from it.
"""

import json

import numpy as np
import pytest
import tiny
import torch
from safetensors import safe_open

from crocodil.checkpoints.checksums import verify
from crocodil.checkpoints.format import load_model, name_in_version_1, save_model
from crocodil.corpus.order import Order
from crocodil.corpus.shards import Corpus
from crocodil.pipeline import Crocodil, Given
from crocodil.training import checkpointing
from crocodil.training.checkpointing import TrainState

TEXT = "def f(x):\n    return x\n"


@pytest.fixture(scope="module")
def expected(fixtures):
    return json.loads((fixtures / "model-v1-expected.json").read_text())


@pytest.fixture(scope="module")
def pipe(fixtures):
    return Crocodil.from_pretrained(fixtures / "model-v1", device="cpu")


@pytest.mark.parametrize("method", ["base", "conthendisc", "conwithindisc"])
def test_an_old_model_generates_the_same_tokens(pipe, expected, method):
    result, then = pipe.generate(2, method=method, calls=8, seed=3), expected["generated"][method]
    assert result.tokens.tolist() == then["tokens"]
    assert list(result.texts) == then["texts"]
    assert [cost.denoiser_calls for cost in result.costs] == then["denoiser_calls"]


def test_an_old_model_infills_encodes_and_decodes_as_before(pipe, expected):
    infilled = pipe.generate(1, method="conwithindisc", calls=8, seed=3, given=Given(prefix="def f(x):\n"))
    assert infilled.tokens.tolist() == expected["infilled"]["tokens"]
    assert pipe.autoencode([TEXT], calls=8, seed=3).tokens.tolist() == expected["autoencoded"]
    assert pipe.encode([TEXT]).bank[0, -1].tolist() == pytest.approx(expected["registers"], abs=1e-4)


@pytest.mark.parametrize("name", ["prior", "conditional"])
def test_an_old_denoiser_is_written_again_with_the_new_names(fixtures, tmp_path, name):
    denoiser = load_model(fixtures / "model-v1" / name)
    save_model(denoiser, tmp_path / name)
    with safe_open(tmp_path / name / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(denoiser.state_dict())
    again = load_model(tmp_path / name).state_dict()
    assert all(torch.equal(again[key], weight) for key, weight in denoiser.state_dict().items())


def test_old_names_are_refused_in_a_new_folder(fixtures, tmp_path):
    folder = tmp_path / "prior"
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((fixtures / "model-v1" / "prior" / file).read_bytes())
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(ValueError, match=r"prior lacks final_table, pos_embed, proj_in\.bias and 3 more"):
        load_model(folder)


def test_a_training_checkpoint_with_old_names_is_resumed(tmp_path, monkeypatch):
    def state(fill):
        denoiser = tiny.denoiser(tiny.CONDITIONAL)
        parameters = {f"denoiser.{name}": weight for name, weight in denoiser.named_parameters()}
        averages = {name: torch.full_like(weight, fill) for name, weight in parameters.items()}
        return TrainState(parameters, torch.optim.AdamW(parameters.values()), averages, step=7)

    def old_name(name):
        prefix, denoiser, weight = name.rpartition("denoiser.")
        return prefix + denoiser + name_in_version_1("RegisterDenoiser", weight)

    written, resumed = state(1.0), state(2.0)
    sum(weight.square().sum() for weight in written.parameters.values()).backward()
    written.optimiser.step()
    tensors = checkpointing._tensors
    with monkeypatch.context() as patch:
        patch.setattr(checkpointing, "_tensors", lambda s: {old_name(n): t for n, t in tensors(s).items()})
        checkpointing.save(written, tmp_path, keep=1)
    assert checkpointing.restore(resumed, tmp_path)
    expected = tensors(written)
    assert tensors(resumed).keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(resumed).items())


def test_an_old_corpus_gives_the_same_programs(fixtures, expected):
    corpus = Corpus(fixtures / "corpus-v1")
    corpus.verify()
    programs = corpus.programs("train", length=48)
    assert len(programs) == expected["corpus"]["num_programs"]
    batch = programs.batch(Order(len(programs), key="seed 0").at(np.arange(4, 6)))
    assert batch.tolist() == expected["corpus"]["batch"]


def test_the_checksums_of_an_old_model_hold(fixtures):
    assert verify(fixtures / "model-v1") == 17
