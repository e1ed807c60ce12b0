"""Text files as the commands read and write them. Does not import torch."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crocodil.runtime.atomic import plain_file, whole_file

STDIN = "-"
REGISTERS = ".safetensors"  # the extension of a file of registers


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
    return _decoded(sys.stdin.buffer.read(), source_name(file)) if str(file) == STDIN else read_text(file)


def read_texts(files: Sequence[Path]) -> list[str]:
    """Return the contents of files to encode, without line breaks at the end: training texts have none there."""
    if sum(str(file) == STDIN for file in files) > 1:
        raise ValueError("- reads stdin, which has one text: give - once")
    return [read_text_or_stdin(file).rstrip("\r\n") for file in files]


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


def source_name(file: Path) -> str:
    """Return what messages call a file that was read: its name, or stdin for `-`."""
    return "stdin" if str(file) == STDIN else printable(file)


def check_new_registers(out: Path) -> None:
    """Check that a file of registers can be written here, and that nothing is overwritten."""
    plain_file(out)
    if out.suffix != REGISTERS:
        raise ValueError(f"{printable(out)} does not end in {REGISTERS}: choose another --out")
    if out.exists():
        raise ValueError(f"{printable(out)} exists: registers are never overwritten, choose another --out")


@dataclass(frozen=True)
class NewFolder:
    """A new or empty folder that gets one file for each text. Nothing is ever overwritten.

    It is made at once: a folder that cannot be made is an error before any sampling.
    """

    directory: Path
    extension: str

    @classmethod
    def asked(cls, directory: Path | None, extension: str | None) -> "NewFolder | None":
        """Return the folder that the options of a command ask for, or None."""
        if directory is not None:
            return cls(directory, extension or "txt")
        if extension is not None:
            raise ValueError("--extension is for the files in --out-dir: give both")
        return None

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
