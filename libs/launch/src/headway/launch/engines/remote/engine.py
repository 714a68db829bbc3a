"""The engine of a run over several machines, independent of how they are started and reached."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from headway.common.errors import HeadwayError
from headway.launch.engine import NodeLost, Replaces
from headway.launch.engines.remote.reach import UnreachableError, last_line
from headway.launch.join import records
from headway.launch.join.bundle import Bundle
from headway.launch.join.ticket import Ticket

END_LIMIT_S = 30.0
FENCE_LIMIT_S = 8.0
PREPARE_LIMIT_S = 660.0
AT_ONCE = 32
"""Number of machines that are contacted at the same time."""


class Machines(Protocol):
    """The machines of one run. Safe for several threads.

    Every method may raise ``UnreachableError``: then the state of the machine is unknown.
    """

    scratch: str
    """Folder on each machine's own disk, for logs and keys."""
    replaces: Replaces
    """Machines for which ``replace`` is called."""

    def name_of(self, node: int) -> str:
        """The machine of a node. Raises NodeLost if it has none."""

    def start(self, node: int, ticket: str, *, kill_hung: bool) -> None:
        """Make the machine join the run unless it has joined, and keep the node's init running.

        Args:
            node: number of the node.
            ticket: for the machine, with the secrets that it needs to join.
            kill_hung: kill an executor that hangs.

        Raises:
            NodeLost: there is no such machine.
            HeadwayError: it was refused, or did not start.
        """

    def call(self, node: int, verb: str, ticket: str, *, limit_s: float) -> str:
        """Run a verb of ``python -m headway.launch.machine``; return its output.

        It runs on the machine. The ticket has no secret.

        Raises:
            HeadwayError: it failed.
        """

    def cut_off(self, node: int, *, limit_s: float) -> bool:
        """Cut the machine off, if there is a way; True if it has certainly stopped."""

    def report_bad(self, node: int, reason: str, *, limit_s: float) -> None:
        """Have the machine taken out of service. Raises HeadwayError if that fails."""

    def replace(self, node: int, reason: str) -> str:
        """Bring another machine for the node; see ``Engine.replace_machine``."""

    def sweep(self) -> None:
        """Remove what the run has left behind, now that it is over.

        Only machines that are down, or no longer the run's, are swept.
        """

    def release(self) -> None:
        """Give back what was taken for this run only."""


class MachinesEngine:
    """An ``Engine`` over machines. Safe for several threads."""

    def __init__(self, bundle: Bundle, machines: Machines) -> None:
        self._bundle, self._machines = bundle, machines

    def prepare_all(self) -> None:
        """Have every machine that lacks the corpus prepare it, all at once.

        Raises:
            HeadwayError: the first that cannot; the others were tried all the same.
        """

        def prepare(node: int) -> None:
            self._call(node, "prepare", limit_s=PREPARE_LIMIT_S)

        for_each(prepare, range(self._bundle.nodes))

    def start_first(self) -> None:
        """Start node 0, which hosts the run's first driver.

        Raises:
            HeadwayError: it did not start.
        """
        self._machines.start(0, self._ticket(0, is_first=True), kill_hung=False)

    def start_node(self, node: int, *, kill_hung: bool = False) -> None:
        """Have the machine join the run, unless it has, and start its init.

        Raises:
            NodeLost: there is no machine for it.
            UnreachableError: nothing is known of it.
            HeadwayError: it was refused, or did not start.
        """
        self._machines.start(node, self._ticket(node), kill_hung=kill_hung)

    def start_all(self, nodes: Iterable[int]) -> None:
        """Start several at once.

        Raises:
            HeadwayError: the first that did not start; the others were tried all the same.
        """
        for_each(self.start_node, nodes)

    def has_ended(self, node: int) -> bool:
        """Always False: without a call to the machine only missing beats reveal that."""
        del node
        return False

    def stop_node(self, node: int) -> None:
        """End everything of the run on the machine.

        Raises:
            UnreachableError: nothing is known of it. HeadwayError: a process does not end.
        """
        self._call(node, "end")

    def lose_node(self, node: int) -> None:
        """Give the machine up: end what runs there, or have it cut off.

        Raises:
            HeadwayError: neither could be confirmed.
        """
        try:
            self.stop_node(node)
        except UnreachableError:
            if not self._machines.cut_off(node, limit_s=END_LIMIT_S):
                raise

    def report_bad(self, node: int, reason: str) -> None:
        """Have the machine taken out of service, if the cluster's file says how.

        Raises:
            HeadwayError: that failed.
        """
        self._machines.report_bad(node, reason, limit_s=END_LIMIT_S)

    @property
    def replaces(self) -> Replaces:
        """For which machines ``replace_machine`` is called."""
        return self._machines.replaces

    def replace_machine(self, node: int, reason: str) -> str:
        """Bring another machine for the node, on which ``start_node`` then starts it.

        Returns what remains to be said of the one before, for people; mostly empty.

        Raises:
            HeadwayError: there is no other machine yet; it may be tried again.
        """
        return self._machines.replace(node, reason)

    def fence(self, node: int, epoch: int) -> bool:
        """Make sure that no driver of an earlier epoch acts on the machine.

        The machine is cut off if it is not reached. Returns False if that cannot be confirmed.
        """
        try:
            self._call(node, "fence", limit_s=FENCE_LIMIT_S, epoch=epoch)
        except UnreachableError:
            return self._machines.cut_off(node, limit_s=FENCE_LIMIT_S)
        except HeadwayError:  # it was reached; its ranks may still be training, so leave it on
            return False
        return True

    def stop(self, nodes: Iterable[int] | None = None) -> list[str]:
        """End nodes, all by default, then give the machines back.

        Returns a line for each node that may still run, since its machine was not reached or a
        process does not end.

        Raises:
            HeadwayError: the machines cannot be given back.
        """
        left: list[str] = []

        def end(node: int) -> None:
            with contextlib.suppress(NodeLost):
                name = self.name_of(node)
                try:
                    self.stop_node(node)
                except HeadwayError as error:
                    left.append(f"node {node} on {name}: {error.message}")

        try:
            for_each(end, range(self._bundle.nodes) if nodes is None else nodes)
        finally:
            self._machines.release()
        return sorted(left)

    def sweep(self) -> None:
        """Remove what the run has left behind, now that it is over.

        Only machines that are down, or no longer the run's, are swept. What cannot be removed
        stays.
        """
        self._machines.sweep()

    def release(self) -> None:
        """The run is over and its nodes have ended: give back what was taken for it.

        Raises:
            HeadwayError: that failed.
        """
        self._machines.release()

    def logs(self, node: int) -> str:
        """The ends of the node's logs. Raises HeadwayError."""
        return self._call(node, "log")

    def fetch_records(self, run: Path) -> list[str]:
        """Copy the nodes' newest logs and records of steps into the run's folder here.

        Returns a sentence for each node from which that failed.
        """
        troubles: list[str] = []

        def fetch(node: int) -> None:
            try:
                records.unpack(self._records(node), run)
            except (HeadwayError, OSError, UnicodeDecodeError) as error:
                troubles.append(f"no records of node {node}: {error}")

        for_each(fetch, range(self._bundle.nodes))
        return sorted(troubles)

    def _records(self, node: int) -> str:
        """Return what the node saved at its end, else what its machine answers.

        A node that ends meanwhile saves all of it, and then removes it from its machine.
        """
        kept, text = self._bundle.records_of(node), ""
        if not kept.exists():
            try:
                text = self._call(node, "records")
            except HeadwayError:
                if not kept.exists():
                    raise
        if kept.exists():
            text = kept.read_text()
        return last_line(text)  # a shell may print a greeting before it

    def name_of(self, node: int) -> str:
        """The machine of a node. Raises NodeLost if it has none."""
        return self._machines.name_of(node)

    def _call(self, node: int, verb: str, *, limit_s: float = END_LIMIT_S, epoch: int = 0) -> str:
        """Call a verb with a ticket by which no machine can join: it has no secret."""
        ticket = Ticket.of(self._bundle, node, self._machines.scratch)
        asked = replace(ticket, token="", epoch=epoch).to_json()
        return self._machines.call(node, verb, asked, limit_s=limit_s)

    def _ticket(self, node: int, *, is_first: bool = False) -> str:
        scratch = self._machines.scratch
        return Ticket.of(self._bundle, node, scratch, is_first=is_first).to_json()


def for_each(work: Callable[[int], object], nodes: Iterable[int]) -> None:
    """For each node, several at once; raises the first error once all are done."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="machines") as pool:
        futures = [pool.submit(work, node) for node in nodes]
    for future in futures:
        future.result()
