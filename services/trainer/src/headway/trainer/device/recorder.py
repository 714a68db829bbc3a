"""Where the compute path records its actions: the rank's flight ring, or nowhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Recorder(Protocol):
    """``headway.common.node.flight.FlightWriter`` is one."""

    def record(self, kind: int, **fields: int) -> AbstractContextManager[int]:
        """One record around a with block, which gets its sequence number."""

    def name(self, seq: int, collective: int) -> None:
        """Add to the open record ``seq`` which collective it has issued."""

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """One record of what is over already."""

    def set_generation(self, generation: int) -> None:
        """Stamp the records that follow."""


class NoRecorder:
    """Keeps nothing."""

    def record(self, kind: int, **fields: int) -> AbstractContextManager[int]:
        """A with block without effect."""
        del kind, fields
        return nullcontext(-1)

    def name(self, seq: int, collective: int) -> None:
        """No effect."""
        del seq, collective

    def add(self, kind: int, start_ns: int, end_ns: int, *, step: int) -> None:
        """No effect."""
        del kind, start_ns, end_ns, step

    def set_generation(self, generation: int) -> None:
        """No effect."""
        del generation
