"""Files and directories that appear whole or not at all, whatever kills the process that writes them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED = ".unfinished-"


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """A directory to write into; on success it becomes `target`, which must not exist yet.

    A directory can appear atomically, but it cannot be replaced atomically: an existing one is never touched.
    """
    unfinished = unfinished_directory(target)
    try:
        yield unfinished
        finish_directory(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def unfinished_directory(target: Path) -> Path:
    """Where several processes write what `finish_directory` then makes `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))


def finish_directory(unfinished: Path, target: Path) -> None:
    for path in unfinished.rglob("*"):
        _flush(path)
    unfinished.chmod(0o755)
    unfinished.rename(target)
    _flush(target.parent)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A file to write; on success it replaces `target`."""
    descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)
    os.close(descriptor)
    unfinished = Path(name)
    try:
        yield unfinished
        _flush(unfinished)
        unfinished.chmod(0o644)
        unfinished.replace(target)
        _flush(target.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> None:
    """What a killed process left behind."""
    for leftover in directory.glob(f"{_UNFINISHED}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _flush(path: Path) -> None:
    """Ask the disk to keep it, so that a power cut cannot leave a name without its bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
