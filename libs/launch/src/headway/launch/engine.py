"""The interface to whatever owns the machines: start, stop and give up nodes."""

from __future__ import annotations

from typing import Protocol

from headway.common.errors import HeadwayError


class NodeLost(HeadwayError):
    """The machine is gone: nothing can be started on it again."""


class Engine(Protocol):
    """Called by a run's driver during recovery and by the console to begin and end a run.

    Every call is idempotent and may be repeated by another process.
    """

    def start_node(self, node: int, *, fence: bool = False) -> None:
        """Make sure that the node's init runs, which keeps an executor running.

        A stopped init or executor (state T) is ended first. With ``fence`` a running executor is
        ended too, because it hangs; one that was started a moment ago is given time, and so is one
        whose init had ended. An init that has long kept no executor is replaced then.

        Returns as soon as the init's process exists.

        Raises:
            NodeLost: the machine is gone.
            HeadwayError: a process could not be ended, or the init could not be started.
        """

    def has_ended(self, node: int) -> bool:
        """Whether the engine knows that the machine is running but the node's init is not.

        An executor that has ended below a living init is not meant: it is started again anyway.
        False when the init runs or its state is unknown; then only silence shows the loss.
        """

    def stop_node(self, node: int) -> None:
        """End the init, then the executor and everything else that runs on the node."""

    def lose_node(self, node: int) -> None:
        """Give the machine up for good: end what runs there; ``start_node`` raises from now on."""

    def report_bad(self, node: int, reason: str) -> None:
        """A verdict has given the machine up: have it taken out of service, if there is a way.

        Raises:
            HeadwayError: there is one, and it failed.
        """

    def fence(self, node: int, epoch: int) -> bool:
        """Make sure that no driver of an earlier epoch acts on the node; False if that cannot be
        confirmed."""

    def stop(self) -> list[str]:
        """End every node, then what the nodes shared; returns a line for each node that may still
        run."""
