"""The run's clock, which times in the journal refer to, and the offset of each node's clock.

It is the monotonic clock of the first driver's machine. A driver on another machine continues it by
adding the offset that the journal has for its node. Without an offset, as after a reboot of all
machines, it continues by the wall-clock time since the last event.
"""

from __future__ import annotations

import time

from headway.common.wire.messages.driver import NodeBeat
from headway.controller.journal.journal import Journal
from headway.controller.journal.rows import ClockReading

MOVED_S = 60.0
"""Shortest time between two records of a clock that drifts."""
_LARGEST = 2**62  # of a time in ns; more does not fit into the journal


class RunClock:
    """On one machine, its own monotonic clock: ``RunClock()``.

    Args:
        base_ns: what to add to this machine's clock.
        readings: of the journal, in order.
    """

    def __init__(self, base_ns: int = 0, readings: list[ClockReading] | None = None) -> None:
        self._base_ns = base_ns
        self._newest = {(one.node, one.boot_id): one for one in readings or ()}

    @classmethod
    def continued(cls, journal: Journal, node: int, boot_id: str) -> RunClock:
        """The clock of a run of several machines, by a driver on this boot of ``node``."""
        readings = journal.clocks()
        clock = cls(0, readings)
        own = clock._newest.get((node, boot_id))
        if own is not None:
            clock._base_ns = own.offset_ns
        elif (last := journal.last_event()) is not None:
            at_s, unix_s = last
            clock._base_ns = round((at_s + time.time() - unix_s) * 1e9) - time.monotonic_ns()
        return clock

    def now_ns(self) -> int:
        """The run's clock now."""
        return time.monotonic_ns() + self._base_ns

    def now_s(self) -> float:
        """The run's clock now, in seconds."""
        return self.now_ns() * 1e-9

    def own(self, node: int, boot_id: str) -> ClockReading | None:
        """The offset of this machine's clock, if the journal does not have it yet, else None."""
        return None if (node, boot_id) in self._newest else self._keep(node, boot_id, self._base_ns)

    def compare(self, beat: NodeBeat, boot_id: str) -> ClockReading | None:
        """The clock offset in a beat, if it is worth recording in the journal, else None.

        Recorded are the first estimate of a boot, one that is more than twice as certain as the one
        before, and one that contradicts it.
        """
        offset_ns, uncertainty_ns = beat.clock_offset_ns, beat.clock_uncertainty_ns
        if offset_ns is None or uncertainty_ns is None or not boot_id:
            return None
        if abs(offset_ns) > _LARGEST or not 0 <= uncertainty_ns <= _LARGEST:
            return None
        before = self._newest.get((beat.node, boot_id))
        if before is not None and not self._is_news(before, offset_ns, uncertainty_ns):
            return None
        return self._keep(beat.node, boot_id, offset_ns, uncertainty_ns)

    def _is_news(self, before: ClockReading, offset_ns: int, uncertainty_ns: int) -> bool:
        if 2 * uncertainty_ns < before.uncertainty_ns:
            return True
        moved_ns = abs(offset_ns - before.offset_ns)
        contradicts = moved_ns > uncertainty_ns + before.uncertainty_ns
        return contradicts and self.now_s() - before.monotonic_s >= MOVED_S

    def _keep(
        self, node: int, boot_id: str, offset_ns: int, uncertainty_ns: int = 0
    ) -> ClockReading:
        at_s, unix_s = self.now_s(), time.time()
        reading = ClockReading(node, boot_id, offset_ns, uncertainty_ns, at_s, unix_s)
        self._newest[node, boot_id] = reading
        return reading
