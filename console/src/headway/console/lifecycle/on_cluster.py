"""Which runs the nodes of a cluster carry, on this machine and on others."""

from __future__ import annotations

from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.janitor import processes_of
from headway.console.folder.starting import STARTING
from headway.console.gateway.remote_run import open_run
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.choose import MachinesConfig, config_of
from headway.launch.engines.ssh.config import HostsConfig
from headway.launch.join.bundle import Bundle


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
            raise used_error(f"node {node} of {cluster.path}", run, remedy)


def used_error(what: str, run: Run, remedy: str) -> InputError:
    """The refusal to end something that a live run uses."""
    stop = f"stop it first: `headway stop {run.name} --runs-dir {run.path.parent}`"
    return InputError(f"{what} is used by run {run.name}, which is live", remedy=stop + remedy)


def started_runs(cluster: ClusterFolder) -> list[Run]:
    """The runs on other machines that this cluster started and that may be live.

    Of those that are over only the id is kept.
    """
    found = []
    for run_id, path in cluster.noted().items():
        run = open_run(path) if (path / "run.json").exists() else None
        is_known = run is not None and run.folder.run_id == run_id
        if run is not None and is_known and (run.live or not run.outcome):
            found.append(run)
        elif path.parent.exists():  # else its folder may only not be mounted now
            cluster.settle(run_id)
    return found


def refuse_starting(runs: list[Run]) -> None:
    """Raises InputError while one of them is being started: it has no driver yet."""
    for run in runs:
        if (starter := run.starter) is not None:
            raise InputError(
                f"run {run.name} is being started ({starter})",
                remedy=f"wait for it; if that process has ended, remove {run.path / STARTING}",
            )


def users_of_leaving(cluster: ClusterFolder, config: MachinesConfig, nodes: int) -> dict[str, Run]:
    """What leaves if the cluster's machines become those of ``config`` -> a live run that uses it.

    Args:
        cluster: with the machines that it has now.
        config: with those that it is to have.
        nodes: how many a run may have then; 0 is any number.

    Raises:
        InputError: a run is being started, so that its machines are not known yet.
    """
    runs = started_runs(cluster)
    refuse_starting(runs)
    kept = {host.name for host in config.hosts} if isinstance(config, HostsConfig) else None
    found: dict[str, Run] = {}
    for run in runs:
        if not run.live or not run.folder.bundle.exists():
            continue
        bundle = Bundle.load(run.folder.bundle)
        used = config_of(bundle.engine)
        if isinstance(used, HostsConfig) and kept is not None:
            found |= {host.name: run for host in used.hosts if host.name not in kept}
        elif 0 < nodes < bundle.nodes:
            found[f"a machine beyond {nodes}"] = run
    return found


def _is_up(cluster: ClusterFolder, run: Run, node: int) -> bool:
    """Whether the executor or a process of the run lives on the node.

    The executor may just be started again.
    """
    executor = cluster.living(node)
    is_led = executor is not None and executor.state() != "T"
    return is_led or bool(processes_of(run.folder.run_id, node))
