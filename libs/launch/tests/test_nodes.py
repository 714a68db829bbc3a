"""Nodes that are given a run and lose it again, with an executor that
answers over a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.errors import HeadwayError, InputError
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.common.wire.messages.executor import Attached, AttachRun, StopRun
from headway.common.wire.server import Server
from headway.launch import ClusterFolder, LocalEngine
from headway.launch.nodes import attach, bring_up, detach, wait_for_node
from headway.testkit.wire import serving

RUN_ID = "0badcafe"


class Executors:
    """An engine whose nodes are sockets; it keeps the calls that it got."""

    def __init__(self, cluster: ClusterFolder) -> None:
        self.cluster = cluster
        self.calls: list[str] = []
        self.servers = [self._server(node) for node in range(cluster.nodes)]

    def _server(self, node: int) -> Server:
        keys, admitted = self.cluster.key_of("executor"), self.cluster.public_of("console")
        handlers = {AttachRun: self._attach(node), StopRun: self._stop_run(node)}
        server = Server("tcp://127.0.0.1:0", handlers, keys=keys, allowed=admitted)
        self.cluster.announce(node, server.endpoint, ProcessId.current())
        return server

    def _attach(self, node: int):  # type: ignore[no-untyped-def]
        def handle(message: AttachRun, peer: bytes) -> Attached:
            del peer
            facts = {"run_dir": message.run_dir, "run_id": RUN_ID}
            self.cluster.write(f"nodes/{node}.run", facts)
            return Attached(node=node)

        return handle

    def _stop_run(self, node: int):  # type: ignore[no-untyped-def]
        def handle(message: StopRun, peer: bytes) -> None:
            del peer
            if message.run_id == RUN_ID:
                self.cluster.remove(f"nodes/{node}.run")

        return handle

    def start_node(self, node: int, *, kill_hung: bool = False) -> None:
        del kill_hung
        self.calls.append(f"start {node}")

    def has_ended(self, node: int) -> bool:
        raise NotImplementedError

    def stop_node(self, node: int) -> None:
        raise NotImplementedError

    def lose_node(self, node: int) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Executors]:
    made = Executors(ClusterFolder.create(tmp_path, nodes=2))
    with contextlib.ExitStack() as stack:
        for server in made.servers:
            stack.enter_context(serving(server))
        yield made


def test_a_run_is_attached_to_the_nodes_it_asked_for_and_taken_from_them(
    engine: Executors, tmp_path: Path
) -> None:
    cluster = engine.cluster
    attach(engine, cluster, tmp_path / "run", 1)
    assert engine.calls == ["start 0"]
    assert cluster.runs() == {0: {"run_dir": str(tmp_path / "run"), "run_id": RUN_ID}}
    assert cluster.is_carrying(RUN_ID) and not cluster.is_carrying("12345678")
    detach(engine, cluster, "12345678")
    assert cluster.is_carrying(RUN_ID), "another run's nodes are left alone"
    detach(engine, cluster, RUN_ID)
    assert not cluster.is_carrying(RUN_ID) and cluster.runs() == {}
    assert engine.calls == ["start 0"], "nodes of a cluster outlive the run"


def test_nodes_that_were_made_for_the_run_end_with_it(engine: Executors) -> None:
    detach(engine, engine.cluster, engine.cluster.id)
    assert engine.calls == ["stop"]


def test_a_lost_node_is_a_new_machine_when_a_user_starts_it(engine: Executors) -> None:
    (engine.cluster.path / "nodes" / "1.lost").touch()
    assert bring_up(engine, engine.cluster, 1).endpoint.startswith("tcp://")
    assert engine.calls == ["start 1"] and not engine.cluster.lost(1)
    with pytest.raises(InputError, match="the cluster has no node 2; use 0 to 1"):
        bring_up(engine, engine.cluster, 2)


def test_a_dead_executor_and_a_damaged_entry_carry_nothing(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=3)
    for node in range(3):
        cluster.write(f"nodes/{node}.run", {"run_dir": "x", "run_id": RUN_ID})
    (tmp_path / "nodes" / "0.run").write_text("{")
    (tmp_path / "nodes" / "1.json").write_text("{")
    cluster.announce(2, "tcp://127.0.0.1:1", ProcessId(4194305, 1))
    assert sorted(cluster.runs()) == [1, 2] and not cluster.is_carrying(RUN_ID)
    cluster.announce(2, "tcp://127.0.0.1:1", ProcessId.current())
    assert cluster.is_carrying(RUN_ID)


def test_a_node_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """A new run's folder is removed, and the log with it."""
    cluster = ClusterFolder.create(tmp_path, nodes=1)
    with pytest.raises(HeadwayError, match=r"n0-executor\.log is empty"):
        wait_for_node(cluster, 0, timeout_s=0.05)
    (cluster.path / "logs" / "n0-executor.log").write_text("one\nno memory left\n")
    with pytest.raises(HeadwayError, match=r"n0-executor\.log ends with: no memory left"):
        wait_for_node(cluster, 0, timeout_s=0.05)


def test_waiting_ends_with_the_condition_or_with_the_time() -> None:
    assert wait_until(lambda: True, 0.0)
    assert not wait_until(lambda: False, 0.05, every_s=0.01)


def test_a_cluster_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    cluster = ClusterFolder.create(tmp_path, nodes=1)
    cluster.write("cluster.json", {"id": cluster.id, "nodes": 1})
    engine = LocalEngine(cluster)
    with pytest.raises(InputError, match=r"has schema 0, .* uses schema 1; end its nodes with"):
        attach(engine, cluster, tmp_path / "run", 1)
    with pytest.raises(InputError, match="headway cluster remove"):
        bring_up(engine, cluster, 0)
    engine.remove()
    assert not cluster.exists
