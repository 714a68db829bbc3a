"""How ranks of this node have ended, from the list that its executor keeps in shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from headway.common.node.worker_ends import path_of, read_ends
from headway.common.wire.messages.health import WorkerEnd, WorkerSignals

REPEAT_S = 60.0
"""An end is repeated in beats for so long: a monitor may start anew meanwhile, on another node."""


class EndSource:
    """Reads the list again when its file is another one."""

    def __init__(self, shm_dir: Path, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._shm_dir, self._clock_ns = shm_dir, clock_ns
        self._stamp: tuple[int, int] | None = None
        self._ends: tuple[WorkerEnd, ...] = ()

    def read(self, workers: Sequence[WorkerSignals]) -> tuple[WorkerEnd, ...]:
        """What ended lately, or is still the process of a flight ring; read after the rings.

        So a beat that shows a process dead that its executor has ended also says why.
        """
        try:
            stat = path_of(self._shm_dir).stat()
        except OSError:
            return ()
        stamp = (stat.st_ino, stat.st_mtime_ns)
        if stamp != self._stamp:
            self._stamp, self._ends = stamp, read_ends(self._shm_dir)
        if not self._ends:
            return ()
        now_ns, shown = self._clock_ns(), {(one.pid, one.start_ticks) for one in workers}
        dated = [(max(0, now_ns - end.at_ns) / 1e9, end) for end in self._ends]
        return tuple(
            msgspec.structs.replace(end, age_s=age_s)  # type: ignore[type-var]
            for age_s, end in dated
            if age_s <= REPEAT_S or (end.pid, end.start_ticks) in shown
        )
