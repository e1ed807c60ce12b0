"""Checksums of the files of a folder: a quick check on every load, SHA-256 on demand (decision D36).

The quick checksum of a large file is the sum of its 64-bit words. It detects every single flipped bit, at a
quarter of the cost of SHA-256. Small files are always checked by SHA-256.
"""

import json
from hashlib import file_digest
from pathlib import Path

import numpy as np

from crocodil.runtime.config import config, read_as, read_json

CHECKSUM_FILE = "checksums.json"
SMALL_BYTES = 2**21
_WHAT_TO_DO = "copy or download it again"


@config
class Checksums:
    sha256: dict[str, str]  # by file name
    words: dict[str, str]  # sum of the 64-bit words modulo 2 ** 64, in hexadecimal


def write_checksums(directory: Path) -> None:
    """Write the checksums of the JSON and weight files in a folder, and of the checksum files of its subfolders.

    A missing or exchanged subfolder is therefore detected too.
    """
    files = sorted([*directory.glob("*.json"), *directory.glob("*.safetensors")])
    files = [file for file in files if file.name != CHECKSUM_FILE] + sorted(directory.glob(f"*/{CHECKSUM_FILE}"))
    names = {file.relative_to(directory).as_posix(): file for file in files}
    sums = {
        "sha256": {name: sha256(file) for name, file in names.items()},
        "words": {name: word_sum(file) for name, file in names.items()},
    }
    (directory / CHECKSUM_FILE).write_text(json.dumps(sums, indent=2) + "\n")


def check_quickly(directory: Path) -> None:
    """Raise an error if a file is damaged. Folders of old versions have no checksums and are not checked."""
    if (directory / CHECKSUM_FILE).exists():
        _check(directory, thoroughly=False)


def verify(directory: Path) -> int:
    """Check every file of a folder and its subfolders by SHA-256; return the number of files checked."""
    if not (directory / CHECKSUM_FILE).exists():
        raise ValueError(f"{directory} has no {CHECKSUM_FILE}: an older version wrote it, so it cannot be checked")
    subfolders = [file.parent for file in sorted(directory.glob(f"*/{CHECKSUM_FILE}"))]
    return _check(directory, thoroughly=True) + sum(verify(folder) for folder in subfolders)


def _check(directory: Path, *, thoroughly: bool) -> int:
    sums = read_as(Checksums, read_json(directory / CHECKSUM_FILE), directory / CHECKSUM_FILE)
    for name, digest in sums.sha256.items():
        file = directory / name
        is_inside = Path(name).name == name or (Path(name).name == CHECKSUM_FILE and ".." not in Path(name).parts)
        if not is_inside or not file.is_file():
            raise ValueError(f"{file} is missing: {_WHAT_TO_DO}")
        is_small = file.stat().st_size <= SMALL_BYTES
        is_intact = sha256(file) == digest if thoroughly or is_small else word_sum(file) == sums.words.get(name)
        if not is_intact:
            raise ValueError(f"{file} is damaged, its checksum differs: {_WHAT_TO_DO}")
    return len(sums.sha256)


def sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return file_digest(handle, "sha256").hexdigest()


def word_sum(file: Path) -> str:
    """Return the sum of the 64-bit words of a file; bytes after the last whole word count as one more word."""
    size = file.stat().st_size
    if not size:
        return f"{0:016x}"
    content = np.memmap(file, mode="r", dtype=np.uint8)
    whole = size - size % 8
    rest = int.from_bytes(content[whole:].tobytes(), "little")
    return f"{(int(content[:whole].view('<u8').sum(dtype=np.uint64)) + rest) % 2**64:016x}"
