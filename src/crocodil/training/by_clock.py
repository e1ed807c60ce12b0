"""Train a stage for a given time instead of a given number of steps.

The learning rate is constant at first. Then the speed so far says how many steps fit into the rest of the time,
and the stage goes on with that number. So `stage.json` holds an ordinary schedule in steps.
"""

import time
from dataclasses import replace
from typing import Any

from crocodil.training.journal import read_rows
from crocodil.training.loop import NO_END, check_minutes
from crocodil.training.run import run_stage
from crocodil.training.run_config import Run
from crocodil.training.stage_checks import check_guided_steps
from crocodil.training.stage_setup import TRAINED_STAGES
from crocodil.training.workspace import Workspace

_RECENT = 200  # steps that the speed is measured on: all lengths have had many turns


def run_stage_for(name: str, run: Run, workspace: Workspace, *, minutes: float) -> bool:
    """Run one stage for about this many minutes; return False if a signal stopped it.

    The learning rate falls over the last `decay_share` of the time.
    """
    check_minutes(minutes)
    _check(name, run, workspace)
    begin = time.monotonic()
    constant_minutes = (1 - getattr(run, f"{name}_loop").decay_share) * minutes

    def falling() -> Run:
        left_s = 60 * minutes - (time.monotonic() - begin)
        steps = [row for row in read_rows(workspace.out / name) if "step_s" in row]
        recent = [row["step_s"] for row in steps[-_RECENT:]]
        num_left = max(1, int(left_s * len(recent) / sum(recent)))
        num_steps = steps[-1]["step"] + num_left
        scheduled = _with_schedule(run, name, num_steps=num_steps, decay_share=num_left / num_steps)
        if name == "guided":
            check_guided_steps(scheduled)  # the number of steps was not known before
        return scheduled

    constant = _with_schedule(run, name, num_steps=NO_END, decay_share=0.0)
    return run_stage(name, constant, workspace, max_minutes=constant_minutes, then=falling)


def _check(name: str, run: Run, workspace: Workspace) -> None:
    if name not in TRAINED_STAGES:
        raise ValueError(f"stage {name} takes no steps: run it without --minutes")
    if workspace.ranks.count > 1:
        raise ValueError("--minutes works in one process only: give a number of steps instead")
    if getattr(run, f"{name}_loop").decay_share == 1:
        raise ValueError(
            "with --minutes the learning rate is constant at first: "
            f"give the share of the time over which it falls, e.g. --set {name}_loop.decay_share=0.4"
        )


def _with_schedule(run: Run, name: str, **schedule: Any) -> Run:
    loop = f"{name}_loop"
    return replace(run, **{loop: replace(getattr(run, loop), **schedule)})
