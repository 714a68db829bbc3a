"""Which live runs the nodes of a cluster on this machine carry."""

from __future__ import annotations

from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.janitor import processes_of
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder


def live_runs(cluster: ClusterFolder) -> dict[int, Run]:
    """Node -> the live run that it carries, in order."""
    runs: dict[Path, Run] = {}
    found = {}
    for node, carried in sorted(cluster.runs().items()):
        path = Path(str(carried["run_dir"]))
        if (path / "run.json").exists():
            run = runs.setdefault(path, Run(path))
            if run.live:
                found[node] = run
    return found


def joinable_run(cluster: ClusterFolder, node: int) -> Run | None:
    """The live run on the cluster that was started with a node of this number."""
    for run in live_runs(cluster).values():
        launch = run.config.launch
        if node < launch.nodes + launch.spares:
            return run
    return None


def check_unused(cluster: ClusterFolder, first: int, last: int, remedy: str = "") -> None:
    """Check that no live run uses one of the nodes from ``first`` to ``last``.

    Raises:
        InputError: a live run uses one of the nodes from ``first`` to ``last``. A node whose
            processes have died is not used: starting it again does the run no harm.
    """
    for node, run in live_runs(cluster).items():
        if first <= node <= last and _is_up(cluster, run, node):
            stop = f"stop it first: `headway stop {run.name} --runs-dir {run.path.parent}`"
            raise InputError(
                f"node {node} of {cluster.path} is used by run {run.name}, which is live",
                remedy=stop + remedy,
            )


def _is_up(cluster: ClusterFolder, run: Run, node: int) -> bool:
    """Whether the executor or a process of the run lives on the node.

    The executor may just be started again.
    """
    executor = cluster.living(node)
    is_led = executor is not None and executor.state() != "T"
    return is_led or bool(processes_of(run.folder.run_id, node))
