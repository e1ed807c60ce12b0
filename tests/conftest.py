"""Every annotated shape in `crocodil` is checked while the tests run; no test asks the network."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ["HF_HUB_OFFLINE"] = "1"
install_import_hook("crocodil", "typecheck.typechecked")


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return Path(__file__).parent / "fixtures"
