"""Says when a complaint may be logged again, so that a flood of bad input fills no disk."""

from __future__ import annotations

import time

COMPLAINT_PERIOD_S = 10.0


class Throttle:
    """Per kind of complaint the first passes, then one a period, with the number held back meanwhile."""

    def __init__(self, period_s: float = COMPLAINT_PERIOD_S) -> None:
        self._period_s = period_s
        self._said_at_s: dict[str, float] = {}
        self._num_held_back: dict[str, int] = {}

    def admit(self, kind: str) -> int | None:
        """How many of this kind were held back since the last that passed; None: hold this one back too."""
        now_s = time.monotonic()
        if now_s - self._said_at_s.get(kind, float("-inf")) < self._period_s:
            self._num_held_back[kind] = self._num_held_back.get(kind, 0) + 1
            return None
        self._said_at_s[kind] = now_s
        return self._num_held_back.pop(kind, 0)
