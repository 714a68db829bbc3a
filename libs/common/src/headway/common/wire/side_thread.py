"""Threads beside a service's loop, for work that may hang with a file system or an engine.

What hangs can be neither interrupted nor ended. So these threads are daemons, which keep no process
from ending, and the loop's thread never waits for one without a limit. What came of the work is
handed back: its callback runs in the loop's thread, which watches ``done_fd``.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from headway.common.log import complain, get_logger
from headway.common.wire.loop import REST_S, Throttle

CLOSE_WAIT_S = 0.2

Work = Callable[[], Any]
Then = Callable[[Any, Exception | None], object]
"""Called in the loop's thread: with the result and None, or with None and the error."""
Spare = Callable[[], float | None]

_log = get_logger("side thread")


class Callbacks:
    """What waits for the loop's thread; while something does, ``done_fd`` is readable."""

    def __init__(self) -> None:
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._callbacks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._is_open, self._fd_lock = True, threading.Lock()

    def hand_back(self, callback: Callable[[], object]) -> None:
        """Have ``callback`` run in the loop's thread; for any thread, such as work under way."""
        self._callbacks.put(callback)
        with self._fd_lock:
            if self._is_open:
                os.eventfd_write(self.done_fd, 1)

    def run_callbacks(self) -> None:
        """Run what waits; never blocks. An error of one is logged, and the others run."""
        with self._fd_lock, contextlib.suppress(BlockingIOError):
            if self._is_open:
                os.eventfd_read(self.done_fd)
        while not self._callbacks.empty():
            callback = self._callbacks.get()
            try:
                callback()
            except Exception:  # the others must not wait for the next outcome
                complain(_log.exception, "what was done on a side thread could not be taken in")

    def _do(self, work: Work, then: Then) -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        self.hand_back(partial(then, result, error))

    def _close_fd(self) -> None:
        with self._fd_lock:
            if self._is_open:
                self._is_open = False
                os.close(self.done_fd)


def log_error(_result: object, error: Exception | None) -> None:
    """For work whose outcome nobody awaits."""
    if error is not None:
        complain(_log.error, "work on a side thread failed", reason=repr(error), exc_info=error)


class SideThread(Callbacks):
    """Does work one piece after the other. Work that hangs holds up what waits behind it.

    Args:
        name: of the thread.
        spare: called on the thread while no work waits: first after ``first_s``, and again after as
            many seconds as it returns; with None when ``wake`` is called. An error is logged, at
            most every 10 s, and it is called again after a second.
        first_s: seconds.
    """

    def __init__(self, name: str, spare: Spare | None = None, first_s: float = 0.0) -> None:
        super().__init__()
        self._name, self._spare = name, spare
        self._spare_at_s = time.monotonic() + first_s if spare is not None else math.inf
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._busy_since_s: float | None = None
        self._throttle = Throttle()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work, then: Then = log_error) -> None:
        """Do ``work`` after what waits; once the thread is being closed, nothing is done."""
        with self._changed:
            if not self._is_closing:
                self._waiting.append(partial(self._do, work, then))
                self._changed.notify()

    def wake(self) -> None:
        """Have ``spare`` called as soon as no work waits; once more if it is being called."""
        with self._changed:
            self._spare_at_s = -math.inf
            self._changed.notify()

    def busy_s(self) -> float:
        """How long the piece of work at hand has taken so far; 0.0 without one."""
        since_s = self._busy_since_s
        return time.monotonic() - since_s if since_s is not None else 0.0

    def close(self, limit_s: float = CLOSE_WAIT_S) -> bool:
        """Take no more work; do what waits, for at most ``limit_s``. True when all was done.

        What still waits then is dropped, and what is under way is left to itself.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(limit_s)
        with self._changed:
            self._waiting.clear()
        self._close_fd()
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (piece := self._next()) is not None:
            self._busy_since_s = time.monotonic()
            piece()
            self._busy_since_s = None

    def _next(self) -> Callable[[], None] | None:
        """What is to be done next, once there is something; None when the thread is to end."""
        with self._changed:
            while not self._waiting and not self._is_closing:
                left_s = self._spare_at_s - time.monotonic()
                if left_s <= 0:
                    self._spare_at_s = math.inf
                    return self._call_spare
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            return self._waiting.popleft() if self._waiting else None

    def _call_spare(self) -> None:
        assert self._spare is not None
        try:
            pause_s = self._spare()
        except Exception as error:  # a failing disk must not end this for good
            pause_s = REST_S
            if self._throttle.admit(self._name) is not None:
                complain(
                    _log.error, "failed, and is tried again", what=self._name, error=str(error)
                )
        if pause_s is not None:
            with self._changed:  # unless it was woken meanwhile
                self._spare_at_s = min(self._spare_at_s, time.monotonic() + pause_s)


class ThreadPerKind(Callbacks):
    """Does each kind of work on a thread of its own, one piece of a kind at a time.

    Work that hangs blocks only its own kind: further work of it fails at once until that ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: set[str] = set()

    def is_busy(self, kind: str) -> bool:
        """Whether work of this kind is under way, or its callback has not run yet."""
        return kind in self._kinds

    def submit(self, kind: str, work: Work, then: Then) -> None:
        """Begin ``work``; never blocks and never raises.

        ``then`` gets TimeoutError while ``kind`` is busy, and RuntimeError when the system allows
        no further thread.
        """
        if kind in self._kinds:
            self.hand_back(
                partial(then, None, TimeoutError(f"the previous {kind} is still running"))
            )
            return

        def over(result: Any, error: Exception | None) -> None:
            self._kinds.discard(kind)
            then(result, error)

        self._kinds.add(kind)
        thread = threading.Thread(target=self._do, args=(work, over), name=kind, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.hand_back(partial(over, None, error))
