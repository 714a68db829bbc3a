"""Runs readings that may block, such as on a hung mount, on separate threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from headway.common.wire.loop import Throttle

CLOSE_WAIT_S = 0.2

_log = structlog.get_logger(__name__)


class Background:
    """Calls ``task`` at once and then every ``period_s``, on a daemon thread.

    A task that blocks delays nothing else, not even the end of the process. If it raises, that is
    logged, at most every 10 s, and it is called again.
    """

    def __init__(self, name: str, task: Callable[[], object], period_s: float) -> None:
        self._name, self._task, self._period_s = name, task, period_s
        self._throttle = Throttle()
        self._wake, self._first = threading.Event(), threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Call the task now, if it is not running."""
        self._wake.set()

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait until the task has returned once; False if it has not within ``timeout_s``."""
        return self._first.wait(timeout_s)

    def close(self) -> None:
        """Stop calling the task. Waits for a running call for at most ``CLOSE_WAIT_S``."""
        self._is_ending = True
        self._wake.set()
        self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        while not self._is_ending:
            try:
                self._task()
            except Exception as error:  # a failing disk must not end the readings permanently
                suppressed = self._throttle.admit(self._name)
                if suppressed is not None:
                    _log.error("reading failed", reading=self._name, reason=repr(error))
            self._first.set()
            self._wake.wait(self._period_s)
            self._wake.clear()
