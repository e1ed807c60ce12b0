"""Text files as the commands read and write them. Does not import torch."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from crocodil.runtime.atomic import whole_file


def read_text(file: Path) -> str:
    """Return the content of a text file; anything else is a one-line error."""
    name = printable(file)
    if not file.exists():
        raise ValueError(f"{name} does not exist")
    if file.is_dir():
        raise ValueError(f"{name} is a folder: name the files in it")
    if not file.is_file():
        raise ValueError(f"{name} is a pipe or a device, not a file")
    return _decoded(file.read_bytes(), name)


def read_text_or_stdin(file: Path) -> str:
    """Return the content of a text file, or of stdin for `-`."""
    return _decoded(sys.stdin.buffer.read(), "stdin") if str(file) == "-" else read_text(file)


def read_prompt(file: Path) -> str:
    """Return the content of a text file, or of stdin for `-`, without the line break at its end."""
    return read_text_or_stdin(file).removesuffix("\n").removesuffix("\r")


def _decoded(content: bytes, name: str) -> str:
    if not content.strip():
        raise ValueError(f"{name} is empty")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}") from None
    if "\0" in text:
        raise ValueError(f"{name} is binary, not text")
    return text


def printable(file: Path) -> str:
    """Return the name of a file with bytes that are not UTF-8 escaped."""
    return str(file).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class NewFolder:
    """A new or empty folder that gets one file for each text. Nothing is ever overwritten.

    It is made at once: a folder that cannot be made is an error before any sampling.
    """

    directory: Path
    extension: str

    def __post_init__(self) -> None:
        name = printable(self.directory)
        if os.path.lexists(self.directory) and not self.directory.is_dir():
            raise ValueError(f"{name} is not a folder: choose another --out-dir")
        if self.directory.is_dir() and any(self.directory.iterdir()):
            raise ValueError(f"{name} is not empty: texts are never overwritten, choose another --out-dir")
        self.directory.mkdir(parents=True, exist_ok=True)

    def write(self, number: int, text: str) -> Path:
        """Write text `number` to its file, whole or not at all."""
        file = self.directory / f"{number:04d}.{self.extension}"
        if file.exists():
            raise ValueError(f"{printable(file)} exists: another process writes to this folder")
        with whole_file(file) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
        return file
