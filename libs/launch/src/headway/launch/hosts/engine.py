"""Nodes of one run on machines that a command reaches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.launch.engine import NodeLost
from headway.launch.hosts.config import HostsConfig
from headway.launch.hosts.reach import Reach, UnreachableError
from headway.launch.joining import records, tokens
from headway.launch.joining.bundle import Bundle
from headway.launch.joining.ticket import Ticket

START_LIMIT_S = 90.0
END_LIMIT_S = 30.0
FENCE_LIMIT_S = 8.0
AT_ONCE = 32
"""Machines that are asked at the same time."""


class HostsEngine:
    """Node K of the run is the K-th machine of the list. Safe for several threads."""

    def __init__(self, bundle: Bundle, config: HostsConfig) -> None:
        self._bundle, self._config, self._reach = bundle, config, Reach(config)

    def start_first(self) -> None:
        """Start node 0, which hosts the run's first driver.

        Raises:
            HeadwayError: it did not start.
        """
        self._start(0, bundle=self._bundle.to_json())

    def start_node(self, node: int, *, fence: bool = False) -> None:
        """Have the machine join the run, unless it has, and start its init.

        Raises:
            NodeLost: the list has no such machine.
            UnreachableError: nothing is known of it.
            HeadwayError: it was refused, or did not start.
        """
        self._start(node, *(["--fence"] if fence else []))

    def _start(self, node: int, *words: str, bundle: str = "") -> None:
        ticket = self._ticket(node, bundle).to_json()
        name = self.name_of(node)
        self._reach.python(name, "start", *words, stdin=ticket, limit_s=START_LIMIT_S)

    def start_all(self, nodes: Iterable[int]) -> None:
        """Start several at once.

        Raises:
            HeadwayError: the first that did not start; the others were tried all the same.
        """
        _each(self.start_node, nodes)

    def has_ended(self, node: int) -> bool:
        """Never known without asking the machine: silence shows it."""
        del node
        return False

    def stop_node(self, node: int) -> None:
        """End everything of the run on the machine.

        Raises:
            UnreachableError: nothing is known of it. HeadwayError: a process does not end.
        """
        ticket = self._ticket(node).to_json()
        self._reach.python(self.name_of(node), "end", stdin=ticket, limit_s=END_LIMIT_S)

    def lose_node(self, node: int) -> None:
        """Give the machine up: end what runs there, or have it cut off.

        Raises:
            HeadwayError: neither could be confirmed.
        """
        try:
            self.stop_node(node)
        except UnreachableError:
            if not self._reach.cut_off(self.name_of(node), limit_s=END_LIMIT_S):
                raise

    def fence(self, node: int) -> bool:
        """Make sure that no driver acts on the machine; False if that cannot be confirmed."""
        name, ticket = self.name_of(node), self._ticket(node).to_json()
        with contextlib.suppress(HeadwayError):
            self._reach.python(name, "fence", stdin=ticket, limit_s=FENCE_LIMIT_S)
            return True
        return self._reach.cut_off(name, limit_s=FENCE_LIMIT_S)

    def stop(self) -> None:
        """End all nodes; a machine that is not reached is left out."""

        def end(node: int) -> None:
            with contextlib.suppress(UnreachableError):
                self.stop_node(node)

        _each(end, range(self._bundle.nodes))

    def logs(self, node: int) -> str:
        """The ends of the node's logs. Raises HeadwayError."""
        ticket = self._ticket(node).to_json()
        return self._reach.python(self.name_of(node), "log", stdin=ticket, limit_s=END_LIMIT_S)

    def fetch_records(self, run: Path) -> list[str]:
        """Copy the nodes' newest logs and records of steps into the run's folder here; returns a
        sentence for each node from which that failed."""
        troubles: list[str] = []

        def fetch(node: int) -> None:
            ticket, name = self._ticket(node).to_json(), self.name_of(node)
            try:
                text = self._reach.python(name, "records", stdin=ticket, limit_s=END_LIMIT_S)
                records.unpack(text, run)
            except HeadwayError as error:
                troubles.append(f"no records of node {node}: {error.message}")

        _each(fetch, range(self._bundle.nodes))
        return sorted(troubles)

    def name_of(self, node: int) -> str:
        """The machine of a node. Raises NodeLost if the list has none."""
        if not 0 <= node < len(self._config.hosts):
            raise NodeLost(
                f"hosts.toml lists {len(self._config.hosts)} machines, none for node {node}",
                remedy="add machines, or use fewer nodes and spares",
            )
        return self._config.hosts[node].name

    def _ticket(self, node: int, bundle: str = "") -> Ticket:
        run = self._bundle
        return Ticket(
            run_id=run.run_id,
            node=node,
            token=tokens.mint(run.secret, run.run_id, node),
            control=str(run.control),
            scratch=self._config.scratch,
            bundle=bundle,
        )


def _each(work: Callable[[int], None], nodes: Iterable[int]) -> None:
    """For each node, several at once; raises the first error once all are done."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="machines") as pool:
        futures = [pool.submit(work, node) for node in nodes]
    for future in futures:
        future.result()
