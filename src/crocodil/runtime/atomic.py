"""Files and directories that appear whole or not at all, and locks for directories with one writer."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_UNFINISHED = ".unfinished-"
LOCK_FILE = ".lock"


@contextmanager
def locked(directory: Path, *, wait_s: float = 0) -> Iterator[None]:
    """Hold the lock of a directory; raise an error if another process holds it for longer than `wait_s`.

    The operating system releases the lock when the process ends in any way. The lock file stays.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK_FILE)
    try:
        lock.acquire(timeout=wait_s)
    except Timeout:
        raise ValueError(
            f"{directory} is in use by another process: wait for it, or choose another directory"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def whole_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary directory; on success it becomes `target`, which must not exist yet.

    A directory can be created atomically, but not replaced atomically, so an existing one is never touched.
    """
    unfinished = unfinished_directory(target)
    try:
        yield unfinished
        finish_directory(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def unfinished_directory(target: Path) -> Path:
    """Return a temporary directory for several processes; `finish_directory` turns it into `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))


def finish_directory(unfinished: Path, target: Path) -> None:
    """Flush a temporary directory and rename it to `target`."""
    for path in unfinished.rglob("*"):
        _flush(path)
    unfinished.chmod(0o755)
    try:
        unfinished.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise ValueError(f"{target} exists: another process has just made it, choose another name") from None
    _flush(target.parent)


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a temporary file; on success it replaces `target`. A symbolic link stays a link."""
    target = plain_file(target)
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


def plain_file(target: Path) -> Path:
    """Return the real path of a file to write; raise an error for a device, a pipe or a folder."""
    target = Path(os.path.realpath(target))
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent} does not exist: create this folder first")
    if os.path.lexists(target) and not target.is_file():  # also a link to itself
        raise ValueError(f"{target} is not a regular file: choose another name")
    return target


def remove_unfinished(directory: Path) -> None:
    """Delete temporary files and directories that a killed process left behind."""
    for leftover in directory.glob(f"{_UNFINISHED}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def _flush(path: Path) -> None:
    """Flush to disk, so that a power cut cannot leave a name without its content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
