"""Train the stages of the preset `tiny`, as a script: shapes are not checked here, which takes half the time.

Stage distilled is left out: a model of the run would have its priors instead of theirs.


python tests/tiny_run.py CORPUS OUT [STEPS]
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from crocodil.corpus.shards import Corpus
from crocodil.presets.runs import tiny
from crocodil.training.run import STAGES, run_stage
from crocodil.training.stage_setup import Workspace


def main(directory: Path, out: Path, num_steps: int | None) -> None:
    corpus = Corpus(directory)
    run = tiny(corpus)
    if num_steps is not None:
        loops = [name for name in vars(run) if name.endswith("_loop")]
        run = replace(run, **{name: replace(getattr(run, name), num_steps=num_steps) for name in loops})
    for stage in STAGES[:-1]:
        assert run_stage(stage, run, Workspace(corpus, out, out))


def trained_run(corpus: Corpus, out: Path, num_steps: int | None = None) -> Path:
    """Return a run directory with all stages but distilled finished, trained by another process."""
    steps = [] if num_steps is None else [str(num_steps)]
    done = subprocess.run(
        [sys.executable, __file__, str(corpus.directory), str(out), *steps],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
