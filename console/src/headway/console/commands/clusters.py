"""``headway cluster``: clusters of emulated nodes or machines, and the runs on one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import HeadwayError, InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands import cluster_state
from headway.console.commands.options import Yes, confirm, reporter
from headway.console.commands.pages import MACHINES, add_group
from headway.console.commands.rendering import add_render

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.console.run import Run
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.choose import MachinesConfig

OR_DRAIN = ", or use --drain (`make up` DRAIN=1)"
"""Another remedy where a live run uses what is about to end."""
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's folder.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    cluster = add_group(
        app,
        "cluster",
        "Create, check or remove a cluster, or stop the runs on it.",
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
    cluster_state.register(cluster)
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
    kubernetes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run on pods of Kubernetes; see docs/howto/kubernetes.md."
        ),
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
    """Create a cluster, or change its nodes.

    With --nodes alone they are emulated on this machine. With --hosts or --slurm they are machines:
    the first --nodes of the file, or as many as a run on Slurm may have.

    An existing cluster keeps its keys and network. Nodes or machines that a live run uses are not
    given up, unless --drain stops that run first.
    """
    from headway.launch.cluster import ClusterFolder

    number_of_files = 3 - [hosts, slurm, kubernetes].count(None)
    of_machines = number_of_files > 0
    if number_of_files > 1 or (nodes is None and not of_machines):
        raise InputError(
            "exactly one of --nodes, --hosts, --slurm and --kubernetes is needed",
            remedy="--nodes N emulates nodes on this machine; the others use real machines, and "
            "--nodes may say how many",
        )
    if of_machines and (interface or ports):
        raise InputError(
            "--interface and --ports are for nodes on this machine",
            remedy="set launch.interface and launch.ports of the run",
        )
    cluster = ClusterFolder(folder)
    if of_machines:
        from headway.console.lifecycle.machine_files import read_machines

        config = read_machines(hosts, slurm, kubernetes)
        number, line = _have_machines(cluster, config, nodes or 0, drain_runs, as_json)
    else:
        number = nodes or 0  # which typer has checked
        if not _is_resized(cluster, number, drain_runs, yes, as_json):
            _create_here(folder, number, interface, ports)
        line = f"{number} nodes"
    done = {"cluster": str(folder), "id": cluster.id, "nodes": number}
    emit(done, as_json, [f"{folder}: {line}"])


def _create_here(folder: Path, nodes: int, interface: str, ports: str) -> None:
    """Create a cluster of nodes on this machine. Raises InputError if its network is absent."""
    from headway.common.wire.addresses import Network
    from headway.launch.cluster import ClusterFolder

    network = Network(interface, ports=ports)
    _ = network.endpoint  # a name that this machine does not know fails here, not in each node
    ClusterFolder.create(folder, nodes=nodes, network=network)


def _is_resized(
    cluster: ClusterFolder, nodes: int, drain_runs: bool, yes: bool, as_json: bool
) -> bool:
    """Give an existing cluster on this machine so many nodes; False if there is none.

    Raises:
        InputError: a live run uses a node that would end, or the nodes are machines.
    """
    from headway.launch.engines.local import LocalEngine

    if not cluster.exists:
        return False
    cluster.check_emulated()
    if nodes < (old := cluster.nodes):
        ended = f"node {nodes}" if old == nodes + 1 else f"nodes {nodes} to {old - 1}"
        confirm(f"end {ended} of {cluster.path}?", yes)
        _free(cluster, nodes, drain_runs, as_json)
    LocalEngine(cluster).resize(nodes)
    return True


def _free(cluster: ClusterFolder, nodes: int, drain_runs: bool, as_json: bool) -> None:
    """Make sure that no live run uses a node beyond the first ``nodes``.

    Raises:
        InputError: one does, and it is not to be stopped, or it does not stop.
    """
    from headway.console.lifecycle.on_cluster import check_unused, live_runs

    if drain_runs:
        _stop([run for node, run in live_runs(cluster).items() if node >= nodes], as_json)
    check_unused(cluster, nodes, cluster.nodes - 1, OR_DRAIN)


def _stop(runs: Iterable[Run], as_json: bool) -> None:
    """Stop runs that use what is about to be given up, each once, with a checkpoint."""
    from headway.console.lifecycle.ending import end

    for run in {run.path: run for run in runs}.values():
        typer.echo(f"stopping run {run.name}, which uses nodes that end", err=as_json)
        typer.echo(end(run, report=reporter(as_json)).line(), err=as_json)


def _have_machines(
    cluster: ClusterFolder, config: MachinesConfig, nodes: int, drain_runs: bool, as_json: bool
) -> tuple[int, str]:
    """Create the cluster, or give it these machines; returns their number, and what to say of it.

    Raises:
        InputError: there are fewer, the cluster is of another kind, or a live run uses a machine
            that it would lose.
    """
    from headway.console.lifecycle.machines import provided
    from headway.console.lifecycle.on_cluster import used_error, users_of_leaving
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.choose import check_kind, facts_of, limited

    config, number = limited(config, nodes)
    if not cluster.exists:
        ClusterFolder.create(cluster.path, nodes=number, engine=facts_of(config))
    else:
        check_kind(cluster, config)
        if drain_runs:
            _stop(users_of_leaving(cluster, config, number).values(), as_json)
        for what, run in users_of_leaving(cluster, config, number).items():
            raise used_error(what, run, OR_DRAIN)
        cluster.change(number, facts_of(config))
    return number, f"{number} machines" if number else provided(config)


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
    from headway.console.gateway.remote_run import open_run
    from headway.console.lifecycle.ending import end
    from headway.console.lifecycle.on_cluster import refuse_starting, started_runs
    from headway.launch.cluster import ClusterFolder

    cluster = ClusterFolder(folder)
    _ = cluster.id  # refuses a folder that holds no cluster
    carried = {Path(str(run["run_dir"])) for run in cluster.runs().values()}
    ended = []
    runs = [open_run(path) for path in sorted(carried) if (path / "run.json").exists()]
    noted = started_runs(cluster)
    refuse_starting(noted)
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
    from headway.console.lifecycle.on_cluster import refuse_starting, started_runs
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.local import LocalEngine

    cluster = ClusterFolder(folder)
    noted = started_runs(cluster)
    refuse_starting(noted)
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
