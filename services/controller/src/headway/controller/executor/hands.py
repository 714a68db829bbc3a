"""A thread for what touches the run's folder, which may hang with the file system it lies on."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Hands(Generic[Job, Result]):
    """Does jobs one after the other; ``fd`` is readable when results wait.

    ``work`` runs on the thread and must not raise; it is the caller's duty to turn errors into
    results.
    """

    def __init__(self, work: Callable[[Job], Result]) -> None:
        self._work = work
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._busy_since: float | None = None
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_closed = False
        self._lock = threading.Lock()
        # a daemon: one that hangs on a dead file system must not keep the process from ending
        threading.Thread(target=self._serve, name="hands", daemon=True).start()

    def ask(self, job: Job) -> None:
        """Have a job done, after those that wait."""
        self._jobs.put(job)

    def busy_s(self) -> float:
        """How long the job at hand has taken so far; 0.0 without one."""
        since = self._busy_since
        return time.monotonic() - since if since is not None else 0.0

    def results(self) -> list[Result]:
        """What is done since, in order; never blocks."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def close(self) -> None:
        """Take no more jobs; the one at hand is left to itself."""
        with self._lock:
            self._is_closed = True
            os.close(self.fd)
        self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None and not self._is_closed:
            self._busy_since = time.monotonic()
            result = self._work(job)
            self._busy_since = None
            self._results.put(result)
            with self._lock:
                if self._is_closed:
                    return
                os.eventfd_write(self.fd, 1)
