"""A run as the preset says: its losses are held to bounds."""

import pytest


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A run directory with all stages finished."""
    from crocodil.presets.runs import tiny
    from crocodil.training.run import STAGES, Place, run_stage

    out = tmp_path_factory.mktemp("run")
    for stage in STAGES:
        assert run_stage(stage, tiny(corpus), Place(corpus, out, out))
    return out
