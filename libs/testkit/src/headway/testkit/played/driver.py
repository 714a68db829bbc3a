"""A driver for tests of executors that decides nothing.

It holds the lease, answers beats and keeps what it is sent.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from headway.common.node.process import ProcessId
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat, Relay, Report, Seals, WorkerGone
from headway.common.wire.messages.executor import DriverBeat
from headway.common.wire.server import Server
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder, LeaseTerm, SupersededError
from headway.launch.lease.file import FileLease
from headway.testkit.wire.server_thread import serving

RENEW_S = 0.2


class PlayedDriver:
    """One thread with one ROUTER; to be closed."""

    def __init__(self, cluster: ClusterFolder, run_dir: Path, run_id: str) -> None:
        self.beats: list[NodeBeat] = []
        self.reports: dict[tuple[int, int], list[Report]] = {}
        """(node, incarnation) -> what came, in order."""
        self.notes: list[Message] = []
        self.answers = True
        self.stores = True
        self.measured = (-1, -1)
        self.ahead_ns = 0
        """How far the run's clock is ahead of this machine's."""
        self.run_id = run_id
        lease = FileLease(run_dir)
        epoch = lease.claim(lease.look().claimed)
        assert epoch is not None
        self.epoch = epoch
        self._peers: dict[int, bytes] = {}
        self._orders: list[tuple[int, Message]] = []
        self._renew_at = 0.0
        keys = cluster.key_of("driver")
        self._server = Server(
            "tcp://127.0.0.1:0",
            {
                NodeBeat: self._beat,
                Report: self._report,
                Seals: self._note,
                Relay: self._note,
                WorkerGone: self._note,
            },
            keys=keys,
            allowed=cluster.public_of("executor"),
        )
        me = ProcessId.current()
        holder = Holder(
            epoch, 0, me.pid, me.start_ticks, self._server.endpoint, keys.public.decode()
        )
        self._tenure = LeaseTerm(lease, holder)
        self._serving = serving(self._server, self._turn)
        self._serving.__enter__()

    def order(self, node: int, message: Message) -> None:
        """Send a note to the executor of a node that has sent a beat."""
        self._orders.append((node, message))

    def newest(self, node: int) -> NodeBeat | None:
        """The newest full beat of a node."""
        found = [b for b in self.beats if b.node == node and b.workers is not None]
        return found[-1] if found else None

    def close(self) -> None:
        """Stop renewing and answering, as a driver that has died."""
        self._serving.__exit__(None, None, None)

    def _turn(self) -> None:
        while self._orders:
            node, message = self._orders.pop(0)
            self._server.send(self._peers[node], message)
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + RENEW_S
            try:
                self._tenure.renew()
            except SupersededError:
                self.answers, self._renew_at = False, math.inf

    def _beat(self, beat: NodeBeat, peer: bytes) -> None:
        self.beats.append(beat)
        self._peers[beat.node] = peer
        if not self.answers:
            return
        full = self.newest(beat.node)
        is_known = full is not None and full.incarnation == beat.incarnation
        reports = self.reports.get((beat.node, beat.incarnation), [])
        answer = DriverBeat(
            epoch=self.epoch,
            refill=True,
            active=False,
            acknowledged=max((r.sequence for r in reports), default=0) if self.stores else 0,
            known_version=full.version if is_known and full is not None else -1,
            run_id=self.run_id,
            echo_ns=beat.sent_ns,
            run_ns=time.monotonic_ns() + self.ahead_ns,
            measured=self.measured,
        )
        self._server.send(peer, answer)

    def _report(self, report: Report, peer: bytes) -> None:
        del peer
        self.reports.setdefault((report.node, report.incarnation), []).append(report)

    def _note(self, message: Message, peer: bytes) -> None:
        del peer
        self.notes.append(message)
