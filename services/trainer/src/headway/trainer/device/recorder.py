"""Where the compute path records its actions: the rank's flight ring, or nowhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Recorder(Protocol):
    """``headway.common.node.flight.FlightWriter`` is one."""

    def record(self, kind: int, **fields: int) -> AbstractContextManager[object]:
        """One record around a with block."""

    def set_generation(self, generation: int) -> None:
        """Stamp the records that follow."""


class NoRecorder:
    """Keeps nothing."""

    def record(self, kind: int, **fields: int) -> AbstractContextManager[object]:
        """A with block without effect."""
        del kind, fields
        return nullcontext()

    def set_generation(self, generation: int) -> None:
        """No effect."""
        del generation
