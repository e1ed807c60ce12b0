"""`python -m tests.faults`: the campaign from the command line. Exit 1 where anything failed."""

import argparse
import os
import signal
import sys
from pathlib import Path

from .campaign import KINDS, as_markdown, as_text, reproduced, run_campaign


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the same seed tries the same faults")
    parser.add_argument("--minutes", type=float, default=20, help="no trial is begun after these")
    parser.add_argument("--inputs", type=int, default=10_000, help="damaged inputs, in process")
    parser.add_argument("--kills", type=int, default=100, help="processes that are killed")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="at the same time")
    parser.add_argument("--only", action="append", choices=[kind.name for kind in KINDS], help="one kind of fault")
    parser.add_argument("--number", type=int, help="with --only: this trial alone")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sandboxes are removed
    rows = run_campaign(
        seed=asked.seed,
        minutes=asked.minutes,
        inputs=asked.inputs,
        kills=asked.kills,
        workers=asked.workers,
        only=asked.only or (),
        number=asked.number,
    )
    failures = [failure for row in rows for failure in row.failures]
    for failure in sorted(failures, key=lambda one: (one.category, one.detail)):  # equal causes stand together
        print(reproduced(failure, asked.seed).encode("utf-8", "backslashreplace").decode())
    print(as_text(rows))
    if asked.markdown is not None:
        asked.markdown.write_text(as_markdown(rows))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
