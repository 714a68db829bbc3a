"""All services as real processes on one emulated node, without any training:
a spare and its driver."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from headway.common.config import load, to_toml
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import child_environment, private_roots, wait_until
from headway.common.wire import codec
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import tag_of
from headway.common.wire.messages.ckpt_store import CheckpointComplete, StoreTrouble
from headway.common.wire.messages.executor import (
    Attached,
    AttachRun,
    Evaluation,
    LeftGeneration,
    Sample,
    StepMetrics,
    StoreOpened,
    WorkerBeat,
)
from headway.common.wire.messages.service import Describe, Description, Ping, Pong, ServiceBeat
from headway.common.wire.messages.worker import Acknowledged
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine
from headway.launch.join.bundle import Bundle
from headway.launch.lease.file import FileLease
from headway.testkit.played.gated_place import MEMBER, GatedPlace
from headway.testkit.wire import all_messages, example_of
from headway.trainer.config import RunConfig

NODE = 1  # the spare: it keeps services, and no rank trains on it
NEVER = {
    "driver_silent_s": 1e5,
    "node_silent_s": 1e6,
    "node_lost_s": 1e7,
    "orphan_limit_s": 1e8,
}
DIALS = {"driver": "executor", "monitor": "agent"}
"""Whose key a service's own clients show; executors have the most to say to a driver."""
GATE_LOG_BYTES = 256 << 10
"""Refusals are throttled and shortened: thousands take a few KiB, a single long one in full more
than this."""
ENDS = {"service.drain/1", "executor.stop_run/1", "executor.attach_run/1", "executor.driver_beat/1"}
"""Messages that end something when a holder of the key sends them; so would their mutations."""
LOCAL = [tag_of(message) for message in (WorkerBeat, StoreOpened, LeftGeneration, StepMetrics,
                                         Evaluation,
                                         Sample, ServiceBeat, CheckpointComplete,
                                         StoreTrouble)]  # fmt: skip
"""What the executor takes from its own node; that socket answers no ``Describe``."""


@dataclass(frozen=True)
class Target:
    """One socket of a living service: how to reach it, whose it is,
    and how to see that it serves."""

    endpoint: str
    pid: Callable[[], int]
    probe: Callable[[], object]
    corpus: list[bytes]
    server_key: bytes | None = None
    keys: KeyPair | None = None


@dataclass
class Node:
    """A spare node with all its services, and the driver and the monitor of its run beside it."""

    cluster: ClusterFolder
    run: RunDir
    paths: NodePaths
    beside: dict[str, subprocess.Popen[bytes]]
    worker: subprocess.Popen[bytes]

    def pid(self, name: str) -> int:
        """The pid of a service, as its guardian knows it now."""
        if name in self.beside:
            assert self.beside[name].poll() is None, (
                f"{name} has ended with {self.beside[name].returncode}"
            )
            return self.beside[name].pid
        if name == "executor":
            address = self.cluster.address(NODE)
            assert address is not None and address.process.alive()
            return address.process.pid
        left = json.loads((self.paths.sock_dir / "executor.json").read_text())
        process = ProcessId(**dict(left["services"])[name])
        assert process.alive(), f"{name} is dead"
        return process.pid

    def target(self, name: str) -> Target:
        """The socket called ``name``; a ``.stranger`` knows the server's key
        and is not admitted."""
        service, _, who = name.partition(".")
        if service == "executor" and who == "ipc":
            return Target(
                self.paths.endpoint("executor"),
                lambda: self.pid("executor"),
                self._beat,
                _corpus(LOCAL),
            )
        keys, server_key, endpoint = self._address(service)
        probe = _pinger(endpoint, keys, server_key)
        tags = _described(endpoint, keys, server_key).messages
        shown = KeyPair.generate() if who == "stranger" else keys
        return Target(endpoint, lambda: self.pid(service), probe, _corpus(tags), server_key, shown)

    def taken(self, service: str) -> list[str]:
        """Tags of the messages that a service takes from elsewhere, by its own word."""
        keys, server_key, endpoint = self._address(service)
        return _described(endpoint, keys, server_key).messages

    def _address(self, service: str) -> tuple[KeyPair | None, bytes | None, str]:
        if service == "executor":
            address = self.cluster.address(NODE)
            assert address is not None
            return self.cluster.key_of("console"), self._executor_key, address.endpoint
        if service in self.beside:
            folder = self.run.path if service == "driver" else self.paths.sock_dir
            facts = json.loads((folder / f"{service}.json").read_text())
            keys = self.cluster.key_of(DIALS[service])
            return keys, facts["server_key"].encode(), facts["endpoint"]
        return None, None, self.paths.endpoint(service)

    @property
    def _executor_key(self) -> bytes:
        return self.cluster.key_of("executor").public

    def _beat(self) -> None:
        """A worker's beat is acknowledged."""
        me = ProcessId.of(self.worker.pid)
        beat = WorkerBeat(
            worker=f"n{NODE}w99", pid=me.pid, start_ticks=me.start_ticks, status="idle"
        )
        with Client(self.paths.endpoint("executor"), accept=[Acknowledged]) as client:
            client.notify(beat)
            wait_until(lambda: bool(client.receive()), what="an acknowledgement")


def _pinger(endpoint: str, keys: KeyPair | None, server_key: bytes | None) -> Callable[[], object]:
    def ping() -> Pong:
        with Client(endpoint, keys=keys, server_key=server_key) as client:
            return client.call(Ping(), Pong, timeout_s=20.0)

    return ping


def _described(endpoint: str, keys: KeyPair | None, server_key: bytes | None) -> Description:
    with Client(endpoint, keys=keys, server_key=server_key) as client:
        return client.call(Describe(), Description, timeout_s=20.0)


def _corpus(tags: list[str] | tuple[str, ...]) -> list[bytes]:
    known = {tag_of(message): message for message in all_messages()}
    return [codec.encode(example_of(known[tag])) for tag in tags if tag not in ENDS]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Executor, dataloader, store, agent and zygote of a spare;
    its driver waits for node 0 in vain."""
    folder = tmp_path_factory.mktemp("house")
    with private_roots(), contextlib.ExitStack() as stack:
        cluster = ClusterFolder.create(folder / "cluster", nodes=2)
        run = RunDir.create(folder / "run", run_id=new_run_id())
        silent = [f"recovery.{name}={limit_s}" for name, limit_s in NEVER.items()]
        run.config.write_text(
            to_toml(load(RunConfig, overrides=[*silent, "launch.spares=1", "launch.standbys=0"]))
        )
        paths = NodePaths(run.run_id, NODE)
        engine = LocalEngine(cluster)
        stack.callback(engine.stop_node, NODE)
        engine.start_node(NODE)
        wait_until(lambda: cluster.address(NODE) is not None, what="the executor's address")
        address = cluster.address(NODE)
        assert address is not None
        server_key = cluster.key_of("executor").public
        console = cluster.key_of("console")
        with Client(address.endpoint, keys=console, server_key=server_key) as client:
            client.call(AttachRun(run_dir=str(run.path)), Attached, timeout_s=30.0)
        assert FileLease(run.path).claim(0) == 1
        beside = {
            name: stack.enter_context(_process(folder, *argv))
            for name, argv in _beside(cluster, run).items()
        }
        worker = stack.enter_context(_process(folder, "-c", "import time; time.sleep(3600)"))
        sockets = [paths.socket(name) for name in ("dataloader", "ckpt_store", "agent", "zygote")]
        announced = [run.path / "driver.json", paths.sock_dir / "monitor.json"]
        wait_until(
            lambda: all(p.exists() for p in [*sockets, *announced]),
            60.0,
            f"all services, see {run.logs}",
        )
        yield Node(cluster, run, paths, beside, worker)


def _beside(cluster: ClusterFolder, run: RunDir) -> dict[str, list[str]]:
    return {
        "driver": ["-m", "headway.controller", "driver", "--run", str(run.path), "--cluster",
                   str(cluster.path),
                   "--node", "0", "--epoch", "1"],
        "monitor": ["-m", "headway.health", "monitor", "--keys", str(cluster.path / "keys"),
                    "--run-id",
                    run.run_id, "--run-dir", str(run.path), "--node", "0"],
    }  # fmt: skip


@contextlib.contextmanager
def _process(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "beside.log").open("ab") as log:
        made = subprocess.Popen(
            [sys.executable, *arguments], stdout=log, stderr=log, env=child_environment()
        )
    try:
        yield made
    finally:
        made.kill()
        made.wait()


@pytest.fixture
def exporter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """The metrics port of the service named by the parameter, in a process of its own."""
    with private_roots() as (sockets, memory), socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        for path in (sockets, memory):
            path.mkdir(parents=True)
        places = {
            "dataloader": ["--shm-dir", memory],
            "ckpt_store": ["--shm-dir", memory, "--checkpoints", tmp_path],
            "agent": ["--shm-dir", memory, "--logs", tmp_path, "--node-file", tmp_path / "no.json",
                      "--keys", tmp_path / "keys", "--run-id", "0badcafe", "--node", "0"],
        }  # fmt: skip
        module = "health" if request.param == "agent" else request.param
        command = ["-m", f"headway.{module}", "agent" if module == "health" else "serve",
                   "--endpoint",
                   f"ipc://{sockets}/x.sock", "--metrics-port", port,
                   *places[request.param]]  # fmt: skip
        with _process(tmp_path, *map(str, command)) as made:
            url = f"http://127.0.0.1:{port}"
            wait_until(
                (sockets / "x.sock").exists, what=f"{request.param}, see {tmp_path / 'beside.log'}"
            )
            wait_until(lambda: _listens(port), what=f"the metrics port of {request.param}")

            def scrape() -> None:
                with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
                    assert answer.status == 200 and b"headway_wire_messages" in answer.read()

            def pid() -> int:
                assert made.poll() is None
                return made.pid

            yield Target(url, pid, scrape, [os.urandom(8)])


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Target]:
    """Where machines join a run that spans several, with one that has joined."""
    settings = [f"recovery.{name}={limit_s}" for name, limit_s in NEVER.items()]
    with private_roots(), contextlib.closing(GatedPlace(tmp_path, settings)) as place:
        holder = place.holder()
        place.join(MEMBER, place.keys, holder)
        before = place.members()
        assert before[MEMBER] == place.keys.public.decode()

        def probe() -> None:
            joined = place.join(MEMBER, place.keys, holder)
            assert Bundle.from_json(joined.bundle, source="the gate") == place.bundle
            assert place.members() == before
            assert place.admitted_by_monitor() == set(before.values())
            assert place.log.stat().st_size < GATE_LOG_BYTES, "refusals fill the disk"

        def pid() -> int:
            assert place.driver.poll() is None, f"the driver has ended, see {place.log}"
            return place.driver.pid

        yield Target(
            holder.join_endpoint,
            pid,
            probe,
            place.flawed(),
            holder.server_key.encode(),
            KeyPair.generate(),
        )
