"""`python -m tests.faults`: run the campaign. The exit code is 1 if a trial failed."""

import argparse
import os
import signal
import sys
from pathlib import Path

from .campaign import KINDS, as_markdown, as_text, describe, run_campaign


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the same seed tries the same faults")
    parser.add_argument("--minutes", type=float, default=20, help="no trial starts after this time")
    parser.add_argument("--inputs", type=int, default=10_000, help="number of damaged inputs")
    parser.add_argument("--kills", type=int, default=100, help="number of processes to kill")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="number of trials at the same time"
    )
    parser.add_argument("--only", action="append", choices=[kind.name for kind in KINDS], help="one kind of fault")
    parser.add_argument("--number", type=int, help="with --only: run only this trial")
    parser.add_argument("--markdown", type=Path, help="a file for the table")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sandboxes are removed
    rows = run_campaign(
        seed=options.seed,
        minutes=options.minutes,
        inputs=options.inputs,
        kills=options.kills,
        workers=options.workers,
        only=options.only or (),
        number=options.number,
    )
    failures = [failure for row in rows for failure in row.failures]
    for failure in sorted(failures, key=lambda failure: (failure.category, failure.detail)):  # group equal causes
        print(describe(failure, options.seed).encode("utf-8", "backslashreplace").decode())
    print(as_text(rows))
    if options.markdown is not None:
        options.markdown.write_text(as_markdown(rows))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
