"""Counts Ctrl-C and SIGTERM, for a command that stays with a run and acts on them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

TOGETHER_S = 1.0
"""Two signals within this time count as one: ``timeout`` and ``make`` both pass a SIGTERM on."""
STOPS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """How often the command has been interrupted, within ``counting``."""

    def __init__(self) -> None:
        self.count = 0
        self._last_s = float("-inf")

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Signals are counted within it; those that were held back before count too."""

        def count(number: int, frame: FrameType | None) -> None:
            del number, frame
            now = time.monotonic()
            if now - self._last_s > TOGETHER_S:
                self.count += 1
            self._last_s = now

        before = {number: signal.signal(number, count) for number in STOPS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
