"""One model, many requests: they take turns, in the order in which they came.

Each job sends its events through its own function, so two browsers never see each other's texts. Waiting jobs
are told how many jobs are ahead. A cancelled job leaves the queue; if it is running, it stops at its next event.
"""

import threading
from collections import deque
from collections.abc import Callable

from crocodil.play.requests import FieldError, Request
from crocodil.play.views import Emit, Event

MAX_WAITING = 1000
TOLD_EACH = 10  # the first ten jobs of the queue are told of every change, the others of every tenth

Answer = Callable[[Request, Emit], None]


class Cancelled(Exception):  # noqa: N818  (no error)
    """Stops the work for a job that nobody waits for."""


class Job:
    """A request on its way. `send` is called from the thread of the queue and from others."""

    def __init__(self, request: Request, send: Emit) -> None:
        self.request, self.send, self.is_cancelled = request, send, threading.Event()

    def emit(self, event: Event) -> None:
        if self.is_cancelled.is_set():
            raise Cancelled
        self.send(event)


class JobQueue:
    """A thread that answers jobs one by one."""

    def __init__(self, answer: Answer, *, max_waiting: int = MAX_WAITING) -> None:
        self.answer, self.max_waiting = answer, max_waiting
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.is_closed = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._work, name="crocodil play", daemon=True)
        self.thread.start()

    def submit(self, request: Request, send: Emit) -> Job:
        """Add a job and tell it its place. A full queue is a `FieldError`."""
        job = Job(request, send)
        with self.changed:
            if len(self.waiting) >= self.max_waiting:
                raise FieldError("", f"{len(self.waiting):,} requests wait already: try again later")
            self.waiting.append(job)
            job.send(self._place(len(self.waiting) - 1))
            self.changed.notify()
        return job

    def cancel(self, job: Job) -> None:
        job.is_cancelled.set()
        with self.changed:
            if job in self.waiting:
                self.waiting.remove(job)
                self._tell_places()

    def length(self) -> dict[str, int]:
        """Return how many jobs wait, and how many run: one at most."""
        with self.changed:
            return {"waiting": len(self.waiting), "running": int(self.running is not None)}

    def close(self) -> None:
        """Cancel everything and end the thread."""
        with self.changed:
            self.is_closed = True
            for job in [*self.waiting, *([self.running] if self.running else [])]:
                job.is_cancelled.set()
            self.waiting.clear()
            self.changed.notify()
        self.thread.join()

    def _place(self, index: int) -> Event:
        return {"event": "queue", "ahead": index + (self.running is not None)}

    def _tell_places(self) -> None:
        for index, job in enumerate(self.waiting):
            if index < TOLD_EACH or index % TOLD_EACH == 0:
                job.send(self._place(index))

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self.answer(job.request, job.emit)
                job.emit({"event": "done"})
            except Cancelled:
                pass
            except FieldError as error:
                job.send(error.event())
            except Exception as error:  # one job must not end the thread that serves all others
                message = str(error).split("\n")[0] or type(error).__name__
                job.send({"event": "error", "field": "", "error": message})

    def _next(self) -> Job | None:
        with self.changed:
            self.running = None
            self.changed.wait_for(lambda: self.waiting or self.is_closed)
            if self.is_closed:
                return None
            self.running = self.waiting.popleft()
            self._tell_places()
            return self.running
