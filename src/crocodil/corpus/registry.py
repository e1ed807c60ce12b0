"""Published wheels, fetched with pip from the registry that pip is configured for.

A manifest pins each wheel by name, version and sha256, so a rebuild gives the same bytes. Only wheels are fetched,
and none is installed: no code of a package runs. The target platform is fixed, so every machine gets the same
files. Only names and versions are passed to pip: no options, paths or URLs.
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
NAMES_AT_ONCE = 24  # every call of pip takes a second to start
SECONDS_PER_CALL = 600

# PEP 508 and PEP 440, simplified: enough to recognise names and versions.
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?"
_SHA256 = r"[0-9a-f]{64}"


@dataclass(frozen=True)
class Pin:
    """The exact version of one wheel."""

    name: str
    version: str
    sha256: str

    def __post_init__(self) -> None:
        for value, pattern in ((self.name, _NAME), (self.version, _VERSION), (self.sha256, _SHA256)):
            if not re.fullmatch(pattern, value):
                raise ValueError(f"{value!r} in a pin is not a valid package name, version or sha256")

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def read_manifest(file: Path) -> list[Pin]:
    """Read pins from a pip requirements file with hashes; comments and blank lines are skipped."""
    pins = []
    for number, line in enumerate(_text(file).splitlines(), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        match = re.fullmatch(rf"({_NAME})==({_VERSION}) --hash=sha256:({_SHA256})", content)
        if match is None:
            raise ValueError(f"{file}:{number}: expected name==version --hash=sha256:..., not {content}")
        pins.append(Pin(*match.groups()))
    return pins


def read_names(file: Path) -> list[str]:
    """Read package names, or name==version, separated by whitespace; comments are skipped."""
    names = [word for line in _text(file).splitlines() for word in line.split("#")[0].split()]
    if not names:
        raise ValueError(f"{file} lists no packages")
    for name in names:
        if not _is_name(name):
            raise ValueError(f"{file}: {name!r} is neither a package name nor name==version")
    return names


def without_pin(names: Sequence[str], pins: Sequence[Pin]) -> list[str]:
    """Return the names for which `lock` found no wheel."""
    pinned = {_normal(pin.name) for pin in pins}
    return [name for name in names if _normal(name.split("==")[0]) not in pinned]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(file: Path) -> str:
    if not file.is_file():
        raise ValueError(f"{file} is not a readable file")
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a text file: {error}") from error


def _is_name(name: str) -> bool:
    return re.fullmatch(rf"{_NAME}(?:=={_VERSION})?", name) is not None


def lock(names: Sequence[str], *, on_names: Callable[[int], None] = lambda count: None) -> list[Pin]:
    """Return pins of the newest wheels; names without a wheel for the target platform are left out.

    `on_names` is called with the number of names that were looked up.
    """
    for name in names:
        if not _is_name(name):
            raise ValueError(f"{name!r} is neither a package name nor name==version")
    names = list(dict.fromkeys(names))
    pins: list[Pin] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        batch = names[start : start + NAMES_AT_ONCE]
        pins += _lock(batch)
        on_names(len(batch))
    return pins


def _lock(names: Sequence[str]) -> list[Pin]:
    """Look up names. One name without a wheel fails the whole call of pip, so halve the list until it is found."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        try:
            # pip requires a target whenever a platform is given; nothing is written there.
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
    """Download these wheels to `directory` and check their sha256."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(str(pin) for pin in pins) + "\n")
        requirements.flush()
        _pip("download", "--require-hashes", f"--dest={directory.resolve()}", f"--requirement={requirements.name}")


class RegistryError(ValueError):
    """A call of pip failed; the message is its last error line."""


def _pip(command: str, *arguments: str) -> None:
    call = [sys.executable, "-m", "pip", command, "--quiet", "--no-input", "--disable-pip-version-check"]
    call += ["--no-deps", "--only-binary=:all:", *TARGET, *arguments]
    try:
        # In an empty folder, because pip would read a name such as x.zip as a file in the current folder.
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run(
                call, capture_output=True, text=True, timeout=SECONDS_PER_CALL, check=False, cwd=empty
            )
    except subprocess.TimeoutExpired:
        raise RegistryError(f"pip {command} did not finish within {SECONDS_PER_CALL} s") from None
    if done.returncode:
        raise RegistryError(_reason(done.stderr.splitlines()) or f"pip {command} failed")


def _reason(lines: Iterable[str]) -> str:
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return errors[-1] if errors else ""
