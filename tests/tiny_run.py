"""Train all stages of the preset `tiny` in a process of its own."""

from pathlib import Path

import forked

from crocodil.corpus.shards import Corpus
from crocodil.presets.runs import tiny, with_changes
from crocodil.training.run import STAGES, run_stage
from crocodil.training.stage_setup import Workspace


def train_all(directory: Path, out: Path, num_steps: dict[str, int]) -> None:
    corpus = Corpus(directory)
    run = with_changes(tiny(corpus), [f"{stage}_loop.num_steps={number}" for stage, number in num_steps.items()])
    for stage in STAGES:
        assert run_stage(stage, run, Workspace(corpus, out, out))


def trained_run(corpus: Corpus, out: Path, **num_steps: int) -> Path:
    """Return a run directory with all stages finished, in the preset's steps or in `num_steps` of a stage."""
    done = forked.run(train_all, corpus.directory, out, num_steps, out=out.parent / f"{out.name}-printed")
    assert done.returncode == 0, done.stderr[-2000:]
    return out
