"""Models on the Hugging Face hub: the one module that downloads from it and uploads to it.

Wherever a folder is taken, a name is too: `owner/name` or `owner/name@revision`. Only data is fetched:
safetensors, JSON, chat templates and vocabularies, never pickles or code. What was fetched once is read from the
cache when the hub cannot be reached. This module does not import torch.
"""

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt")
JSON_FILES = ("*.json",)  # configs and tokenizers: enough to check settings and to estimate a run
_UPLOADED = ("*.safetensors", "*.json")  # with the card, all files of our models
TOKENIZER_FILE = "tokenizer.json"
CARD_FILE = "README.md"
UPLOAD = "Upload a model"  # the default message of a commit

_PREFIX = "hf://"
# The hub allows neither "--" nor ".." in a name.
_NAME = re.compile(r"(?!.*(?:--|\.\.))(\w[\w.-]*/\w[\w.-]*?)(?:@(\w[\w./-]*))?", re.ASCII)
_SNAPSHOT = re.compile(r"models--(\w[\w.-]*?)--(\w[\w.-]*)/snapshots/(\w+)", re.ASCII)


class HubName(NamedTuple):
    repository: str  # owner/name
    revision: str | None = None  # a branch, a tag or a commit; None: the main branch

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def hub_name(path_or_name: str | os.PathLike[str]) -> HubName | None:
    """Return the name on the hub, or None for a folder.

    An existing path is a folder, even if it looks like a name. Path objects, and text that does not look like a
    name, are folders too. `hf://owner/name` is always a name.
    """
    if not isinstance(path_or_name, str):
        return None
    match = _NAME.fullmatch(path_or_name.removeprefix(_PREFIX))
    if path_or_name.startswith(_PREFIX):
        if match is None:
            raise ValueError(f"{path_or_name} is not a name on the hub: write hf://owner/name[@revision]")
    elif match is None or Path(path_or_name).exists():
        return None
    return HubName(*match.groups())


def local_folder(path_or_name: str | os.PathLike[str], *, patterns: Sequence[str] = MODEL_FILES) -> Path:
    """Return the folder of a model: a path as it is, a name on the hub after its files were fetched.

    A model without safetensors is refused, unless `patterns` leave them out.
    """
    name = hub_name(path_or_name)
    return Path(path_or_name) if name is None else _fetched(name, tuple(patterns))


def tokenizer_file(path_or_name: str | os.PathLike[str]) -> Path:
    """Return a tokenizer.json: a file as it is, or that of a model on the hub."""
    if hub_name(path_or_name) is None:
        return Path(path_or_name)
    return local_folder(path_or_name, patterns=(TOKENIZER_FILE,)) / TOKENIZER_FILE


def recorded_name(folder: Path) -> str:
    """Return how a run records a folder: `owner/name@commit` if it is from the hub, else its path."""
    match = _SNAPSHOT.fullmatch("/".join(folder.parts[-3:]))
    return str(folder) if match is None else "{}/{}@{}".format(*match.groups())


@cache  # within one process, a name stays the same commit
def _fetched(name: HubName, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import constants, errors, snapshot_download

    def snapshot(*, offline: bool) -> Path:
        return Path(
            snapshot_download(
                name.repository, revision=name.revision, allow_patterns=list(patterns), local_files_only=offline
            )
        )

    try:
        folder = snapshot(offline=False)
    except errors.RevisionNotFoundError as error:
        raise ValueError(f"{name.repository} has no revision {name.revision} on the hub") from error
    except errors.GatedRepoError as error:
        raise ValueError(f"{name} asks you to accept its terms on the hub, then log in: hf auth login") from error
    except errors.RepositoryNotFoundError as error:
        raise ValueError(
            f"{name} is neither a folder here nor a model on the hub; a private one needs a login: hf auth login"
        ) from error
    except Exception as error:  # of the connection, the proxy, the disk: many types
        try:
            folder = snapshot(offline=True)
        except errors.LocalEntryNotFoundError:
            reason = "offline" if constants.HF_HUB_OFFLINE else _first_line(error)
            raise ValueError(
                f"{name} is not a folder here and cannot be fetched from the hub ({reason}): "
                "download it elsewhere and give its folder"
            ) from error
    if "*.safetensors" in patterns and not any(folder.rglob("*.safetensors")):
        raise ValueError(f"{name} has no safetensors: pickles can run code, so they are neither fetched nor read")
    return folder


def upload(
    folder: Path,
    repository: str,
    *,
    private: bool = False,
    token: str | None = None,
    message: str = UPLOAD,
) -> str:
    """Upload a model folder and its card; return the address of the commit.

    The repository is created if there is none. Model files of an earlier upload that the folder does not have are
    deleted: networks of two models never mix.
    """
    from huggingface_hub import HfApi, errors

    name = hub_name(_PREFIX + repository.removeprefix(_PREFIX))
    assert name is not None
    if name.revision is not None:
        raise ValueError(f"{repository} names a revision: a model is uploaded to the main branch, give owner/name")
    api = HfApi(token=token, library_name="crocodil")
    try:
        api.create_repo(name.repository, private=private, exist_ok=True)
        if private and not api.repo_info(name.repository).private:
            raise ValueError(f"{name} exists and is public: make it private on the hub, or choose another name")
        commit = api.upload_folder(
            repo_id=name.repository,
            folder_path=folder,
            allow_patterns=[*_UPLOADED, CARD_FILE],
            delete_patterns=list(_UPLOADED),
            commit_message=message,
        )
    except errors.HfHubHTTPError as error:
        reason = error.server_message or _first_line(error)
        raise ValueError(f"{name} cannot be uploaded ({reason}): log in with a token that may write") from error
    except ValueError:
        raise
    except Exception as error:  # of the connection: many types
        raise ValueError(f"{name} cannot be uploaded ({_first_line(error)})") from error
    return str(commit.commit_url)


def card_header(**fields: object) -> str:
    """Return the YAML header of a model card; fields that are None are left out."""
    from huggingface_hub import ModelCardData

    return f"---\n{ModelCardData(**fields).to_yaml()}\n---\n\n"


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].removeprefix("Got: ")
