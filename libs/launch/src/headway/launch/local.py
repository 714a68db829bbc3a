"""Emulated nodes on this machine: one executor process each, with folders
and sockets of its own."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.janitor import end_node, end_run
from headway.common.node.process import ProcessId, spawn
from headway.common.polling import wait_until
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import NodeLost

ANNOUNCE_LIMIT_S = 20.0
"""An executor that has not announced itself this long after its start counts as hanging."""
END_LIMIT_S = 5.0


class LocalEngine:
    """Starts executors of a cluster folder as detached processes.

    The processes of a node are found in ``/proc`` by the run id in their environment, so a node can
    be stopped without its cooperation.
    """

    def __init__(self, cluster: ClusterFolder) -> None:
        self.cluster = cluster
        self._started: dict[int, ProcessId] = {}
        self._started_at: dict[int, float] = {}

    def start_node(self, node: int, *, fence: bool = False) -> None:
        """Start the executor unless it is alive; a stopped one (state T) is ended first.

        With ``fence`` a running one is ended too. A frozen one counts as ended
        once SIGKILL is pending.

        Raises:
            NodeLost: ``lose_node`` took the machine away.
            HeadwayError: the hanging executor does not end, or the new one cannot be started.
        """
        if self.cluster.lost(node):
            raise NodeLost(f"node {node} of {self.cluster.path} is gone", remedy="use a spare node")
        if self._is_starting(node):
            return
        address = self.cluster.address(node)
        announced = address.process if address is not None else None
        for process in {announced, self.cluster.owner(node)} - {None}:
            assert process is not None
            if process.is_doomed():
                continue
            if not fence and process.state() != "T":
                return
            self._end(node, process)
        self._started[node] = spawn(
            [
                sys.executable,
                "-m",
                "headway.trainer",
                "executor",
                "--cluster",
                str(self.cluster.path.resolve()),
                "--node",
                str(node),
            ],
            log_path=self.cluster.path / "logs" / f"n{node}-executor.log",
            env={
                **os.environ,
                "HEADWAY_RUN_ID": self.cluster.id,
                "HEADWAY_NODE": str(node),
                "HEADWAY_ROLE": "executor",
            },
            cwd=Path.cwd(),
        )
        self._started_at[node] = time.monotonic()

    def _is_starting(self, node: int) -> bool:
        """Whether an executor was started and has not announced itself, which may take seconds."""
        started, address = self._started.get(node), self.cluster.address(node)
        if started is None or started.is_doomed() or started.state() == "T":
            return False
        is_late = time.monotonic() - self._started_at[node] > ANNOUNCE_LIMIT_S
        return not is_late and (address is None or address.process != started)

    def _end(self, node: int, process: ProcessId) -> None:
        process.kill()
        if not wait_until(process.is_doomed, END_LIMIT_S, every_s=0.002):
            raise HeadwayError(
                f"the executor of node {node} (pid {process.pid}) does not end",
                remedy=f"it is stuck in the kernel: look at /proc/{process.pid}/stack, "
                "or restart the machine",
            )

    def has_ended(self, node: int) -> bool:
        """Whether the node's announced executor is gone; False for a lost node."""
        address = self.cluster.address(node)
        return address is not None and not self.cluster.lost(node) and address.process.is_doomed()

    def stop_node(self, node: int) -> None:
        """End every process of the node and remove its sockets and shared memory."""
        ids = self._ids(node)
        # first, so that a driver does not mistake this for a failure
        self.cluster.remove(f"nodes/{node}.json")
        for run_id in ids:
            end_node(run_id, node)
        self.cluster.remove(f"nodes/{node}.run")

    def stop(self) -> None:
        """End every node, then what the nodes shared: run lock, crash points."""
        ids = {run_id for node in range(self.cluster.nodes) for run_id in self._ids(node)}
        for node in range(self.cluster.nodes):
            self.stop_node(node)
        for run_id in sorted(ids):
            end_run(run_id)

    def lose_node(self, node: int) -> None:
        """Remove the node for good, as a power cut would: processes, sockets, shared
        memory (for drills)."""
        (self.cluster.path / f"nodes/{node}.lost").touch()
        self.stop_node(node)

    def resize(self, nodes: int) -> None:
        """Change the number of nodes; those beyond it end. New ones are not started."""
        for node in range(nodes, self.cluster.nodes):
            self.stop_node(node)
        self.cluster.resize(nodes)

    def remove(self) -> None:
        """End every node and remove the cluster; an absent one is fine."""
        if self.cluster.exists:
            self.stop()
            self.cluster.clear()

    def _ids(self, node: int) -> list[str]:
        carried = self.cluster.carried(node)
        ids = [self.cluster.id]
        if carried is not None and carried["run_id"] not in ids:
            ids.append(str(carried["run_id"]))
        return ids
