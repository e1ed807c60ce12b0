"""A run of preset tiny; tests check bounds on its losses."""

import pytest


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """Train all stages, and return the directory of the run."""
    from crocodil.presets.runs import tiny
    from crocodil.training.run import STAGES, run_stage
    from crocodil.training.stage_setup import Workspace

    out = tmp_path_factory.mktemp("run")
    for stage in STAGES:
        assert run_stage(stage, tiny(corpus), Workspace(corpus, out, out))
    return out
