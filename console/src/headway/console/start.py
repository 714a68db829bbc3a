"""Bring a run's nodes up and hand them the run; whatever fails on the way leaves nothing behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from headway.common.errors import DeadlineError, HeadwayError
from headway.common.wire.client import Client
from headway.common.wire.messages.executor import Attached, AttachRun, StopRun
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.local import LocalEngine
from headway.trainer.config import LaunchConfig

START_LIMIT_S = 60.0
POLL_S = 0.02
LAST_EPOCH = 2**31
"""Newer than any driver's: an executor that got the run a moment ago gives it back."""


def start(run: Run, cluster: ClusterFolder, launch: LaunchConfig, tell: Callable[[str], None]) -> None:
    """Start the nodes, attach the run to each and wait for its driver.

    Raises:
        HeadwayError: a node or the driver did not come up; the nodes are ended again.
    """
    engine, nodes = LocalEngine(cluster), launch.nodes + launch.spares
    for stale in ("driver.json", "monitor.json"):
        (run.path / stale).unlink(missing_ok=True)
    try:
        for node in range(nodes):
            engine.start_node(node)
        for node in range(nodes):
            wait_for_node(cluster, node)
            _attach(cluster, node, run)
        tell(f"{_counted(launch.nodes, 'node')} and {_counted(launch.spares, 'spare')} are up")
        _wait_for_driver(run)
    except BaseException:  # Ctrl-C too: a half-started run must not live on
        abandon(run, cluster)
        raise


def abandon(run: Run, cluster: ClusterFolder) -> None:
    """Take the run from every node; nodes that were made for this run end."""
    if cluster.id == run.folder.run_id:
        LocalEngine(cluster).stop()
        return
    for node in range(cluster.nodes):
        carried, address = cluster.read(f"nodes/{node}.run"), cluster.address(node)
        if address is None or carried is None or carried["run_id"] != run.folder.run_id:
            continue
        with Client(address.endpoint, keys=cluster.keys, server_key=cluster.keys.public) as client:
            client.notify(StopRun(epoch=LAST_EPOCH, outcome="failed"))
            _poll(partial(_is_idle, cluster, node), START_LIMIT_S)


def wait_for_node(cluster: ClusterFolder, node: int, timeout_s: float = START_LIMIT_S) -> None:
    """Block until the node's executor has announced itself.

    Raises:
        HeadwayError: it did not, its log says why.
    """

    def is_up() -> bool:
        address = cluster.address(node)
        return address is not None and address.process.alive()

    if not _poll(is_up, timeout_s):
        raise HeadwayError(
            f"node {node} did not start within {timeout_s:.0f} s",
            remedy=_last_words(cluster.path / "logs" / f"n{node}-executor.log"),
        )


def _attach(cluster: ClusterFolder, node: int, run: Run) -> None:
    address, keys = cluster.address(node), cluster.keys
    assert address is not None
    with Client(address.endpoint, keys=keys, server_key=keys.public) as client:
        client.call(AttachRun(run_dir=str(run.path)), Attached, timeout_s=START_LIMIT_S / 3)


def _wait_for_driver(run: Run) -> None:
    def answers() -> bool:
        with contextlib.suppress(DeadlineError):
            run.status(timeout_s=1.0)
            return True
        return False

    if not _poll(answers, START_LIMIT_S):
        raise HeadwayError(
            f"the driver of {run.name} did not start within {START_LIMIT_S:.0f} s",
            remedy=_last_words(run.folder.logs / "n0-driver.log"),
        )


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _last_words(log: Path) -> str:
    """The end of a log, which goes with a new run's folder when its start fails."""
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f"{log.name} ends with: {lines[-1]}" if lines else f"{log.name} is empty"


def _is_idle(cluster: ClusterFolder, node: int) -> bool:
    return cluster.read(f"nodes/{node}.run") is None


def _poll(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
