"""Why a reader of the node's data rings waits, and when data last arrived for it.

A rank that waits for data has an empty ring. Either its daemon has not filled it, or another reader
of the same ring holds all slots; only the first is the daemon's fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.common.node import ring_file as at
from headway.common.node.process import ProcessId
from headway.common.node.segment import Segment
from headway.common.wire.messages.health import DataWait
from headway.health.sources.open_files import OpenFiles

DAEMON: Final = "daemon"
READERS: Final = "readers"
READY: Final = "ready"
_SEVERITY = (READY, READERS, DAEMON)


@dataclass(frozen=True, slots=True)
class Feed:
    """One reader's view of its ring; of several rings the one that blocks it most."""

    wait: DataWait
    age_s: float
    """Time since the ring's head last changed, as seen here: a restarted agent starts at 0."""
    writer_pid: int


@dataclass(slots=True)
class _Follower:
    ring: at.RingFile
    words: memoryview
    head: int
    moved_s: float

    def close(self) -> None:
        self.ring.close()


class FeedSource:
    """Reads every ``ring-*.bin`` of a folder. Rings may appear, disappear or be replaced."""

    def __init__(self, folder: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rings = OpenFiles(folder, "ring-", self._follow)

    def read(self) -> dict[ProcessId, Feed]:
        """One reading, by the process that reads."""
        found: dict[ProcessId, Feed] = {}
        for follower in self._rings.look():
            for reader, feed in self._read_one(follower):
                known = found.get(reader)
                if known is None or _SEVERITY.index(feed.wait) > _SEVERITY.index(known.wait):
                    found[reader] = feed
        return found

    def close(self) -> None:
        self._rings.close()

    def _read_one(self, follower: _Follower) -> Iterator[tuple[ProcessId, Feed]]:
        now_s, ring, words = self._clock_s(), follower.ring, follower.words
        head = ring.head
        if head != follower.head:
            follower.head, follower.moved_s = head, now_s
        lines = [at.reader_line(reader) for reader in range(ring.num_readers)]
        is_full = head - min(words[line + at.TAIL] for line in lines) >= ring.num_slots
        for line in lines:
            reader = ProcessId(words[line + at.READER_PID], words[line + at.READER_START])
            if reader.pid > 0:
                is_ready = words[line + at.TAIL] < head
                wait: DataWait = READY if is_ready else READERS if is_full else DAEMON
                yield reader, Feed(wait, now_s - follower.moved_s, ring.writer.pid)

    def _follow(self, path: Path) -> _Follower:
        segment = Segment.open(path, at.MAGIC, at.VERSION)
        ring = at.RingFile(segment)
        return _Follower(ring, segment.words, ring.head, self._clock_s())
