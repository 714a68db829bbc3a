"""The interface to whatever owns the machines: start, stop and give up nodes."""

from __future__ import annotations

from typing import Protocol

from headway.common.errors import HeadwayError


class NodeLost(HeadwayError):
    """The machine is gone: its executor cannot be started again."""


class Engine(Protocol):
    """Called by a run's driver during recovery and by the console to begin and end a run.

    Every call is idempotent and may be repeated by another process.
    """

    def start_node(self, node: int, *, fence: bool = False) -> None:
        """Make sure that the node's executor runs; a stopped one (state T) is ended first.

        With ``fence`` a running executor is ended too, because it hangs. One that was started a
        moment ago and has not announced itself is given time.

        Returns as soon as its process exists.

        Raises:
            NodeLost: the machine is gone.
            HeadwayError: the old executor could not be ended, or a new one could not be started.
        """

    def has_ended(self, node: int) -> bool:
        """Whether the engine knows that the machine is running but its executor is not.

        False when the executor runs or its state is unknown; then only its silence shows the loss.
        """

    def stop_node(self, node: int) -> None:
        """End the executor and everything that runs on the node."""

    def lose_node(self, node: int) -> None:
        """Give the machine up for good: end what runs there; ``start_node`` raises from now on."""

    def stop(self) -> None:
        """End every node, then what the nodes shared."""
