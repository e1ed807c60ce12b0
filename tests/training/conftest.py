"""A run as the preset says: its losses are held to bounds."""

import pytest


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A run directory with all stages finished."""
    from crocodil.presets.runs import tiny
    from crocodil.training.run import STAGES, run_stage
    from crocodil.training.stage_setup import Workspace

    out = tmp_path_factory.mktemp("run")
    for stage in STAGES:
        assert run_stage(stage, tiny(corpus), Workspace(corpus, out, out))
    return out
