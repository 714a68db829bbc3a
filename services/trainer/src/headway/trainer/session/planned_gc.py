"""Python's garbage collection at steps that all ranks share, instead of whenever one counts enough.

A full collection stops a rank for tens of milliseconds. If each rank collects at a time of its own,
each of these pauses holds up all ranks; at the same step it does so once. torchtitan plans its
collections in the same way (``training.gc_freq``). A step leaves nothing for the collector.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager
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
        self._step = -1
        self._open: AbstractContextManager[int] | None = None

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        self._was_enabled = gc.isenabled()
        if self._every:
            gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)
        if self._every and self._was_enabled:
            gc.enable()

    def after(self, step: int) -> None:
        """Collect if that is planned after ``step`` completed steps."""
        self._step = step
        if self._every and step % self._every == 0:
            gc.collect()
        elif self._every and step % YOUNG_EVERY == 0:
            gc.collect(0)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        """Record a full collection; Python calls it before and after each one."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._open = self._recorder.record(Kind.GARBAGE_COLLECTION, step=self._step)
            self._open.__enter__()
        elif self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
