"""``headway cluster``: clusters of emulated nodes or machines, and the runs on one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import HeadwayError, InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands.options import Yes, confirm, reporter
from headway.console.commands.pages import MACHINES, add_group
from headway.console.commands.rendering import add_render

if TYPE_CHECKING:
    from headway.console.run import Run
    from headway.launch.cluster import ClusterFolder

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's folder.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    cluster = add_group(
        app,
        "cluster",
        "Create or remove a cluster, or stop the runs on it.",
        MACHINES,
        (
            "headway cluster create clusters/mine --nodes 3",
            "headway run examples/tiny.toml --cluster clusters/mine",
            "headway cluster remove clusters/mine",
        ),
    )
    page(
        cluster,
        examples=(
            "headway cluster create clusters/mine --nodes 3",
            "headway cluster create clusters/gpus --hosts hosts.toml",
            "headway cluster create clusters/slurm --slurm slurm.toml",
        ),
        json="one object: cluster, id, nodes",
    )(create)
    page(cluster, examples=("headway cluster drain clusters/mine",), json="list: run, outcome")(
        drain
    )
    page(
        cluster,
        examples=("headway cluster remove clusters/mine",),
        json="one object: cluster, removed",
    )(remove)
    add_render(cluster)


def create(
    folder: Folder,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Number of nodes, spares included.", min=1)
    ] = None,
    hosts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use the machines of this file; see docs/howto/ssh.md."),
    ] = None,
    slurm: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take machines from Slurm; see docs/howto/slurm.md."),
    ] = None,
    interface: Annotated[
        str, typer.Option(metavar="NAME", help="Network interface; loopback by default.")
    ] = "",
    ports: Annotated[
        str, typer.Option(metavar="LOW-HIGH", help="Range of ports; any free one by default.")
    ] = "",
    drain_runs: Annotated[
        bool,
        typer.Option("--drain", help="Stop, with a checkpoint, live runs that use ended nodes."),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Create a cluster, or change its number of nodes.

    An existing cluster keeps its network. A smaller number is refused while a live run uses one of
    the nodes that would end, unless --drain stops that run first.
    """
    from headway.common.wire.addresses import Network
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.local import LocalEngine

    if [nodes, hosts, slurm].count(None) != 2:
        raise InputError(
            "exactly one of --nodes, --hosts and --slurm is needed",
            remedy="--nodes N emulates nodes on this machine; the others use real machines",
        )
    if nodes is None and (interface or ports):
        raise InputError(
            "--interface and --ports are for nodes on this machine",
            remedy="set launch.interface and launch.ports of the run",
        )
    cluster, line = ClusterFolder(folder), ""
    if nodes is None:
        nodes, line = _create_of_machines(folder, hosts, slurm)
    elif cluster.exists:
        cluster.check_emulated()
        if nodes < (old := cluster.nodes):
            ended = f"node {nodes}" if old == nodes + 1 else f"nodes {nodes} to {old - 1}"
            confirm(f"end {ended} of {folder}?", yes)
            _free(cluster, nodes, drain_runs, as_json)
        LocalEngine(cluster).resize(nodes)
    else:
        network = Network(interface, ports=ports)
        _ = network.endpoint  # a name that this machine does not know fails here, not in each node
        cluster = ClusterFolder.create(folder, nodes=nodes, network=network)
    done = {"cluster": str(folder), "id": cluster.id, "nodes": nodes}
    emit(done, as_json, [f"{folder}: {line or f'{nodes} nodes'}"])


def _free(cluster: ClusterFolder, nodes: int, drain_runs: bool, as_json: bool) -> None:
    """Make sure that no live run uses a node beyond the first ``nodes``.

    Raises:
        InputError: one does, and it is not to be stopped, or it does not stop.
    """
    from headway.console.lifecycle.ending import end
    from headway.console.lifecycle.on_cluster import check_unused, live_runs

    used = live_runs(cluster) if drain_runs else {}
    for run in {run.path: run for node, run in used.items() if node >= nodes}.values():
        typer.echo(f"stopping run {run.name}, which uses nodes that end", err=as_json)
        done = end(run, report=reporter(as_json))
        typer.echo(done.line(), err=as_json)
    check_unused(cluster, nodes, cluster.nodes - 1, ", or use --drain (`make up` DRAIN=1)")


def _create_of_machines(folder: Path, hosts: Path | None, slurm: Path | None) -> tuple[int, str]:
    """Returns the number of nodes, and what to say of them."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.choose import MachinesConfig, facts_of
    from headway.launch.engines.remote.config_file import read_config
    from headway.launch.engines.remote.topology_file import read_next_to
    from headway.launch.engines.slurm.config import SlurmConfig, SlurmRun
    from headway.launch.engines.ssh.config import HostsConfig, HostsRun

    config: MachinesConfig
    number, line = 0, "Slurm provides the machines of each run"
    if hosts is not None:
        listed = read_config(HostsConfig, hosts)
        config = HostsRun(**vars(listed), chains=read_next_to(hosts, listed.topology))
        number, line = len(config.hosts), f"{len(config.hosts)} machines"
    else:
        assert slurm is not None
        given = read_config(SlurmConfig, slurm)
        config = SlurmRun(**vars(given), chains=read_next_to(slurm, given.topology))
    ClusterFolder.create(folder, nodes=number, engine=facts_of(config))
    return number, line


def drain(
    folder: Folder,
    limit: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Kill a run after this long without progress; 60 by default.",
            min=0,
        ),
    ] = 60.0,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop all runs on a cluster, with a checkpoint.

    Returns when they have ended. A run that cannot stop is ended by force. The exit code is 0
    whatever becomes of the runs.
    """
    from headway.console.lifecycle.ending import end
    from headway.console.run import Run
    from headway.launch.cluster import ClusterFolder

    cluster = ClusterFolder(folder)
    _ = cluster.id  # refuses a folder that holds no cluster
    carried = {Path(str(run["run_dir"])) for run in cluster.runs().values()}
    ended = []
    runs = [Run(path) for path in sorted(carried) if (path / "run.json").exists()]
    noted = _noted(cluster)
    _refuse_starting(noted)
    runs += [run for run in noted if run.live]
    if runs:
        confirm(f"stop {', '.join(run.name for run in runs)} on {folder}?", yes)
    for run in runs:
        try:
            done = end(run, limit_s=limit, report=reporter(as_json))
            outcome, line = done.outcome, done.line()
        except HeadwayError as error:
            outcome, line = run.outcome, f"run {run.name}: {error.message}"
        typer.echo(line, err=as_json)
        ended.append({"run": run.name, "outcome": outcome})
    emit(ended, as_json, [])


def remove(folder: Folder, yes: Yes = False, as_json: AsJson = False) -> None:
    """Stop all nodes and remove the cluster's folder.

    Does nothing if the folder is absent. It is refused while a run is live on other machines: it
    can only be steered with the keys in the folder.
    """
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.local import LocalEngine

    cluster = ClusterFolder(folder)

    noted = _noted(cluster)
    _refuse_starting(noted)
    if live := [run.name for run in noted if run.settle(reporter(as_json))]:
        raise InputError(
            f"{folder} has the keys of {', '.join(live)}, live on other machines",
            remedy=f"stop what runs there first: `headway cluster drain {folder}`",
        )
    if is_there := cluster.exists:
        confirm(f"stop all nodes of {folder} and remove it?", yes)
    LocalEngine(cluster).remove()
    line = "removed" if is_there else "there was no cluster to remove"
    emit({"cluster": str(folder), "removed": True}, as_json, [f"{folder}: {line}"])


def _noted(cluster: ClusterFolder) -> list[Run]:
    """The runs on other machines that this cluster started and that may be live.

    Those that are over are forgotten.
    """
    from headway.console.run import Run

    found = []
    for run_id, path in cluster.noted().items():
        run = Run(path) if (path / "run.json").exists() else None
        is_known = run is not None and run.folder.run_id == run_id
        if run is not None and is_known and (run.live or not run.outcome):
            found.append(run)
        else:
            cluster.remove(f"started/{run_id}.json")
    return found


def _refuse_starting(runs: list[Run]) -> None:
    """Raises InputError while one of them is being started: it has no driver yet."""
    from headway.console.folder.starting import STARTING

    for run in runs:
        if (starter := run.starter) is not None:
            raise InputError(
                f"run {run.name} is being started ({starter})",
                remedy=f"wait for it; if that process has ended, remove {run.path / STARTING}",
            )
