"""Python's garbage collection at steps that all ranks share, instead of whenever one counts enough.

A full collection stops a rank for tens of milliseconds. If each rank collects at a time of its own,
each of these pauses holds up all ranks; at the same step it does so once. torchtitan plans its
collections in the same way (``training.gc_freq``). A step leaves nothing for the collector.
"""

from __future__ import annotations

import gc
import time
from typing import Self

from headway.common.plan.schedule.actions import Kind
from headway.trainer.device.recorder import Recorder

YOUNG_EVERY = 10
"""Steps between collections of the youngest objects, which take well below a millisecond."""


class PlannedGc:
    """Automatic collection is off within a ``with`` block, and as it was before after it.

    Full collections in the block are recorded, Python's own among them.

    Args:
        every: steps between two full collections; 0 leaves collection to Python.
        recorder: of the rank.
    """

    def __init__(self, every: int, recorder: Recorder) -> None:
        self._every, self._recorder, self._was_enabled = every, recorder, False
        self._begun_ns = 0
        self._seen: list[tuple[int, int]] = []
        """Begin and end of the collections that are not recorded yet."""

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        self._was_enabled = gc.isenabled()
        if self._every:
            gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)
        self._record(-1)
        if self._every and self._was_enabled:
            gc.enable()

    def after(self, step: int) -> None:
        """Collect if that is planned after ``step`` completed steps."""
        if self._every and step % self._every == 0:
            gc.collect()
        elif self._every and step % YOUNG_EVERY == 0:
            gc.collect(0)
        self._record(step)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Keep the times of a full collection; Python calls it before and after each one.

        It may be called within the recorder, on any thread, so it records nothing itself.
        """
        if info["generation"] < 2:
            return
        if phase == "start":
            self._begun_ns = time.monotonic_ns()
        else:
            self._seen.append((self._begun_ns, time.monotonic_ns()))

    def _record(self, step: int) -> None:
        seen, self._seen = self._seen, []
        for begun_ns, ended_ns in seen:
            self._recorder.add(Kind.GARBAGE_COLLECTION, begun_ns, ended_ns, step=step)
