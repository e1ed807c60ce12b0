"""Calls in several processes. The workers end with the process that started them."""

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


def process_count(num_processes: int | None) -> int:
    """Return how many processes to use: by default, one per core."""
    if num_processes is not None and num_processes < 1:
        raise ValueError(f"the number of processes must be at least 1, not {num_processes}")
    return num_processes or os.cpu_count() or 1


def as_finished(jobs: Mapping[Key, tuple], num_processes: int) -> Iterator[Key]:
    """Run (function, *arguments) for each key and yield the keys as they finish; the first error stops all."""
    num_processes = min(num_processes, len(jobs))
    if num_processes <= 1:
        for key, (function, *arguments) in jobs.items():
            function(*arguments)
            yield key
        return
    with _workers(num_processes) as pool:
        futures = {pool.submit(*call): key for key, call in jobs.items()}
        for future in as_completed(futures):
            future.result()
            yield futures[future]


def in_order(function: Callable[..., Result], arguments: Sequence[tuple], num_processes: int) -> Iterator[Result]:
    """Yield function(*each) for all arguments, in their order; a result is dropped once it is taken."""
    num_processes = min(num_processes, len(arguments))
    if num_processes <= 1:
        for each in arguments:
            yield function(*each)
        return
    with _workers(num_processes) as pool:
        futures = deque(pool.submit(function, *each) for each in arguments)
        while futures:
            yield futures.popleft().result()


@contextmanager
def _workers(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")  # forking a process with threads can deadlock
    with ProcessPoolExecutor(num_processes, context, _start_worker, (os.getpid(),)) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise ValueError(
                "a worker process was killed, perhaps for lack of memory: use fewer --processes"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _start_worker(parent: int) -> None:
    """End this worker when its parent dies: otherwise it would write next to a resumed build."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
