"""The wall clock: whether it was set, and whether it is still kept in time."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Final

from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import Lasting, again_s, changed

STA_UNSYNC: Final = 0x0040
"""adjtimex(2): the kernel's clock is not synchronised."""
_STATUS_AT: Final = 40
"""Bytes before ``status`` in ``struct timex`` on 64-bit Linux: modes, offset, freq, maxerror and
esterror, each with its padding."""
_TIMEX_BYTES: Final = 512
"""More than ``struct timex`` takes (208)."""


class ClockSource:
    """Compares the wall clock with the monotonic one between two readings."""

    def __init__(
        self,
        config: HealthConfig,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
        synchronised: Callable[[], bool | None] | None = None,
    ) -> None:
        self._config, self._wall_s, self._monotonic_s = config, wall_s, monotonic_s
        self._ask = synchronised or is_synchronised
        self._ahead_s: float | None = None
        self._was_synchronised = False
        self._lost = Lasting(again_s=again_s(config))

    def read(self) -> list[Finding]:
        """A step of the wall clock, or the loss of its synchronisation since the start."""
        ahead_s = self._wall_s() - self._monotonic_s()
        step_s = 0.0 if self._ahead_s is None else ahead_s - self._ahead_s
        self._ahead_s = ahead_s
        found: list[Finding] = []
        if abs(step_s) > self._config.clock_step_s:
            line = f"the wall clock was set by {step_s:+.1f} s"
            found.append(changed("clock_step", "clock", "node", line))
        state = self._ask()
        self._was_synchronised = self._was_synchronised or state is True
        if self._lost.is_due(self._was_synchronised and state is False, self._monotonic_s()):
            line = "the kernel no longer counts its clock as synchronised"
            found.append(changed("clock_unsynchronised", "clock", "node", line))
        return found

    def close(self) -> None:
        """Nothing is held."""


def is_synchronised() -> bool | None:
    """What the kernel says of its clock, adjtimex(2); None where it cannot be asked."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: only read
    try:
        result = _libc().adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if result < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    return not status & STA_UNSYNC


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
