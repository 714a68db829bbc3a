"""Starts nodes, attaches a run to them, and detaches it again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.executor import Attached, AttachRun, StopRun
from headway.launch.cluster import ClusterFolder, NodeAddress
from headway.launch.engine import Engine

START_LIMIT_S = 60.0
LAST_EPOCH = 2**31
"""Higher than any driver's, so that an executor that has just attached the run obeys too."""


def attach(engine: Engine, cluster: ClusterFolder, run_dir: Path, nodes: int) -> None:
    """Start the first ``nodes`` nodes and attach the run to each; the first one hosts its driver.

    Raises:
        InputError: another version of Headway made the cluster.
        HeadwayError: a node did not start or refused the run. Call ``detach`` then.
    """
    cluster.check_schema()
    for node in range(nodes):
        engine.start_node(node)
    for node in range(nodes):
        _attach(cluster, node, AttachRun(run_dir=str(run_dir)))


def rejoin(cluster: ClusterFolder, node: int, run_dir: Path) -> None:
    """Attach a live run to one more node, which has been started; harmless if it carries the run.

    Raises:
        HeadwayError: the node has not started, or carries another run.
    """
    _attach(cluster, node, AttachRun(run_dir=str(run_dir), is_live=True))


def _attach(cluster: ClusterFolder, node: int, message: AttachRun) -> None:
    with _client(cluster, wait_for_node(cluster, node)) as client:
        client.call(message, Attached, timeout_s=START_LIMIT_S / 3)


def detach(engine: Engine, cluster: ClusterFolder, run_id: str) -> None:
    """Detach the run from every node; nodes that were created for this run end."""
    if cluster.id == run_id:
        engine.stop()
        return
    for node in range(cluster.nodes):
        address, carried = cluster.address(node), cluster.carried(node)
        if address is None or carried is None or carried["run_id"] != run_id:
            continue
        with _client(cluster, address) as client:
            client.notify(StopRun(epoch=LAST_EPOCH, outcome="failed", run_id=run_id))
            wait_until(partial(_is_idle, cluster, node), START_LIMIT_S)


def bring_up(engine: Engine, cluster: ClusterFolder, node: int) -> NodeAddress:
    """Start one node at the user's request and wait until it listens.

    A node that was marked as lost counts as a new machine.

    Raises:
        InputError: the cluster has no such node, or another version of Headway made it.
        HeadwayError: the node did not start.
    """
    cluster.check_schema()
    if node >= cluster.nodes:
        raise InputError(f"the cluster has no node {node}", remedy=f"use 0 to {cluster.nodes - 1}")
    cluster.remove(f"nodes/{node}.lost")
    engine.start_node(node)
    return wait_for_node(cluster, node)


def wait_for_node(
    cluster: ClusterFolder,
    node: int,
    timeout_s: float = START_LIMIT_S,
) -> NodeAddress:
    """Block until the node's executor has announced itself; returns its address.

    Raises:
        HeadwayError: it did not announce itself; the remedy quotes the end of its log.
    """
    if not wait_until(lambda: cluster.living(node) is not None, timeout_s):
        logs = [cluster.path / "logs" / f"n{node}-{name}.log" for name in ("executor", "init")]
        written = [log for log in logs if log.exists() and log.stat().st_size]
        raise HeadwayError(
            f"node {node} did not start within {timeout_s:.0f} s",
            remedy=last_line((written or logs)[0]),
        )
    address = cluster.address(node)
    assert address is not None
    return address


def last_line(log: Path) -> str:
    """The end of a log, because the log is removed with a new run's folder when its start fails."""
    return _ending(log.name, log.read_text(errors="replace") if log.exists() else "")


def last_line_in(logs: str, name: str) -> str:
    """Return the end of a log on another machine, from what ``MachinesEngine.logs`` returns."""
    _, _, rest = logs.partition(f"==> {name} <==\n")
    return _ending(name, rest.partition("\n==> ")[0])


def _ending(name: str, text: str) -> str:
    lines = text.strip().splitlines()
    return f"{name} ends with: {lines[-1]}" if lines else f"{name} is empty"


def _client(cluster: ClusterFolder, address: NodeAddress) -> Client:
    server_key = cluster.key_of("executor").public
    return Client(address.endpoint, keys=cluster.key_of("console"), server_key=server_key)


def _is_idle(cluster: ClusterFolder, node: int) -> bool:
    return cluster.carried(node) is None
