"""The interface to whatever owns the machines: start, stop and give up nodes."""

from __future__ import annotations

from typing import Literal, Protocol

from headway.common.errors import HeadwayError

TERM_S = 30.0
"""Between SIGTERM and SIGKILL: Slurm's KillWait and Kubernetes' grace period by default."""


Replaces = Literal["nothing", "condemned", "lost"]
"""Machines that an engine replaces: none; those that a verdict, an eviction or a drain took out of
the run; all that are lost, except those that were drained."""


class NodeLost(HeadwayError):
    """The machine is gone: nothing can be started on it again."""


class Engine(Protocol):
    """Called by a run's driver during recovery and by the console to begin and end a run.

    Every call is idempotent and may be repeated by another process.
    """

    @property
    def replaces(self) -> Replaces:
        """For which machines ``replace_machine`` is called."""

    def start_node(self, node: int, *, kill_hung: bool = False) -> None:
        """Make sure that the node's init is running; the init keeps an executor running.

        A stopped init or executor (state T) is killed first. ``kill_hung`` says that the executor
        hangs: then it is killed too, unless it or its init has only just been started, and an init
        that has had no executor for long is replaced.

        Returns as soon as the init's process exists.

        Raises:
            NodeLost: the machine is gone.
            HeadwayError: a process could not be ended, or the init could not be started.
        """

    def has_ended(self, node: int) -> bool:
        """Whether the engine knows that the machine is running but the node's init is not.

        An executor that has ended does not count: its init restarts it. False while the init runs
        or if its state is unknown; then only missing beats reveal the loss.
        """

    def stop_node(self, node: int) -> None:
        """End the init, then the executor and everything else that runs on the node."""

    def lose_node(self, node: int) -> None:
        """Give the node up: kill what runs there.

        ``start_node`` of an emulated node then raises; a machine may be started again.
        """

    def report_bad(self, node: int, reason: str) -> None:
        """Take a machine that a verdict has condemned out of service, if the engine can.

        Raises:
            HeadwayError: the engine can, and it failed.
        """

    def replace_machine(self, node: int, reason: str) -> str:
        """Bring another machine for the node, on which ``start_node`` then starts it.

        What still runs on the one before ends. May take minutes, and ends by itself.

        Returns what remains to be said of the one before, for people; mostly empty.

        Raises:
            HeadwayError: there is no other machine yet; it may be tried again.
        """

    def fence(self, node: int, epoch: int) -> bool:
        """Make sure that no driver of an earlier epoch acts on the node.

        Returns False if that cannot be confirmed.
        """

    def stop(self) -> list[str]:
        """End every node, then what the nodes shared.

        Returns a line for each node that may still run.
        """
