"""A node's stay in a run as one process in the foreground, which an engine keeps and ends.

It starts the node's init, apart from itself: signals that an engine sends to all processes below
this one must not reach the workers. SIGTERM, SIGUSR1 and SIGINT announce that the machine will be
taken away: the driver is asked to let the node leave the run, or to stop the run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headway.common.errors import DeadlineError, HeadwayError, RemoteError
from headway.common.log import get_logger
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import Flush, StoreStatusReply
from headway.common.wire.messages.driver import ANNOUNCED, Accepted, Command
from headway.launch.engine import TERM_S
from headway.launch.init.signals import on_socket, received
from headway.launch.join.bundle import Bundle
from headway.launch.join.folder import NodeFolder
from headway.launch.join.leaving import bundle_of, leave
from headway.launch.join.ticket import Ticket
from headway.launch.lease.base import Holder, LeaseView
from headway.launch.lease.choose import lease_of
from headway.launch.machine.sweep import sweep

LOOK_S = 0.5
CALL_S = 2.0
AGAIN_S = 5.0
"""After a refusal: a spare may be ready by then. Also how often another driver is looked for."""
SPARE_S = 2.0
"""What is left of the notice is used to end by force what has not ended."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

log = get_logger("stay")

AtEnd = Literal["drain", "stop"]


class ForegroundNode:
    """``run`` returns the exit code.

    Args:
        folder: of the node.
        ticket: for the machine.
        at_end: what to ask of the driver when the machine will be taken away: that this node leaves
            the run, or, where all nodes end together, that the run stops with a checkpoint. A lease
            that says that the run is to stop comes before it.
        notice_s: time from SIGUSR1 until everything must have ended; ``TERM_S`` from the others.
        mark: a file to remove once the run is over and nothing of it is left on this machine.
        end: ends all processes of the node; returns the exit code.
        release: gives back what was taken for the run, once it is over.
    """

    def __init__(
        self,
        folder: NodeFolder,
        ticket: Ticket,
        *,
        at_end: AtEnd,
        notice_s: float,
        mark: Path | None = None,
        end: Callable[[], int],
        release: Callable[[Bundle], None],
    ) -> None:
        self._folder, self._ticket = folder, ticket
        self._at_end, self._notice_s, self._mark = at_end, notice_s, mark
        self._end, self._release = end, release
        self._request = secrets.token_hex(4)
        self._until: float | None = None
        self._asks_at = 0.0
        self._accepted_under = -1
        self._has_saved = False
        self._init: ProcessId | None = None

    def run(self) -> int:
        """Start the node and stay until it has ended."""
        with on_socket(*SIGNALS) as source:
            self._start()
            self._bundle = bundle_of(self._folder.path)
            arrived = select.poll()
            arrived.register(source, select.POLLIN)
            while self._is_there():
                if arrived.poll(LOOK_S * 1000):
                    self._take(received(source))
                _reap()
                if self._until is not None:
                    self._ask_when_due()
                    if time.monotonic() > self._until - SPARE_S:
                        log.warning("the notice is over; ending the node")
                        self._end()
            self._leave()
        return 0

    def _start(self) -> None:
        """Start the init, or keep a living one, by a process that ends.

        So the init is not below this one.
        """
        words = [sys.executable, "-m", "headway.launch.machine", "start"]
        started = subprocess.run(words, input=self._ticket.to_json(), text=True)
        if started.returncode:
            raise SystemExit(started.returncode)  # it has said why

    def _is_there(self) -> bool:
        """Whether the node lives; an init that its executor has outlived is replaced."""
        cluster, node = self._folder.cluster, self._ticket.node
        # by its number: at the end of the run it gives up its claim, then removes the folder
        self._init = cluster.init(node) or self._init
        if self._init is not None and not self._init.is_terminating():
            return True
        if cluster.living(node) is None:
            return False
        log.warning("the init of the node has ended; starting it again", node=node)
        self._start()
        return True

    # ---- planned ends -------------------------------------------------------------------------
    def _take(self, numbers: bytes) -> None:
        for number in numbers:
            notice_s = self._notice_s if number == signal.SIGUSR1 else TERM_S
            until = time.monotonic() + notice_s
            if self._until is None or until < self._until:
                self._until = until
                log.warning("the machine will be taken away", in_s=notice_s, asks=self._at_end)

    def _ask_when_due(self) -> None:
        """Ask the driver until it accepts, and each further driver: it may not know of this end."""
        if time.monotonic() < self._asks_at:
            return
        view = self._look()
        holder = view.holder
        if holder is None or not holder.endpoint:
            self._save_here()
            return
        try:
            if holder.epoch != self._accepted_under:
                self._ask_for_the_end(holder, "stop" if view.is_to_stop else self._at_end)
            self._asks_at = time.monotonic() + AGAIN_S
        except DeadlineError:
            self._save_here()

    def _save_here(self) -> None:
        """Have the node's own store write what memory holds, since no driver answers.

        The stays of the other machines do so where all are taken away.
        """
        endpoint = NodePaths(self._ticket.run_id, self._ticket.node).endpoint("ckpt_store")
        with contextlib.suppress(HeadwayError), Client(endpoint) as client:
            client.call(Flush(newest=True), StoreStatusReply, timeout_s=CALL_S)

    def _ask_for_the_end(self, holder: Holder, operation: AtEnd) -> None:
        """Raises DeadlineError: the driver does not answer."""
        try:
            self._ask(holder, operation)
            self._accepted_under = holder.epoch
        except RemoteError as error:
            log.warning("the driver refuses", reason=error.message)
            if operation == "drain" and not self._has_saved:  # so that less is lost at the end
                with contextlib.suppress(RemoteError):
                    self._ask(holder, "checkpoint")
                    self._has_saved = True

    def _ask(self, holder: Holder, operation: AtEnd | Literal["checkpoint"]) -> None:
        node = self._ticket.node
        # All nodes of an allocation ask for the same stop, once under each driver. Anything else
        # is this stay's own request: the node may leave, come back and leave again.
        request = "" if operation == "stop" else f"-{node}-{self._request}"
        command = Command(
            id=f"{operation}{request}-under-{holder.epoch}",
            operation=operation,
            name=ANNOUNCED if operation == "drain" else "",
            node=node,
            duration_s=max(0.0, (self._until or 0.0) - time.monotonic() - 2 * SPARE_S),
        )
        keys, server_key = self._folder.cluster.key_of("executor"), holder.server_key.encode()
        with Client(holder.endpoint, keys=keys, server_key=server_key) as client:
            client.call(command, Accepted, timeout_s=CALL_S)

    # ---- the end ------------------------------------------------------------------------------
    def _leave(self) -> None:
        """Leave nothing behind, as where the init was killed.

        Also give back what was taken, if this was the node of the run's driver.
        """
        leave(self._folder.path, self._bundle, self._ticket.node)
        # another node of the run may have begun here, and gone on to another machine
        sweep(self._folder.path.parent, self._bundle.control.parent.parent)
        if self._mark is not None and not self._folder.path.exists():
            self._mark.unlink(missing_ok=True)
        holder = self._look().holder
        if holder is not None and holder.is_over and holder.node == self._ticket.node:
            self._release(self._bundle)

    def _look(self) -> LeaseView:
        """At the lease; without a holder while it cannot be read."""
        try:
            return lease_of(self._bundle.control).look()
        except OSError as error:
            log.warning("the driver's lease cannot be read", reason=str(error))
            return LeaseView()


def _reap() -> None:
    """Collect orphans that have ended: as the first process of a container, this is theirs."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
