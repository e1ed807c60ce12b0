"""Published wheels, through pip and the registry that pip is configured for.

A manifest pins each wheel by name, version and sha256, so that a rebuild gives the same bytes. Only wheels
are fetched, and none is installed: no code of a package runs. The target platform is fixed, so that every
machine picks the same files. Only names and versions are handed to pip: no option, no path, no address.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TARGET = (
    "--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64", "--platform=any",
    "--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none",
)  # fmt: skip
NAMES_AT_ONCE = 24  # a call of pip costs a second before it does anything
SECONDS_PER_CALL = 600

# PEP 508 and PEP 440, as far as they are needed to tell names and versions from anything else.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?"
_SHA256 = r"[0-9a-f]{64}"


@dataclass(frozen=True)
class Pin:
    """One wheel, exactly."""

    name: str
    version: str
    sha256: str

    def __post_init__(self) -> None:
        for value, pattern in ((self.name, _NAME), (self.version, _VERSION), (self.sha256, _SHA256)):
            if not re.fullmatch(pattern, value):
                raise ValueError(f"{value!r} in a pin is no name, version or sha256 of a package")

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def read_manifest(file: Path) -> list[Pin]:
    """Pins in the form of a pip requirements file with hashes; comments and blank lines are skipped."""
    pins = []
    for number, line in enumerate(_text(file).splitlines(), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        match = re.fullmatch(rf"({_NAME})==({_VERSION}) --hash=sha256:({_SHA256})", content)
        if match is None:
            raise ValueError(f"{file}:{number}: not a pin of the form name==version --hash=sha256:...: {content}")
        pins.append(Pin(*match.groups()))
    return pins


def read_names(file: Path) -> list[str]:
    """Package names, each by itself or as name==version, separated by blanks; comments are skipped."""
    names = [word for line in _text(file).splitlines() for word in line.split("#")[0].split()]
    if not names:
        raise ValueError(f"{file} lists no package")
    for name in names:
        if not _is_name(name):
            raise ValueError(f"{file}: {name!r} is no name of a package, nor of the form name==version")
    return names


def without_pin(names: Sequence[str], pins: Sequence[Pin]) -> list[str]:
    """The names that `lock` left out."""
    pinned = {_normal(pin.name) for pin in pins}
    return [name for name in names if _normal(name.split("==")[0]) not in pinned]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"{file} is no file that can be read")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text file: {error}") from error


def _is_name(name: str) -> bool:
    return re.fullmatch(rf"{_NAME}(?:=={_VERSION})?", name) is not None


def lock(names: Sequence[str], *, found: Callable[[int], None] = lambda count: None) -> list[Pin]:
    """The newest wheel of each name; names without one for the target are left out. `found` counts names."""
    for name in names:
        if not _is_name(name):
            raise ValueError(f"{name!r} is no name of a package, nor of the form name==version")
    names = list(dict.fromkeys(names))
    pins: list[Pin] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        some = names[start : start + NAMES_AT_ONCE]
        pins += _lock(some)
        found(len(some))
    return pins


def _lock(names: Sequence[str]) -> list[Pin]:
    """One name without a wheel fails pip's whole call: halve the list until it stands alone."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        try:
            # The target is never written to: pip asks for one whenever a platform is given.
            _pip(
                "install",
                "--dry-run",
                "--ignore-installed",
                f"--report={report}",
                f"--target={scratch}/t",
                "--",
                *names,
            )
        except RegistryError:
            if len(names) == 1:
                return []
            middle = len(names) // 2
            return _lock(names[:middle]) + _lock(names[middle:])
        rows = json.loads(report.read_text())["install"]
    return [
        Pin(
            row["metadata"]["name"],
            row["metadata"]["version"],
            row["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for row in rows
    ]


def fetch(pins: Sequence[Pin], directory: Path) -> None:
    """Download these wheels into `directory`, each checked against its sha256."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(str(pin) for pin in pins) + "\n")
        requirements.flush()
        _pip("download", "--require-hashes", f"--dest={directory.resolve()}", f"--requirement={requirements.name}")


class RegistryError(ValueError):
    """pip could not do what was asked; the message is its own last line."""


def _pip(command: str, *arguments: str) -> None:
    call = [sys.executable, "-m", "pip", command, "--quiet", "--no-input", "--disable-pip-version-check"]
    call += ["--no-deps", "--only-binary=:all:", *TARGET, *arguments]
    try:
        # In an empty folder: pip takes a name such as x.zip for the file of that name, if there is one.
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run(
                call, capture_output=True, text=True, timeout=SECONDS_PER_CALL, check=False, cwd=empty
            )
    except subprocess.TimeoutExpired:
        raise RegistryError(f"pip {command} gave no answer within {SECONDS_PER_CALL} s") from None
    if done.returncode:
        raise RegistryError(_reason(done.stderr.splitlines()) or f"pip {command} failed")


def _reason(lines: Iterable[str]) -> str:
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return errors[-1] if errors else ""
