"""Every annotated shape in `crocodil` is checked while the tests run."""

from pathlib import Path

import pytest
from jaxtyping import install_import_hook

install_import_hook("crocodil", "typecheck.typechecked")


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parent / "fixtures"
