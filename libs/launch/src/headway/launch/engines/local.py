"""Emulated nodes on this machine: one init and its executor each.

Each node has folders and sockets of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.freezer import is_frozen
from headway.common.node.janitor import end_node, end_run
from headway.common.node.process import ProcessId, spawn
from headway.common.polling import wait_until
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import NodeLost, Replaces
from headway.launch.init.executor import place_of

YOUNG_S = 10.0
"""A younger executor is not killed as hung: it may not have reported to the driver yet. It waits up
to 5 s for its workers first."""
END_LIMIT_S = 5.0


class LocalEngine:
    """Starts the inits of a cluster folder as detached processes.

    The processes of a node are found in ``/proc`` by the run id in their environment, so a node can
    be stopped without its cooperation.
    """

    def __init__(self, cluster: ClusterFolder) -> None:
        self.cluster = cluster
        self._started: dict[int, ProcessId] = {}

    @property
    def replaces(self) -> Replaces:
        """Nothing: emulated nodes share this machine."""
        return "nothing"

    def start_node(self, node: int, *, kill_hung: bool = False) -> None:
        """Start the init unless it is alive; it starts the executor, or keeps a living one.

        An init or executor that is stopped (state T) is ended and replaced, and so is an init in a
        frozen control group. With ``kill_hung`` an executor that has announced itself is ended too,
        unless it is younger than ``YOUNG_S``, and so is an init of that age that has none. A frozen
        process counts as ended once SIGKILL is pending.

        Raises:
            NodeLost: ``lose_node`` took the machine away.
            HeadwayError: a hanging process does not end, or the init cannot be started.
        """
        if self.cluster.lost(node):
            raise NodeLost(f"node {node} of {self.cluster.path} is gone", remedy="use a spare node")
        init = self._init(node)
        if init is not None and self._hangs(node, init, kill_hung=kill_hung):
            self._end(node, init)
            init = None
        # An executor that has lost its init may be well. If not, the new init notices, or the
        # next call with ``kill_hung`` ends it.
        self._end_hanging(node, kill_hung=kill_hung and init is not None)
        if init is not None:
            return
        words = ["--cluster", str(self.cluster.path.resolve()), "--node", str(node)]
        self._started[node] = spawn(
            [sys.executable, "-m", "headway.launch.init", *words],
            log_path=self.cluster.path / "logs" / f"n{node}-init.log",
            env=place_of(self.cluster.path, node).environment("init", os.environ),
            cwd=Path.cwd(),
        )

    def _init(self, node: int) -> ProcessId | None:
        """The living init of a node; one that was started here may not have claimed it yet."""
        for process in (self.cluster.init(node), self._started.get(node)):
            if process is not None and not process.is_terminating():
                return process
        return None

    def _hangs(self, node: int, init: ProcessId, *, kill_hung: bool) -> bool:
        """Whether the init can do nothing, or does not start an executor.

        With ``kill_hung`` the caller says that it should have started one by now: it may wait in
        the kernel for a disk, while its log is on it.
        """
        if init.state() == "T" or is_frozen(init.pid):
            return True
        return kill_hung and init.age_s() >= YOUNG_S and self.cluster.living(node) is None

    def _end_hanging(self, node: int, *, kill_hung: bool) -> None:
        """End the executor if it is stopped, or hangs by the caller's account (``kill_hung``).

        Its init, not we, starts the next one, so that there are never two.
        """
        executor = self.cluster.living(node)
        if executor is None:
            return
        if executor.state() == "T" or (kill_hung and executor.age_s() >= YOUNG_S):
            self._end(node, executor)

    def _end(self, node: int, process: ProcessId) -> None:
        process.kill()
        if not wait_until(process.is_terminating, END_LIMIT_S, every_s=0.002):
            raise HeadwayError(
                f"a process of node {node} (pid {process.pid}) could not be killed",
                remedy=f"it is stuck in the kernel: look at /proc/{process.pid}/stack, "
                "or restart the machine",
            )

    def has_ended(self, node: int) -> bool:
        """Whether the node was started and its init is gone; False for a lost node.

        An init that is stopped together with the executor counts as gone, as where all processes of
        the node were stopped.
        """
        # First the init, then the announcement: ``stop_node`` removes them in the other order.
        init = self._init(node)
        is_gone = init is None or (_is_stopped(init) and _is_stopped(self.cluster.living(node)))
        return is_gone and self.cluster.address(node) is not None and not self.cluster.lost(node)

    def stop_node(self, node: int) -> None:
        """End every process of the node and remove its sockets and shared memory."""
        ids = self._ids(node)
        # first, so that a driver does not mistake this for a failure
        self._forget(f"nodes/{node}.json")
        if (init := self._init(node)) is not None:  # so that it starts nothing again
            self._end(node, init)
        for run_id in ids:
            end_node(run_id, node)
        self._forget(f"nodes/{node}.run")

    def _forget(self, name: str) -> None:
        with contextlib.suppress(OSError):  # a read-only disk must not keep processes alive
            self.cluster.remove(name)

    def stop(self) -> list[str]:
        """End every node, then what the nodes shared: run lock, crash points.

        Raises:
            HeadwayError: a process does not end.
        """
        ids = {run_id for node in range(self.cluster.nodes) for run_id in self._ids(node)}
        for node in range(self.cluster.nodes):
            self.stop_node(node)
        for run_id in sorted(ids):
            end_run(run_id)
        return []

    def lose_node(self, node: int) -> None:
        """Remove the node for good, as a power cut would.

        Its processes, sockets and shared memory are removed (for drills).
        """
        (self.cluster.path / f"nodes/{node}.lost").touch()
        self.stop_node(node)

    def report_bad(self, node: int, reason: str) -> None:
        """Nothing to do: emulated nodes share this machine, which the run needs."""
        del node, reason

    def replace_machine(self, node: int, reason: str) -> str:
        """Raise HeadwayError: this machine is the only one."""
        del reason
        raise HeadwayError(
            f"node {node} shares this machine with the others", remedy="`headway node start`"
        )

    def fence(self, node: int, epoch: int) -> bool:
        """Nothing to do: the lease itself kills a former driver on this machine."""
        del node, epoch
        return True

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


def _is_stopped(process: ProcessId | None) -> bool:
    """Whether the process is stopped, or there is none."""
    return process is None or process.state() == "T"
