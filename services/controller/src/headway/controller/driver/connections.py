"""The driver's connections to executors and the monitor: their addresses, and what to send them."""

from __future__ import annotations

import heapq
import time

from headway.common.wire.message import Message
from headway.common.wire.messages.driver import MonitorBeat, NodeBeat
from headway.common.wire.messages.executor import DriverBeat, SaveSnapshots
from headway.common.wire.server import Server
from headway.controller.decisions.state import RunState
from headway.controller.driver.clocks import RunClock
from headway.controller.journal.reports import Reports

MAX_ASKED = 32
"""Nodes that the engine is asked about at a time: each costs it a look at a file and a process."""
SAVES_S = 0.5
"""An order to all nodes to save is not repeated sooner, however many of them announce their end."""
FORMER_S = 2.0
"""An executor that was silent for this long is followed by one of a lower number, too."""


class Connections:
    """Executors dial the driver; each message of a node shows where the node is reached now."""

    def __init__(
        self,
        server: Server,
        state: RunState,
        reports: Reports,
        clock: RunClock,
        run_id: str,
        home: int,
    ) -> None:
        self._server, self._state, self._reports = server, state, reports
        self._clock, self._run_id, self.home = clock, run_id, home
        self._peers: dict[int, bytes] = {}
        self._incarnations: dict[int, int] = {}
        self._beat_at: dict[int, float] = {}
        self._began_at = time.monotonic()
        self._monitor = ("", "")
        self.monitor_peer: bytes | None = None
        self._shared: tuple[object, ...] = ()
        self._saves_at = -SAVES_S

    @property
    def nodes(self) -> set[int]:
        """The nodes that have reported."""
        return set(self._peers)

    def received(self, message: Message, peer: bytes) -> None:
        """Note where a node is reached. Of two executors of one node the newer one counts."""
        if isinstance(message, NodeBeat) and self._is_newest(message):
            self._peers[message.node] = peer
            self._incarnations[message.node] = message.incarnation
            self._beat_at[message.node] = time.monotonic()
            if message.is_ending:
                self.order_saves()

    def _is_newest(self, beat: NodeBeat) -> bool:
        """Incarnations only grow, unless the machine was wiped: then the former one is silent."""
        if beat.incarnation >= self._incarnations.get(beat.node, 0):
            return True
        return time.monotonic() - self._beat_at[beat.node] > FORMER_S

    def incarnation(self, node: int) -> int:
        """The executor process of the node that counts now, 0 before the first beat."""
        return self._incarnations.get(node, 0)

    def silent(self, limit_s: float) -> list[int]:
        """Return the nodes that have sent no beat for ``limit_s`` and are not lost.

        It returns at most the 32 that have been silent longest.
        """
        then = time.monotonic() - limit_s
        silent = [
            (beat_at, node)
            for node in self._state.nodes
            if (beat_at := self._beat_at.get(node, self._began_at)) < then
            and self._state.status_of(node) != "lost"
        ]
        return [node for _, node in heapq.nsmallest(MAX_ASKED, silent)]

    def is_cut_off(self, for_s: float, start_s: float) -> bool:
        """Whether this driver receives beats from at most half of the nodes.

        Lost nodes do not count; its own does. If it is so, most of the run may be on the other side
        of a partition.

        But with all ranks on this side nothing of the run is on the other one, however many spares
        are: a driver over there would go back to a checkpoint. Where both sides could lead, the
        one that holds the lease does, since neither gives it up.

        Args:
            for_s: since when the others are silent.
            start_s: how long a driver waits for their first beats.
        """
        expected = [n for n in self._state.nodes if self._state.status_of(n) != "lost"]
        if len(expected) < 3:  # neither of two nodes is a majority
            return False
        now, late = time.monotonic(), max(self._began_at + start_s - for_s, 0.0)
        heard = {n for n in expected if now - self._beat_at.get(n, late) < for_s}
        return 2 * len(heard) <= len(expected) and not heard.issuperset(
            self._state.fleet.rank_nodes.values()
        )

    def answer(self, beat: NodeBeat, peer: bytes) -> None:
        """Answer a node's beat."""
        if self._peers.get(beat.node) == peer:
            self._server.send(peer, self._beat(beat.node, beat.sent_ns))

    def refresh(self) -> None:
        """Send a beat to all nodes at once when something that concerns them has changed."""
        shared = (self._state.refill, self._monitor, tuple(self._state.fleet.rank_nodes.values()))
        if shared != self._shared:
            self._shared = shared
            for node, peer in self._peers.items():
                self._server.send(peer, self._beat(node))

    def _beat(self, node: int, echo_ns: int = 0) -> DriverBeat:
        return DriverBeat(
            run_id=self._run_id,
            epoch=self._state.epoch,
            refill=self._state.refill,
            active=self._state.is_active(node),
            monitor_endpoint=self._monitor[0],
            monitor_key=self._monitor[1],
            acknowledged=self._reports.acknowledged(node, self._incarnations.get(node, 0)),
            known_version=self._state.known_version(node),
            echo_ns=echo_ns,
            run_ns=self._clock.now_ns() if echo_ns else 0,
            measured=self._reports.measured,
        )

    def send(self, node: int, message: Message) -> bool:
        """Send a note to a node's executor.

        Returns False when it is not reached, and the note is dropped.
        """
        peer = self._peers.get(node)
        return peer is not None and self._server.send(peer, message)

    def send_all(self, message: Message) -> None:
        """Send a note to every executor that has reported."""
        for peer in self._peers.values():
            self._server.send(peer, message)

    def order_saves(self) -> None:
        """Have all stores make the newest snapshot in memory durable.

        Called when an end is announced, perhaps by each node of many.
        """
        if time.monotonic() - self._saves_at < SAVES_S:
            return
        self._saves_at = time.monotonic()
        self.send_all(SaveSnapshots(run_id=self._run_id, epoch=self._state.epoch))

    def set_monitor(self, beat: MonitorBeat, peer: bytes) -> None:
        """The monitor of the driver's own node is the run's monitor: agents are sent there."""
        self.monitor_peer = peer
        self._monitor = (beat.endpoint, beat.server_key)

    def to_monitor(self, message: Message) -> None:
        """Send a note to the monitor, if it has reported."""
        if self.monitor_peer is not None:
            self._server.send(self.monitor_peer, message)
