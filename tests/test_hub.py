"""A name on the hub is taken wherever a folder is; models go there and come back."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.repocard import ModelCard
from tiny_causal import save_causal
from tiny_hub import Repository, running_hub
from typer.testing import CliRunner

from crocodil import Crocodil, load_llada
from crocodil.checkpoints import hub
from crocodil.checkpoints.bases import base_config, load_base
from crocodil.checkpoints.causal import load_causal, read_causal_config
from crocodil.checkpoints.checksums import verify
from crocodil.checkpoints.hub import JSON_FILES, HubName, hub_name, local_folder, recorded_name, tokenizer_file
from crocodil.cli import app
from crocodil.pipeline.card import Card
from crocodil.training.record import STAGE_FILE, checksum_of, write_or_check_record
from crocodil.training.run_config import Pretrained

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, which cannot be reached."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    hub._fetched.cache_clear()
    yield tmp_path / "cache"
    hub._fetched.cache_clear()


@pytest.fixture
def online(cache, monkeypatch):
    """A hub that can be reached, with the same cache."""
    with running_hub() as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


def cached(cache, name, folder):
    """Copy a folder into the cache, as a download of the main branch leaves it."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.copytree(folder, repository / "snapshots" / COMMIT)
    return repository / "snapshots" / COMMIT


# ---------------------------------------------------------------- names and folders


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GSAI-ML/LLaDA-8B-Base", HubName("GSAI-ML/LLaDA-8B-Base")),
        ("Qwen/Qwen2.5-Coder-0.5B@main", HubName("Qwen/Qwen2.5-Coder-0.5B", "main")),
        ("a/b@refs/pr/1", HubName("a/b", "refs/pr/1")),
        ("hf://a/b@v1.0", HubName("a/b", "v1.0")),
        *(
            (path, None)
            for path in ("model", "a/b/c", "../x", "./a", "~/a", "/a", "a/..", "a--b/c", "a/b@", "é/a")
        ),
        (Path("a/b"), None),
    ],
)
def test_an_owner_and_a_name_are_a_name_on_the_hub_and_all_else_is_a_path(text, name):
    assert hub_name(text) == name
    if name is None:
        assert local_folder(text) == Path(text)
    else:
        assert hub_name(str(name)) == name


def test_a_wrong_name_after_hf_is_one_line():
    with pytest.raises(ValueError, match=r"^hf://a/b/c is not a name on the hub: write hf://owner/name"):
        local_folder("hf://a/b/c")


def test_a_folder_that_exists_is_taken_before_the_hub(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a/b").mkdir(parents=True)
    assert local_folder("a/b") == Path("a/b")
    with pytest.raises(ValueError, match="a/b is not a folder here and cannot be fetched"):
        local_folder("hf://a/b")


# ---------------------------------------------------------------- offline


def test_offline_a_model_is_read_from_the_cache(cache, fixtures):
    folder = cached(cache, "us/model", fixtures / "model-v1")
    for name in ("us/model", "us/model@main", f"hf://us/model@{COMMIT}"):
        assert local_folder(name) == folder
    models = [Crocodil.from_pretrained(place, device="cpu") for place in ("us/model", fixtures / "model-v1")]
    assert torch.equal(*(model.encode(["x = 1"]).bank for model in models))
    assert f"{folder}: all" in run("verify", "us/model").output
    assert tokenizer_file("us/model") == folder / "tokenizer.json"


def test_offline_a_public_checkpoint_is_read_from_the_cache(cache, fixtures):
    cached(cache, "GSAI-ML/LLaDA-tiny", fixtures / "llada-tiny")
    by_name, by_path = (
        load(place).state_dict()
        for load, place in ((load_base, "GSAI-ML/LLaDA-tiny"), (load_llada, fixtures / "llada-tiny"))
    )
    assert all(torch.equal(by_name[name], by_path[name]) for name in by_path)
    assert base_config("GSAI-ML/LLaDA-tiny").num_layers == base_config(fixtures / "llada-tiny").num_layers


def test_offline_and_not_cached_is_one_line_before_torch_is_needed(cache):
    line = (
        "GSAI-ML/LLaDA-8B-Base is not a folder here and cannot be fetched from the hub (offline): "
        "download it elsewhere and give its folder"
    )
    with pytest.raises(ValueError, match=r"\(offline\)") as refused:
        local_folder("GSAI-ML/LLaDA-8B-Base")
    assert str(refused.value) == line
    for asked in (
        ["generate", "--model", "GSAI-ML/LLaDA-8B-Base"],
        ["verify", "GSAI-ML/LLaDA-8B-Base"],
        ["train", "base", "--preset", "paper", "--dry-run", "--llada", "GSAI-ML/LLaDA-8B-Base"],
        ["train", "base", "--preset", "tiny", "--dry-run", "--causal", "GSAI-ML/LLaDA-8B-Base"],
    ):
        assert str(run(*asked).exception) == line


def test_pickles_are_refused(cache, fixtures):
    folder = cached(cache, "us/pickles", fixtures / "llada-tiny")
    for file in folder.glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(ValueError, match="us/pickles has no safetensors: pickles can run code"):
        load_llada("us/pickles")
    assert local_folder("us/pickles", patterns=JSON_FILES) == folder


def test_another_kind_of_model_is_refused_by_its_json_alone(cache, fixtures):
    folder = cached(cache, "us/llada", fixtures / "llada-tiny")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(
        ValueError, match=r"no model 'us/llada': .* or a folder with crocodil\.json, here or on the"
    ):
        Crocodil.from_pretrained("us/llada")


def test_a_run_records_the_name_and_the_commit_of_what_it_began_from(cache, fixtures, tmp_path):
    folder = cached(cache, "GSAI-ML/LLaDA-8B-Base", fixtures / "llada-tiny")
    assert recorded_name(folder) == f"GSAI-ML/LLaDA-8B-Base@{COMMIT}"
    assert local_folder(recorded_name(folder)) == folder
    assert recorded_name(tmp_path) == str(tmp_path)
    write_or_check_record(tmp_path, Pretrained(llada=folder), {}, started=False)
    assert json.loads((tmp_path / STAGE_FILE).read_text())["settings"]["llada"] == recorded_name(folder)
    weights = checksum_of(folder)
    (folder / "README.md").write_text("fetched by another tool")
    assert checksum_of(folder) == weights


def test_a_causal_model_of_the_hub_has_the_shape_of_its_folder(cache, tmp_path):
    save_causal(tmp_path / "llama")
    folder = cached(cache, "us/llama", tmp_path / "llama")
    assert read_causal_config("us/llama") == read_causal_config(folder) == load_causal("us/llama").config


# ---------------------------------------------------------------- a hub that answers


def test_only_data_is_fetched_and_once_fetched_it_is_there_offline(online, fixtures, monkeypatch):
    files = {file.name: file.read_bytes() for file in (fixtures / "llada-tiny").iterdir()}
    code = dict.fromkeys(("modeling_llada.py", "pytorch_model.bin", "model.gguf", "model.pt"), b"code")
    online.repositories["us/llada"] = Repository(**files, **code)
    local_folder("us/llada", patterns=JSON_FILES)
    assert {Path(file).suffix for file in online.downloads} == {".json"}
    folder = local_folder("us/llada")
    assert {file.name for file in folder.iterdir()} == set(online.downloads) == set(files)
    hub._fetched.cache_clear()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")  # nobody listens
    assert local_folder("us/llada") == folder
    with pytest.raises(ValueError, match="us/other is not a folder here and cannot be fetched from the hub"):
        local_folder("us/other")


def test_a_name_or_revision_that_the_hub_does_not_have_is_one_line(online):
    online.repositories["us/model"] = Repository()
    with pytest.raises(ValueError, match="us/nothing is neither a folder here nor a model on the hub"):
        local_folder("us/nothing")
    with pytest.raises(ValueError, match="us/model has no revision v9 on the hub"):
        local_folder("us/model@v9")


def test_a_pushed_model_comes_back_intact_with_its_card(online, fixtures):
    model = Crocodil.from_pretrained(fixtures / "model-v1", device="cpu")
    card = Card(license="mit", languages=("code",), base_models=("us/parent",), training="For a minute.")
    online.repositories["us/model"] = Repository(**{"old/model.safetensors": b"", "notes.md": b"mine"})
    address = model.push_to_hub("us/model", token="hf_x", card=card)
    pushed = online.repositories["us/model"]
    assert address == f"{online.url}/us/model/commit/{pushed.sha}"
    assert "notes.md" in pushed.files
    assert "old/model.safetensors" not in pushed.files
    again = Crocodil.from_pretrained("us/model", device="cpu")
    assert torch.equal(again.encode(["x = 1"]).bank, model.encode(["x = 1"]).bank)
    assert verify(local_folder("us/model")) > 6
    written = ModelCard(pushed.files["README.md"].decode())
    header = {"license": "mit", "language": ["code"], "library_name": "crocodil", "base_model": ["us/parent"]}
    assert header.items() <= written.data.to_dict().items()
    for line in (
        'Crocodil.from_pretrained("us/model")',
        "For a minute.",
        "| demasker | LLaDA, 2 layers x 16 | 15,216 |",
    ):
        assert line in written.text


def test_push_uploads_a_folder_as_it_is_and_nothing_else_in_it(online, fixtures, tmp_path):
    folder = shutil.copytree(fixtures / "model-v1", tmp_path / "model")
    (folder / "README.md").write_text("edited")
    (folder / "secret.env").write_text("x")
    assert run("push", folder, "us/own", "--private").output.startswith(online.url)
    pushed = online.repositories["us/own"]
    assert pushed.private
    assert pushed.files["README.md"] == b"edited"
    assert "secret.env" not in pushed.files
    pushed.private = False
    assert "us/own exists and is public" in str(run("push", folder, "us/own", "--private").exception)
    assert "names a revision" in str(run("push", folder, "us/own@v1").exception)
    (folder / "tokenizer.json").write_text("{}")
    assert "is damaged" in str(run("push", folder, "us/own").exception)


def test_offline_push_is_one_line(cache, fixtures):
    with pytest.raises(ValueError, match=r"^us/model cannot be uploaded \(.*offline.*\)$"):
        hub.upload(fixtures / "model-v1", "us/model", token="hf_x")
