"""Train the stages of the preset `tiny` in a process of its own.

Stages distilled and prompted are left out: a model of the run would have its priors instead of theirs.
"""

from pathlib import Path

import forked

from crocodil.corpus.shards import Corpus
from crocodil.presets.changes import with_changes
from crocodil.presets.runs import tiny
from crocodil.training import validation
from crocodil.training.run import run_stage
from crocodil.training.stage_setup import STAGES
from crocodil.training.workspace import Workspace

# In place of the constants of `validation`, which takes most of the time of a short run.
SHORT_VALIDATION = {"MASK_PROBS": (0.5,), "TIMES": (0.5,), "NUM_DRAW_STEPS": 1}


def train_all(directory: Path, out: Path, num_steps: dict[str, int], validates: bool) -> None:
    if not validates:
        for name, value in SHORT_VALIDATION.items():
            setattr(validation, name, value)
    corpus = Corpus(directory)
    run = with_changes(tiny(corpus), [f"{stage}_loop.num_steps={number}" for stage, number in num_steps.items()])
    for stage in STAGES[: STAGES.index("distilled")]:
        assert run_stage(stage, run, Workspace(corpus, out, out))


def trained_run(corpus: Corpus, out: Path, *, validates: bool = True, **num_steps: int) -> Path:
    """Return a run directory with all stages but distilled finished, in the preset's steps or in `num_steps`."""
    work = (train_all, corpus.directory, out, num_steps, validates)
    done = forked.run(*work, out=out.parent / f"{out.name}-printed")
    assert done.returncode == 0, done.stderr[-2000:]
    return out
