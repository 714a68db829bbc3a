"""Python's garbage collection at steps that all ranks share, instead of whenever one counts enough.

A full collection stops a rank for tens of milliseconds. If each rank collects at a time of its own,
each of these pauses holds up all ranks; at the same step it does so once. torchtitan plans its
collections in the same way (``training.gc_freq``). A step leaves nothing for the collector.
"""

from __future__ import annotations

import gc
from typing import Self

YOUNG_EVERY = 10
"""Steps between collections of the youngest objects, which take well below a millisecond."""


class PlannedGc:
    """Automatic collection is off within a ``with`` block, and as it was before after it.

    Args:
        every: steps between two full collections; 0 leaves collection to Python.
    """

    def __init__(self, every: int) -> None:
        self._every, self._was_enabled = every, False

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        if self._every:
            gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        if self._every and self._was_enabled:
            gc.enable()

    def after(self, step: int) -> None:
        """Collect if that is planned after ``step`` completed steps."""
        if self._every and step % self._every == 0:
            gc.collect()
        elif self._every and step % YOUNG_EVERY == 0:
            gc.collect(0)
