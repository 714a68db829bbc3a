"""Ends the processes of a run on this machine: those of its node, or drivers of earlier epochs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.janitor import end_node, leave_run, processes_of, role_of
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.launch.engines.local import LocalEngine
from headway.launch.join import scratch
from headway.launch.join.folder import NodeFolder
from headway.launch.join.leaving import remove_secrets
from headway.launch.join.ticket import Ticket

END_S = 5.0
END_LOCK_S = 3.0
"""An end proceeds without the lock of another command: engines that wait for it would take the
machine for unreachable."""
LATE_LOCK_S = 0.5
"""How long an end waits for another command's lock where the machine is about to go."""
RELEASE_S = 2.0


def end(folder: NodeFolder, ticket: Ticket, lock_s: float = END_LOCK_S) -> int:
    """End the node; 0 once none of its processes is left, even if its disk has become read-only."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, HeadwayError):  # a frozen start keeps nothing alive
            stack.enter_context(scratch.locked(folder.path, lock_s))
        return _end(folder, ticket)


def end_earlier_start(folder: NodeFolder, ticket: Ticket) -> None:
    """End the node of an earlier start of the run; the caller has locked the folder.

    Raises:
        HeadwayError: one of its processes does not end.
    """
    if _end(folder, ticket):
        raise HeadwayError(
            f"what an earlier start of run {ticket.run_id} left on this machine does not end",
            remedy="restart the machine",
        )


def _end(folder: NodeFolder, ticket: Ticket) -> int:
    with contextlib.suppress(OSError):
        folder.leave()
    with contextlib.suppress(OSError):
        if folder.cluster.exists:
            LocalEngine(folder.cluster).stop_node(ticket.node)
    if processes_of(ticket.run_id, ticket.node):  # as where the node's folder was removed
        end_node(ticket.run_id, ticket.node)
    left = [str(one.pid) for one in processes_of(ticket.run_id, ticket.node)]
    if left:
        print(f"error: still running: {', '.join(left)}", file=sys.stderr)
        return 1
    try:
        remove_secrets(folder.path)  # before anything that waits: a new start makes others
    except OSError as error:
        print(f"the node's secrets stay on this machine: {error}", file=sys.stderr)
    with contextlib.suppress(OSError, HeadwayError):
        leave_run(ticket.run_id, wait_s=RELEASE_S)
    return 0


def fence(ticket: Ticket) -> None:
    """End drivers of the run on this machine, of epochs before the one in the ticket.

    The order may arrive late.

    Raises:
        HeadwayError: one does not end.
    """
    found = [one for one in processes_of(ticket.run_id) if role_of(one) == "driver"]
    drivers = [one for one in found if 0 <= epoch_of(one) < ticket.epoch]
    for one in drivers:
        one.kill()
    if not wait_until(lambda: all(one.is_terminating() for one in drivers), END_S):
        raise HeadwayError(
            f"a driver of run {ticket.run_id} could not be killed",
            remedy="it is stuck in the kernel: restart the machine",
        )


def epoch_of(driver: ProcessId) -> int:
    """The epoch in its command line; -1 if it has ended or is a child of the driver."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{driver.pid}/cmdline").read_bytes().split(b"\0")
        return int(words[words.index(b"--epoch") + 1])
    return -1
