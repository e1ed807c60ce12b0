import pytest
from wheels import make_registry


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder of wheels as the only registry that pip knows."""
    return make_registry(tmp_path / "registry", monkeypatch)
