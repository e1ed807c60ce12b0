"""Small wheels for tests, and a folder of them that pip takes for its registry."""

import zipfile
from pathlib import Path

import pytest

MIT = "License-Expression: MIT"


def program(name: str, count: int = 3) -> str:
    """A module with some functions, unlike any with another name."""
    words = [f"{name}_{word}" for word in ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa")]
    parts = [f'"""Module {name}: made for tests of the corpus."""\n\nimport math\n']
    for number in range(count):
        first, second = words[number % 7], words[(number + 3) % 7]
        parts.append(
            f"def {first}_{number}({second}, scale={number}):\n"
            f'    """Return {first} of {second} on scale {number}."""\n'
            f"    total = math.sqrt({second}) + scale * {number + 1}\n"
            f"    for step in range({number + 2}):\n"
            f"        total += {second} ** step\n"
            f"    return total\n"
        )
    return "\n\n".join(parts)


def make_wheel(
    directory: Path, name: str, version: str = "1.0", *, files: dict[str, str | bytes], metadata: str = MIT
) -> Path:
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
        about = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\n"
        archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), about)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(zipfile.ZipInfo(f"{info}/WHEEL"), tags)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return wheel


def make_registry(directory: Path, patch: pytest.MonkeyPatch) -> Path:
    """Make a folder of thirteen wheels, the only registry that pip then knows."""
    directory.mkdir()
    for number in range(12):
        name = f"pack{number:02d}"
        files = {f"{name}/{part}.py": program(f"{name}{part}", 4) for part in ("one", "two", "three")}
        make_wheel(directory, name, files=files)
    make_wheel(directory, "copyleft", files={"c/c.py": program("c")}, metadata="License-Expression: GPL-3.0-only")
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        patch.delenv(variable, raising=False)
    patch.setenv("PIP_CONFIG_FILE", "/dev/null")
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(directory))
    return directory
