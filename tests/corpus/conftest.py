import pytest
from wheels import make_wheel, program


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder of wheels as the only registry that pip knows."""
    directory = tmp_path / "registry"
    directory.mkdir()
    for number in range(12):
        name = f"pack{number:02d}"
        files = {f"{name}/{part}.py": program(f"{name}{part}", 4) for part in ("one", "two", "three")}
        make_wheel(directory, name, files=files)
    make_wheel(directory, "copyleft", files={"c/c.py": program("c")}, metadata="License-Expression: GPL-3.0-only")
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory
