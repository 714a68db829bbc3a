"""Actions that may take long, each kind on a thread of its own;
their outcome returns as an event."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from headway.common.log import get_logger

log = get_logger("driver")


class Background:
    """``start`` never blocks and never raises; ``done_fd`` is readable when outcomes wait.

    Work that hangs, such as a look into a folder of a hung mount, blocks only its own kind: further
    work of this kind fails at once with TimeoutError until it ends.
    """

    def __init__(self) -> None:
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outcomes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running: set[str] = set()

    def start(
        self, kind: str, work: Callable[[], Any], then: Callable[[Any, Exception | None], None]
    ) -> None:
        """Do ``work`` on a thread; ``then(result, None)``
        or ``then(None, error)`` runs in the loop."""
        if kind in self._running:
            self._hand_back(
                lambda: then(None, TimeoutError(f"the previous {kind} is still running"))
            )
            return
        self._running.add(kind)
        thread = threading.Thread(
            target=self._do, args=(kind, work, then), name=f"effect {kind}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as caught:  # the system allows no further thread now
            self._running.discard(kind)
            error = caught
            self._hand_back(lambda: then(None, error))

    def run_callbacks(self) -> None:
        """Deliver the outcomes that wait."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.done_fd)
        while not self._outcomes.empty():
            callback = self._outcomes.get()
            try:
                callback()
            except Exception:  # the others must not wait for the next outcome
                log.exception("handling the outcome of an action failed")

    def _do(
        self, kind: str, work: Callable[[], Any], then: Callable[[Any, Exception | None], None]
    ) -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught

        def deliver() -> None:
            self._running.discard(kind)
            then(result, error)

        self._hand_back(deliver)

    def _hand_back(self, callback: Callable[[], None]) -> None:
        self._outcomes.put(callback)
        os.eventfd_write(self.done_fd, 1)
