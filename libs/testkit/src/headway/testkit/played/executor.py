"""Executors of many nodes towards a real driver, all played by one process."""

from __future__ import annotations

import select
import time

from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import NodeBeat, Relay, Seals
from headway.common.wire.messages.executor import (
    DriverBeat,
    ReadSeals,
    StoreOpened,
    ToWorker,
    WorkerBeat,
    WorkerState,
)
from headway.controller.executor.clock_offset import ClockOffset
from headway.launch.lease.base import Holder
from headway.testkit.played.place import NOTES


class Inbox:
    """Which of many nodes may have something to read.

    One process plays them all: asking each for its messages would take more of the processor than
    the driver. Sending to a node's driver may hide what has arrived, so the node then looks itself.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._nodes: dict[int, PlayedExecutor] = {}

    def add(self, node: PlayedExecutor) -> None:
        """Watch the node's connection."""
        descriptor = node.client.socket.FD
        self._nodes[descriptor] = node
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, node: PlayedExecutor) -> None:
        """Watch it no more; before it is closed."""
        descriptor = node.client.socket.FD
        self._epoll.unregister(descriptor)
        del self._nodes[descriptor]

    def ready(self) -> list[PlayedExecutor]:
        """Never blocks."""
        found = self._epoll.poll(0, max(1, len(self._nodes)))
        return [self._nodes[descriptor] for descriptor, _ in found]


class PlayedExecutor:
    """One executor and its ranks."""

    clock: ClockOffset | None = None
    """The offset to the clock of the run; None where the node shares its machine."""

    def __init__(
        self,
        number: int,
        run_id: str,
        holder: Holder,
        keys: KeyPair,
        inbox: Inbox,
        num_ranks: int,
    ) -> None:
        self.number, self.run_id, self._inbox = number, run_id, inbox
        self._num_ranks = num_ranks
        self.status: WorkerState = "idle"
        self.generation, self.version, self.known, self.step = -1, 1, -1, 0
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
            accept=NOTES,
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
            workers = tuple(self._worker(index) for index in range(self._num_ranks))
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
            pid=self.number * self._num_ranks + index + 1,
            start_ticks=1,
            status=self.status,
            generation=self.generation,
            rank=self.number * self._num_ranks + index if self.generation >= 0 else -1,
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
            case _:
                pass
