"""Chooses the engine of a run from what its folder records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.common.config import from_dict, to_dict
from headway.common.errors import HeadwayError, InputError
from headway.common.node.run_dir import RunDir
from headway.common.plan.topology import Topology
from headway.launch.cluster import ClusterFolder
from headway.launch.engine import Engine
from headway.launch.engines.kubernetes.config import KubernetesConfig
from headway.launch.engines.kubernetes.machines import KubernetesMachines
from headway.launch.engines.local import LocalEngine
from headway.launch.engines.remote import reach
from headway.launch.engines.remote.engine import Machines, MachinesEngine, for_each
from headway.launch.engines.slurm.allocation import allocate
from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun
from headway.launch.engines.slurm.machines import Place, SlurmMachines
from headway.launch.engines.ssh.config import HostsConfig, HostsRun
from headway.launch.engines.ssh.machines import HostMachines
from headway.launch.join.bundle import Bundle

MachinesConfig = HostsConfig | SlurmConfig | KubernetesConfig
DESCRIBE_LIMIT_S = 30.0


_KINDS: dict[str, type[MachinesConfig]] = {
    "hosts": HostsRun,
    "slurm": SlurmRun,
    "kubernetes": KubernetesConfig,
}
"""Kind of an engine over machines -> what a bundle keeps of it."""


def engine_of(run: RunDir, cluster: ClusterFolder) -> Engine:
    """The engine that the run's bundle names, or the local one if it has no bundle.

    Raises:
        InputError: the bundle is damaged, or names no engine of this version.
    """
    if not run.bundle.exists():
        return LocalEngine(cluster)
    return of_bundle(Bundle.load(run.bundle))


def of_bundle(bundle: Bundle) -> MachinesEngine:
    """The engine that a bundle names.

    Raises:
        InputError: this version has none of that name.
    """
    return MachinesEngine(bundle, _machines(bundle, config_of(bundle.engine)))


def places_of(bundle: Bundle) -> list[Place | None] | None:
    """Where Slurm has each node of a run now, by its number; None: the run is not one of Slurm.

    Raises:
        HeadwayError: Slurm does not answer.
    """
    config = config_of(bundle.engine)
    if not isinstance(config, SlurmRun):
        return None
    machines = SlurmMachines(bundle.run_id, str(bundle.control), config)
    return [machines.place(node) for node in range(bundle.nodes)]


def topology_of(run: RunDir) -> Topology | None:
    """The network of the run's nodes, by the engine that its bundle names; None: not known.

    Raises:
        InputError: as ``engine_of``.
    """
    if not run.bundle.exists():
        return None
    config = config_of(Bundle.load(run.bundle).engine)
    if isinstance(config, SlurmRun | HostsRun) and any(config.switches):
        return Topology(config.switches)
    return None


def _machines(bundle: Bundle, config: MachinesConfig) -> Machines:
    match config:
        case KubernetesConfig():
            return KubernetesMachines(bundle.name, bundle.nodes, config.scratch)
        case SlurmRun():
            return SlurmMachines(bundle.run_id, str(bundle.control), config)
        case HostsConfig():
            return HostMachines(config)
    raise AssertionError(f"{config} is not what a bundle keeps")


def provide(
    config: MachinesConfig,
    nodes: int,
    *,
    run_id: str,
    control: Path,
    report: Callable[[str], None],
) -> MachinesConfig:
    """Provide the machines of one run, which ``check_number`` has admitted.

    Returns what the run's bundle keeps of them.

    Args:
        config: the cluster's.
        nodes: of the run, spares included.
        run_id: the run's id.
        control: its folder for lease and journal.
        report: called with a line of progress while waiting for them.

    Raises:
        ConfigError: their topology cannot be used. HeadwayError: they cannot be allocated.
    """
    if isinstance(config, SlurmConfig):
        return allocate(config, run_id, str(control), nodes, report)
    assert isinstance(config, HostsConfig)
    return HostsRun(**vars(config)).provided(nodes, report)


def check_number(config: MachinesConfig, nodes: int) -> None:
    """Whether a run of so many nodes can have machines, as far as is known without asking for any.

    Raises:
        InputError: it cannot.
    """
    assert not isinstance(config, KubernetesConfig)  # its scheduler knows, once pods are asked for
    if isinstance(config, SlurmConfig):
        if shutil.which("sbatch") is None:
            raise InputError(
                "there is no sbatch on this machine's PATH",
                remedy="start the run where Slurm's commands are installed",
            )
    elif nodes > (there := len(config.hosts)):
        raise InputError(
            f"the run needs {nodes} nodes, hosts.toml lists {there}",
            remedy="add machines, or set launch.nodes and launch.spares",
        )


def limited(config: MachinesConfig, nodes: int) -> tuple[MachinesConfig, int]:
    """The configuration with the first ``nodes`` machines, and how many a run may have then.

    By 0 it has all of them; Slurm has no list, so there the number is only the limit, 0 being none.

    Raises:
        InputError: the list is shorter.
    """
    if not isinstance(config, HostsConfig):
        return config, nodes
    if nodes > (there := len(config.hosts)):
        raise InputError(
            f"{nodes} nodes are asked for, hosts.toml lists {there} machines",
            remedy="add machines, or ask for fewer nodes",
        )
    config = config.first(nodes or there)
    return config, len(config.hosts)


def check_kind(cluster: ClusterFolder, config: MachinesConfig) -> None:
    """Raises InputError if the nodes of an existing cluster come from elsewhere."""
    kind = facts_of(config)["kind"]
    if (found := cluster.engine.get("kind", "this machine")) != kind:
        raise InputError(
            f"the nodes of {cluster.path} come from {found}, not from {kind}",
            remedy="use another folder, or `headway cluster remove` first",
        )


def check_reached(config: MachinesConfig, nodes: int) -> None:
    """Whether listed machines let us in, so that a start does not fail after half of them.

    Raises:
        UnreachableError: one does not.
    """
    if isinstance(config, HostsConfig):
        HostMachines(config).check_reached(nodes)


@dataclass(frozen=True)
class Hardware:
    """What a machine of a cluster has, as far as is known before it joins a run."""

    gpus: int
    cpuinfo: str | None = None
    """The flags of its processor; None: not known."""
    compiler_lack: str = ""
    """What torch's compiler lacks there for GPUs, see ``lack_for_compiling``."""


def hardware_of(config: MachinesConfig, ranks: int) -> Hardware:
    """Return the hardware of a node; the first listed host is asked for it.

    Slurm's machines have a GPU for each of a node's ``ranks`` if the job asks for GPUs.

    Raises:
        HeadwayError: the host is not reached, or Headway is not installed on it.
    """
    if isinstance(config, HostsConfig):
        return _described(HostMachines(config), 0)
    return Hardware(ranks if isinstance(config, SlurmConfig) and config.asks_for_gpus else 0)


def compiler_lack(config: MachinesConfig, nodes: int) -> str:
    """What torch's compiler lacks for GPUs on one of the first ``nodes`` hosts; "" if nothing is.

    All are asked at once. Machines of Slurm and pods are not known before a run has them: then
    nothing counts as lacking, and each checks when it joins.

    Raises:
        HeadwayError: a host is not reached, or Headway is not installed on it.
    """
    if not isinstance(config, HostsConfig):
        return ""
    machines, found = HostMachines(config), dict[int, str]()

    def ask(node: int) -> None:
        found[node] = _described(machines, node).compiler_lack

    for_each(ask, range(nodes))
    lacking = [(lack, machines.name_of(node)) for node, lack in sorted(found.items()) if lack]
    return f"{lacking[0][0]} on {lacking[0][1]}" if lacking else ""


def _described(machines: HostMachines, node: int) -> Hardware:
    text = machines.call(node, "describe", "", limit_s=DESCRIBE_LIMIT_S)
    try:
        found = json.loads(reach.last_line(text))
        lack = str(found.get("compiler_lack", ""))  # a former version does not say
        return Hardware(int(found["gpus"]), str(found["cpu_flags"]), lack)
    except (ValueError, KeyError, TypeError) as error:
        raise HeadwayError(
            f"{machines.name_of(node)} printed {text[-80:]!r} and not what it has",
            remedy="the start-up files of its shell must print nothing for a command",
        ) from error


def config_of(facts: Mapping[str, Any]) -> MachinesConfig:
    """What ``facts_of`` has kept.

    Raises:
        InputError: this version has no such engine.
    """
    kind = facts.get("kind", "")
    if kind not in _KINDS:
        raise InputError(
            f"unknown engine {kind!r}", remedy="use the version of Headway that created this"
        )
    return from_dict(_KINDS[kind], {key: facts[key] for key in facts if key != "kind"})


def facts_of(config: MachinesConfig) -> dict[str, Any]:
    """What ``cluster.json`` and a bundle keep of the engine."""
    kind = next(name for name, kept in _KINDS.items() if issubclass(kept, type(config)))
    return {"kind": kind, **to_dict(config)}
