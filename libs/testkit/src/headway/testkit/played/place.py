"""A driver process of a run of one rank; its executors, monitor and console are played by tests."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from headway.common.config import to_toml
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.polling import wait_until
from headway.common.wire.addresses import Network
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import (
    GetStatus,
    Join,
    Joined,
    NodeBeat,
    Relay,
    Seals,
    Status,
)
from headway.common.wire.messages.executor import (
    DriverBeat,
    KillWorker,
    ReadSeals,
    StopRun,
    StoreOpened,
    ToWorker,
    WorkerBeat,
    WorkerState,
)
from headway.launch.cluster import ClusterFolder
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.client import this_machine
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease
from headway.testkit.trainer.sessions import one_rank
from headway.trainer.config import RecoveryConfig, RunConfig

LIMIT_S = 90.0
QUIET = dataclasses.replace(  # no node is missed, and so none is started
    one_rank(), recovery=RecoveryConfig(node_silent_s=300.0, node_lost_s=500.0)
)
NOTES = (DriverBeat, ToWorker, KillWorker, ReadSeals, StopRun)
M = TypeVar("M", bound=Message)


class Peer:
    """A client of the driver that keeps what it hears."""

    def __init__(self, place: Place, role: str, accept: tuple[type[Message], ...]) -> None:
        holder = place.holder()
        keys, key = place.cluster.key_of(role), holder.server_key.encode()
        self.client = Client(holder.endpoint, keys=keys, server_key=key, accept=accept)
        self.heard: list[Message] = []

    def wait_for(self, kind: type[M], **fields: object) -> M:
        """The first message of a kind whose fields are as given."""

        def find() -> M | None:
            self.heard += self.client.receive()
            for one in self.heard:
                if isinstance(one, kind) and all(getattr(one, n) == v for n, v in fields.items()):
                    return one
            return None

        assert wait_until(lambda: find() is not None, LIMIT_S), f"{kind.__name__} {fields}"
        found = find()
        assert found is not None
        return found


class Place:
    """A run of one rank and its cluster's folder; to be closed."""

    def __init__(self, folder: Path, config: RunConfig = QUIET, nodes: int = 2) -> None:
        self.run = RunDir.create(folder / "run", run_id=new_run_id())
        self.run.config.write_text(to_toml(config))
        NodePaths(self.run.run_id, 0).create()
        self.cluster = ClusterFolder.create(folder / "cluster", nodes=nodes)
        self.lease = FileLease(self.run.control)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.clients: list[Client] = []

    def start(self) -> subprocess.Popen[bytes]:
        """Claim the next epoch and start a driver with it."""
        epoch = self.lease.claim(self.lease.look().claimed)
        assert epoch is not None
        return self.start_as(epoch)

    def start_as(self, epoch: int) -> subprocess.Popen[bytes]:
        """Start a driver with this epoch."""
        words = ["--run", self.run.path, "--cluster", self.cluster.path, "--node", 0]
        command = [sys.executable, "-m", "headway.controller", "driver", *map(str, words)]
        with self.log.open("ab") as log:
            process = subprocess.Popen([*command, "--epoch", str(epoch)], stdout=log, stderr=log)
        self.processes.append(process)
        return process

    @property
    def log(self) -> Path:
        """What the drivers print."""
        return self.run.path / "driver.log"

    def holder(self, epoch: int = 0) -> Holder:
        """The published holder, of this epoch or a later one."""

        def find() -> Holder | None:
            found = self.lease.look().holder
            return found if found is not None and found.epoch >= epoch else None

        assert wait_until(lambda: find() is not None, LIMIT_S), self.log.read_text()[-3000:]
        found = find()
        assert found is not None
        return found

    def peer(self, role: str, *accept: type[Message]) -> Peer:
        """A client with the keys of a role."""
        made = Peer(self, role, accept or NOTES)
        self.clients.append(made.client)
        return made

    def beat(self, status: WorkerState, **fields: Any) -> NodeBeat:
        """A full beat of node 0 with one worker."""
        worker = WorkerBeat(worker="n0w0", pid=4_194_304, start_ticks=1, status=status, **fields)
        version = 100 * ["idle", "joining", "running"].index(status) + worker.step
        return NodeBeat(
            run_id=self.run.run_id, node=0, pid=1, workers=(worker,), services={}, version=version
        )

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What the journal answers."""
        with contextlib.closing(sqlite3.connect(self.run.database)) as database:
            return database.execute(sql).fetchall()

    def close(self) -> None:
        """End the drivers."""
        for client in self.clients:
            client.close()
        for process in self.processes:
            process.kill()
            process.wait()


class JoinedPlace(Place):
    """A run over machines, none of which is there: nodes join with keys of their own."""

    def __init__(self, folder: Path, config: RunConfig = QUIET, nodes: int = 2) -> None:
        super().__init__(folder, config, nodes)
        shared = folder / "shared"
        (shared / "control").mkdir(parents=True)
        (self.run.path / "control").symlink_to(shared / "control")
        self.lease = FileLease(self.run.control)
        reach = ["false", "{name}"]
        hosts = [{"name": f"machine-{node}"} for node in range(nodes)]
        self.bundle = Bundle(
            run_id=self.run.run_id,
            name="run",
            nodes=nodes,
            config=self.run.config.read_text(),
            network=Network(),
            engine={"kind": "hosts", "shared": str(shared), "hosts": hosts, "reach": reach},
            shared=str(shared),
            secret=tokens.new_secret(),
        )
        self.bundle.save(self.run.bundle)

    def question(self, node: int, keys: KeyPair, **changes: Any) -> Join:
        """What the machine of a node sends, with a valid token; each node is another machine."""
        token = tokens.mint(self.bundle.secret, self.run.run_id, node)
        made = this_machine(node, keys.public, token=token)
        return changed(made, {"uid": f"machine-{node}", **changes})

    def join(self, node: int, keys: KeyPair, holder: Holder) -> Joined:
        """Have one node join, as its machine would, or ask again."""
        server_key = holder.server_key.encode()
        with Client(holder.join_endpoint, keys=keys, server_key=server_key) as client:
            return client.call(self.question(node, keys), Joined, timeout_s=LIMIT_S)


def changed(question: Join, changes: dict[str, Any]) -> Join:
    """The question with other fields."""
    return msgspec.structs.replace(question, **changes)  # type: ignore[type-var]


def begin(place: Place) -> Peer:
    """An executor whose worker was given its rank."""
    node = place.peer("executor")
    node.client.notify(place.beat("idle"))
    asked = node.wait_for(ReadSeals)
    assert (asked.run_id, asked.generation) == (place.run.run_id, -1)
    node.client.notify(Seals(run_id=place.run.run_id, node=0, generation=-1, sealed={}))
    assign = node.wait_for(ToWorker).assign
    assert assign is not None and (assign.generation, assign.rank) == (0, 0)
    assert place.rows("SELECT generation FROM generations") == [(0,)], "durable before it is sent"
    return node


def run_to_first_step(place: Place, node: Peer) -> None:
    """The worker joins, and completes a step."""
    node.client.notify(place.beat("joining", generation=0, rank=0))
    opened = StoreOpened(generation=0, host="h", port=1, secret="the-secret")
    node.client.notify(Relay(node=0, store=opened))
    assert node.wait_for(ToWorker, store_generation=0).store_secret == "the-secret"
    node.client.notify(place.beat("running", generation=0, rank=0, step=1))
    with place_console(place) as console:
        running = lambda: console.call(GetStatus(), Status).phase == "running"  # noqa: E731
        assert wait_until(running, LIMIT_S)


@contextlib.contextmanager
def place_console(place: Place) -> Iterator[Client]:
    """A console that is connected to the driver."""
    holder = place.holder()
    keys = place.cluster.key_of("console")
    with Client(holder.endpoint, keys=keys, server_key=holder.server_key.encode()) as client:
        yield client
