"""What a cluster is like now: what differs from what was created, its runs, its logs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.node.files import replace_json
from headway.common.polling import wait_until
from headway.console.folder import run_list
from headway.console.lifecycle.machines import machines_of, provided
from headway.console.lifecycle.on_cluster import live_runs, started_runs
from headway.console.pods import rights
from headway.console.pods.kubeconfig import connect
from headway.console.pods.run import PodsRun
from headway.console.run import Run
from headway.launch.cluster import ClusterFolder
from headway.launch.engines import survey
from headway.launch.engines.choose import MachinesConfig, of_bundle, places_of
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.local import LocalEngine
from headway.launch.engines.remote.survey import Surveyed, network_of
from headway.launch.engines.slurm import survey as slurm
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.engines.slurm.machines import Place
from headway.launch.engines.ssh.config import HostsConfig
from headway.launch.engines.ssh.machines import HostMachines
from headway.launch.join.bundle import Bundle

LOG_BYTES = 8192
STATUS_LIMIT_S = 2.0
SETTLE_S = 5.0
"""How long nodes of a run that has just ended may take to leave their machines."""


@dataclass(frozen=True)
class ClusterState:
    """What ``headway cluster status`` shows."""

    cluster: str
    nodes: int
    """Spares included; 0 where Slurm provides as many as a run asks for."""
    drift: tuple[str, ...]
    """A sentence for each thing that is not as it was created."""
    runs: tuple[run_list.Entry, ...]
    """Those that may be live."""
    machines: tuple[Surveyed, ...] = ()
    """The listed ones, as they have answered now."""
    provided: str = ""
    """What gives each run its machines, where none are listed."""

    @property
    def lines(self) -> list[str]:
        """For people."""
        size = f"{self.nodes} nodes" if self.nodes else self.provided
        found = [f"{self.cluster}: {size}, {'no drift' if not self.drift else 'drifted'}"]
        found += [f"drift: {line}" for line in self.drift]
        for one in self.runs:
            steps = "?" if one.steps is None else one.steps
            found.append(f"run {one.name}: {one.state}, step {one.step}/{steps}")
        return found if self.runs else [*found, "no run"]


def state_of(cluster: ClusterFolder) -> ClusterState:
    """Look at every node or machine of the cluster, and at its runs.

    Raises:
        InputError: the folder holds no cluster.
    """
    nodes, config = cluster.nodes, machines_of(cluster.path)
    machines: list[Surveyed] = []
    if config is None:
        runs = list({run.path: run for run in live_runs(cluster).values()}.values())
        drift = _emulated(cluster)
    else:
        runs = started_runs(cluster)
        machines, drift = _asked(config, runs)
    drift += [line for run in runs for line in _of_run(run)]
    entries = tuple(run_list.entries(runs))
    by = "" if config is None else provided(config)
    return ClusterState(str(cluster.path), nodes, tuple(drift), entries, tuple(machines), by)


def _emulated(cluster: ClusterFolder) -> list[str]:
    engine, found = LocalEngine(cluster), []
    for node in range(cluster.nodes):
        if cluster.lost(node):
            found.append(f"node {node} was given up as lost")
        elif engine.has_ended(node):
            found.append(f"node {node} has no init, which would restart its executor")
        elif cluster.living(node) is None:
            found.append(f"node {node} has no executor")
    return found


def _asked(config: MachinesConfig, runs: Sequence[Run]) -> tuple[list[Surveyed], list[str]]:
    """The machines that are listed, and what is wrong with them, Slurm's or the API server."""
    try:
        if isinstance(config, KubernetesConfig):
            rights.check(connect(config))
            return [], []
        found = survey.survey(config)
        if isinstance(config, SlurmConfig):
            return [], slurm.out_of_service(one.host for run in runs for one in _places(run) if one)
        return found, [one.line() for one in found if one.troubles]
    except HeadwayError as error:
        return [], [str(error)]


def _places(run: Run) -> list[Place | None]:
    """Where Slurm has the nodes of a run now: machines are replaced. Raises HeadwayError."""
    path = run.folder.bundle
    return (places_of(Bundle.load(path)) or []) if path.exists() else []


def _of_run(run: Run) -> list[str]:
    """The nodes that its driver has lost; `headway status` shows the pods of one on Kubernetes."""
    if isinstance(run, PodsRun):
        return []
    try:
        status = run.status(STATUS_LIMIT_S, num_ranks=0)
    except DeadlineError:
        starts = run.starter is not None
        return [] if starts else [f"run {run.name}: no driver answers"]
    lost = [f"node {k} is {state}" for k, state in sorted(status.nodes.items()) if state in _GONE]
    return [f"run {run.name}: {line}" for line in lost]


_GONE = ("silent", "lost")


# ---- what is kept for Terraform ----------------------------------------------------------------
def keep(machines: Sequence[Surveyed], path: Path) -> None:
    """Write what a plan compares: a machine with trouble, or other facts, is a changed one.

    Raises:
        InputError: the file cannot be written.
    """
    rows = [
        {
            "name": one.name,
            "installed": one.answer.facts.installed if one.answer is not None else "",
            "gpus": one.answer.facts.gpus if one.answer is not None else 0,
            "trouble": one.trouble,
        }
        for one in machines
    ]
    try:
        replace_json(path, {"network": network_of(list(machines)), "machines": rows})
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}", remedy="name a file in an existing folder"
        ) from error


# ---- what is left, logs, shells -----------------------------------------------------------------
def left_of(cluster: ClusterFolder) -> list[str]:
    """A line for each thing that runs which are over have left on the cluster's machines.

    It looks again for a while where there is something. Nothing is looked for where nodes are
    emulated, as they are running.

    Raises:
        HeadwayError: Slurm does not answer.
    """
    config = machines_of(cluster.path)
    live = {run.folder.run_id for run in started_runs(cluster) if run.live}
    ended = [run_id for run_id in cluster.run_ids() if run_id not in live]
    found: list[str] = []

    def is_empty() -> bool:
        found[:] = survey.left(config, ended) if config is not None and ended else []
        return not found

    wait_until(is_empty, SETTLE_S, every_s=0.5)
    return found


@dataclass(frozen=True)
class NodeLogs:
    """The ends of a node's logs, each below a line ``==> NAME <==``."""

    node: int
    run: str
    """Empty where the logs are those of the node of a cluster on this machine."""
    text: str


def logs_of(cluster: ClusterFolder, nodes: Iterable[int] | None = None) -> list[NodeLogs]:
    """The newest lines of the logs of some nodes, of all by default.

    Raises:
        InputError: there is no such node, or no run on the cluster's machines.
        HeadwayError: a machine does not answer.
    """
    chosen = None if nodes is None else list(nodes)
    if machines_of(cluster.path) is None:
        _check_among(chosen, cluster.nodes)
        every, folder = range(cluster.nodes), cluster.path / "logs"
        return [NodeLogs(node, "", _ends(folder, node)) for node in chosen or every]
    found: list[NodeLogs] = []
    for run in started_runs(cluster):
        if run.folder.bundle.exists():
            bundle = Bundle.load(run.folder.bundle)
            _check_among(chosen, bundle.nodes)
            engine = of_bundle(bundle)
            every = range(bundle.nodes)
            found += [NodeLogs(k, run.name, engine.logs(k)) for k in chosen or every]
    if not found:
        raise InputError(
            f"no run is on the machines of {cluster.path}, so there are no logs",
            remedy="`headway logs RUN` shows those of a run that has ended",
        )
    return found


def _check_among(chosen: Sequence[int] | None, size: int) -> None:
    if wrong := [node for node in chosen or () if node >= size]:
        raise InputError(f"the cluster has no node {wrong[0]}", remedy=f"use 0 to {size - 1}")


def _ends(folder: Path, node: int) -> str:
    texts = []
    for path in sorted(folder.glob(f"n{node}-*.log")):
        data = path.read_bytes()[-LOG_BYTES:]
        texts.append(f"==> {path.name} <==\n{data.decode('utf-8', 'replace')}")
    return "\n".join(texts) or f"==> node {node} has no logs <=="


def reach(cluster: ClusterFolder, node: int, words: Sequence[str] = ()) -> list[str]:
    """The command line that runs words on the machine of a node; without any, a shell.

    Raises:
        InputError: there is no such node, or Slurm has given it no machine.
        HeadwayError: Slurm does not answer.
    """
    config = machines_of(cluster.path)
    if isinstance(config, HostsConfig):
        _check_among([node], len(config.hosts))
        return HostMachines(config).words(node, *map(shlex.quote, words))
    if config is None:
        _check_among([node], cluster.nodes)
        return ["env", "-C", str(cluster.path.resolve()), *(words or ["bash"])]
    for run in started_runs(cluster):
        places = _places(run) if run.live else []
        if node < len(places) and (place := places[node]) is not None:
            return slurm.on_machine(place.job, place.host, words)
    raise InputError(
        f"no live run of {cluster.path} has a machine for node {node}",
        remedy="Slurm gives a run its machines: start one",
    )


def as_json(machines: Sequence[Surveyed]) -> list[dict[str, object]]:
    """The machines, each with its facts, as one level of keys."""
    rows: list[dict[str, object]] = []
    for one in machines:
        facts = one.answer.facts if one.answer is not None else None
        row: dict[str, object] = {
            "name": one.name,
            "trouble": one.trouble,
            "installed": facts.installed if facts is not None else "",
            "gpus": facts.gpus if facts is not None else None,
            "shm_bytes": facts.shm_bytes if facts is not None else None,
            "clock_off_s": one.answer.clock_off_s if one.answer is not None else None,
        }
        rows.append(row)
    return rows
