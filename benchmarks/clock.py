"""What the benchmarks share: the time of some work, and rows as lines of JSON."""

import json
import time
from collections.abc import Callable

import torch


def seconds(work: Callable[[], object], repeats: int = 2) -> float:
    """Return the best of some repeats, after one that does not count."""
    found = []
    for _ in range(1 + repeats):
        synchronise()
        started_at = time.perf_counter()
        work()
        synchronise()
        found.append(time.perf_counter() - started_at)
    return min(found[1:])


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def show(**row: object) -> None:
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
