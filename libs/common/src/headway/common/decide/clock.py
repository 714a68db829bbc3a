"""A clock that leaves out its owner's own stalls, so that they are held against nobody else."""

from __future__ import annotations


class AwakeClock:
    """Seconds since the first ``advance``, as far as the owner was awake.

    While a process is blocked, what others sent it waits in its sockets and is handled afterwards,
    one message after the other: none of them must look like a long silence of the others.
    """

    def __init__(self, seen: float = float("nan")) -> None:
        self.now = 0.0
        self._seen = seen

    def advance(self, now: float, limit_s: float, stall_s: float | None = None) -> float:
        """Move to ``now``, in seconds of the caller's clock; returns how far that has moved.

        A longer pause than ``limit_s`` is the owner's own stall and counts as ``stall_s``, by
        default as ``limit_s``. A clock that went back adds nothing.
        """
        pause_s = max(0.0, now - self._seen) if self._seen == self._seen else 0.0  # NaN: the first
        self._seen = now
        longest_s = limit_s if stall_s is None else stall_s
        self.now += pause_s if pause_s <= limit_s else longest_s
        return pause_s
