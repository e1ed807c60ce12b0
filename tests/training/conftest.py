"""A run of preset tiny; tests check bounds on its losses."""

import pytest


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory):
    """A run with all stages finished; half of the steps of the priors are enough for their bounds."""
    from tiny_run import trained_run

    return trained_run(corpus, tmp_path_factory.mktemp("run"), prior=60, conditional=60)
