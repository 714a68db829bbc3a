"""What Headway asks of whoever owns the machines: start, stop and replace nodes."""

from __future__ import annotations

from typing import Protocol

from headway.common.errors import HeadwayError


class NodeLost(HeadwayError):
    """The machine is gone: starting its executor again is impossible."""


class Engine(Protocol):
    """Called by the driver (to mend) and by the console (to begin and end). Calls are idempotent and short."""

    def start_node(self, node: int) -> None:
        """Make sure that node's executor runs; end a stopped or frozen one first.

        Raises:
            NodeLost: the machine is gone.
        """

    def has_ended(self, node: int) -> bool:
        """Whether the engine knows that the node lives and its executor does not.

        False when it runs, and when nobody can tell: then silence is the only sign.
        """

    def stop_node(self, node: int) -> None:
        """End the executor and everything that runs on the node."""
