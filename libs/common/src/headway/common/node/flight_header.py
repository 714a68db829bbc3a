"""The header of a flight ring: whose ring it is, and how far its rank has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, WORD_BYTES

_LINE = LINE_BYTES // WORD_BYTES
# words of the first page: line 1 says whose ring it is, line 2 what changes
RANK, CAPACITY, PID, START, GENERATION = range(_LINE, _LINE + 5)
HEAD, PROGRESS, ALIVE, WAITS, PASSED, PASSED_NS, ASKED_NS = range(2 * _LINE, 2 * _LINE + 7)


@dataclass(frozen=True, slots=True)
class Passed:
    """The newest record whose beginning or end a device has passed."""

    sequence: int
    """-1 before the first one."""
    is_end: bool
    since_ns: int
    """When that was first seen; ``time.monotonic_ns``."""
    asked_ns: int
    """When the device was last asked, and answered."""


class FlightHeader(NamedTuple):
    """``head`` counts records begun, ``progress`` records ended, over all processes of the rank.

    ``alive`` counts the turns of another thread of the process, 0 while it has none that counts: a
    process in which it stops cannot run, whatever its rank waits for.

    ``waits`` counts the beginnings and ends of the main thread's waits for others: it is odd while
    the thread waits.

    ``passed`` is where the device is, as ``DevicePosition`` last saw it; None without one.
    """

    rank: int
    process: ProcessId
    generation: int
    capacity: int
    head: int
    progress: int
    alive: int = 0
    waits: int = 0
    passed: Passed | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether the main thread waits for other ranks, or for the driver between generations."""
        return bool(self.waits & 1)


def read_header(words: memoryview, capacity: int) -> FlightHeader:
    """The header in plain values; ``words`` are those of a ring with room for ``capacity``."""
    return FlightHeader(
        rank=words[RANK],
        process=ProcessId(words[PID], words[START]),
        generation=words[GENERATION],
        capacity=capacity,
        head=words[HEAD],
        progress=words[PROGRESS],
        alive=words[ALIVE],
        waits=words[WAITS],
        passed=_passed(words) if words[ASKED_NS] else None,
    )


def _passed(words: memoryview) -> Passed:
    passed = words[PASSED]
    return Passed((passed >> 1) - 1, bool(passed & 1), words[PASSED_NS], words[ASKED_NS])
