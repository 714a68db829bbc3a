"""What do the beats of many nodes cost their driver, sockets included?

``python -m benchmarks.beats``.

A real driver process gets a run of ``--nodes`` nodes with 8 ranks each. This process plays all
their executors over CURVE: it answers what a generation needs until every rank runs, and sends one
beat a second for each node, one more whenever a node changes. Reported is the processor time of the
driver in that time, as cores.
"""

from __future__ import annotations

import select
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import zmq
from headway.common.config import load
from headway.common.node.testing import private_roots
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import GetStatus, NodeBeat, Relay, Seals, Status
from headway.common.wire.messages.executor import (
    DriverBeat,
    KillWorker,
    ReadSeals,
    StopRun,
    StoreOpened,
    ToWorker,
    WorkerBeat,
)
from headway.controller.executor.clock_offset import ClockOffset
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.file import Holder
from headway.testkit.trainer.driver_place import Place
from headway.trainer.config import RunConfig

from benchmarks.report import finish, parser

RANKS = 8
LIMIT_CORES = 0.2
ORDERS = (DriverBeat, ToWorker, KillWorker, ReadSeals, StopRun)


class Inbox:
    """Which of many nodes may have something to read.

    One process plays them all: asking each for its messages would take more of the processor than
    the driver. Sending to a node's driver may hide what has arrived, so the node then looks itself.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._nodes: dict[int, Node] = {}

    def add(self, node: Node) -> None:
        """Watch the node's connection."""
        descriptor = node.client.socket.getsockopt(zmq.FD)
        self._nodes[descriptor] = node
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, node: Node) -> None:
        """Watch it no more; before it is closed."""
        descriptor = node.client.socket.getsockopt(zmq.FD)
        self._epoll.unregister(descriptor)
        del self._nodes[descriptor]

    def ready(self) -> list[Node]:
        """Never blocks."""
        found = self._epoll.poll(0, max(1, len(self._nodes)))
        return [self._nodes[descriptor] for descriptor, _ in found]


class Node:
    """One executor and its ranks."""

    clock: ClockOffset | None = None
    """Of a node on a machine of its own."""

    def __init__(
        self, number: int, run_id: str, holder: Holder, keys: KeyPair, inbox: Inbox
    ) -> None:
        self.number, self.run_id, self._inbox = number, run_id, inbox
        self.generation, self.status, self.version, self.known, self.step = -1, "idle", 1, -1, 0
        self.beaten_at = 0.0
        self.follow(holder, keys)

    def follow(self, holder: Holder, keys: KeyPair) -> None:
        """Connect to a driver, which knows nothing of this node yet."""
        self.known, self.beaten_at = -1, 0.0
        self.client = Client(
            holder.endpoint,
            keys=keys,
            server_key=holder.server_key.encode(),
            identity=f"n{self.number}-1".encode(),
            accept=ORDERS,
        )
        self._inbox.add(self)

    def leave(self) -> None:
        """Close the connection to the driver."""
        self._inbox.remove(self)
        self.client.close()

    def beat(self) -> None:
        """Full if the driver does not hold the newest version, else only that the node lives."""
        self.beaten_at = time.monotonic()
        workers = None
        if self.known != self.version:
            workers = tuple(self._worker(index) for index in range(RANKS))
        now_ns = time.monotonic_ns()
        clock = self.clock.estimate(now_ns) if self.clock is not None else None
        self.client.notify(
            NodeBeat(
                run_id=self.run_id,
                node=self.number,
                pid=1,
                incarnation=1,
                version=self.version,
                workers=workers,
                services={} if workers else None,
                step=self.step,
                sent_ns=now_ns if self.clock is not None else 0,
                clock_offset_ns=clock.offset_ns if clock is not None else None,
                clock_uncertainty_ns=clock.uncertainty_ns if clock is not None else None,
            )
        )

    def _worker(self, index: int) -> WorkerBeat:
        return WorkerBeat(
            worker=f"n{self.number}w{index}",
            pid=self.number * RANKS + index + 1,
            start_ticks=1,
            status=self.status,
            generation=self.generation,
            rank=self.number * RANKS + index if self.generation >= 0 else -1,
            step=self.step,
        )

    def answer(self) -> None:
        """Do what the driver asks for."""
        while messages := self.client.receive():
            before = self.status
            for message in messages:
                self._take(message)
            if self.status != before:
                self.version += 1
                self.beat()

    def _take(self, message: Message) -> None:
        match message:
            case DriverBeat():
                self.known = message.known_version
                if self.clock is not None and message.echo_ns:
                    self.clock.add(message.echo_ns, message.run_ns, time.monotonic_ns())
            case ReadSeals():
                found = Seals(
                    run_id=self.run_id, node=self.number, generation=message.generation, sealed={}
                )
                self.client.notify(found)
            case ToWorker(assign=assign) if assign is not None:
                self.generation, self.status = assign.generation, "joining"
                if assign.rank == 0:
                    opened = StoreOpened(generation=assign.generation, host="h", port=1)
                    self.client.notify(Relay(node=self.number, store=opened))
            case ToWorker() if message.store_generation >= 0:
                self.status, self.step = "running", 1


def configuration(nodes: int) -> RunConfig:
    """A run of so many ranks; nothing of it is ever trained."""
    world = nodes * RANKS
    return load(
        RunConfig,
        overrides=[
            f"parallel.tp={RANKS}", "parallel.pp=1", f"parallel.dp={nodes}", "model.heads=8",
            f"launch.nodes={nodes}", f"launch.ranks_per_node={RANKS}", "launch.spares=0",
            f"train.global_batch_size={nodes}", "train.micro_batch_size=1",
            "recovery.join_timeout_s=600", "recovery.node_silent_s=100", "recovery.node_lost_s=200",
            f"train.steps={world}",
        ],
    )  # fmt: skip


def measure(folder: Path, nodes: int, seconds: float) -> dict[str, float | int]:
    """Cores that a driver of so many nodes needs at one beat a second each."""
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 16384)
    place, inbox = Place(folder, configuration(nodes), nodes), Inbox()
    executors: list[Node] = []
    driver = place.start()
    try:
        holder, keys = place.holder(), place.cluster.key_of("executor")
        executors += [Node(n, place.run.run_id, holder, keys, inbox) for n in range(nodes)]
        start_s = time.monotonic()
        until_running(executors, inbox, holder, place.cluster)
        started_s = time.monotonic() - start_s
        used = cores(psutil.Process(driver.pid), executors, seconds)
    finally:
        place.close()
        for node in executors:
            node.leave()
    return {"nodes": nodes, "ranks": nodes * RANKS, "cores": used, "until_running_s": started_s}


def until_running(
    executors: Sequence[Node], inbox: Inbox, holder: Holder, cluster: ClusterFolder
) -> None:
    """Play the executors until every rank runs."""
    with console_of(holder, cluster) as console:

        def is_running() -> bool:
            turn(executors, inbox)
            return phase_of(console) == "running"

        assert wait_until(is_running, 300.0, every_s=0.01), "the run does not begin"


def console_of(holder: Holder, cluster: ClusterFolder) -> Client:
    """A console's connection to the driver."""
    keys, server_key = cluster.key_of("console"), holder.server_key.encode()
    return Client(holder.endpoint, keys=keys, server_key=server_key)


def phase_of(console: Client) -> str:
    """What the driver reports."""
    return console.call(GetStatus(num_ranks=0), Status, timeout_s=60.0).phase


def turn(executors: Sequence[Node], inbox: Inbox) -> None:
    """Read what has arrived, and send the beats that are due."""
    for node in inbox.ready():
        node.answer()
    due_s = time.monotonic() - 1.0
    for executor in executors:
        if executor.beaten_at < due_s:
            executor.beat()
            executor.answer()


def cores(driver: psutil.Process, executors: Sequence[Node], seconds: float) -> float:
    """Cores of the driver; beats are spread over each second, as those of real nodes are."""
    begin_s, before, sent = time.monotonic(), driver.cpu_times(), 0
    while (elapsed := time.monotonic() - begin_s) < seconds:
        while sent < elapsed * len(executors):
            executor = executors[sent % len(executors)]
            executor.step += 1
            executor.beat()
            executor.answer()
            sent += 1
        time.sleep(0.001)
    after = driver.cpu_times()
    return (after.user + after.system - before.user - before.system) / elapsed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns 0 when no run needs more than ``LIMIT_CORES``."""
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, nargs="+", default=[128, 1536])
    options.add_argument("--seconds", type=float, default=20.0)
    given = options.parse_args(argv)
    rows = []
    for nodes in given.nodes:
        with private_roots(), tempfile.TemporaryDirectory(prefix="headway-beats-") as folder:
            rows.append(measure(Path(folder), nodes, given.seconds))
        print(", ".join(f"{key} {value:.3g}" for key, value in rows[-1].items()), flush=True)
    slow = [row for row in rows if row["cores"] > LIMIT_CORES]
    wrong = [f"{row['nodes']} nodes need {row['cores']:.2f} cores" for row in slow]
    return finish(given.out, wrong, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
