"""``headway cluster`` and ``headway node``: executors on this machine, as Terraform and people start them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson, group
from headway.common.errors import HeadwayError
from headway.common.output import emit
from headway.console.commands.options import Yes, confirm

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's folder.")]
ClusterOption = Annotated[Path, typer.Option("--cluster", help="The cluster's folder.")]
Node = Annotated[int, typer.Option("--node", help="Number of the node, from 0.", min=0)]


def register(app: typer.Typer) -> None:
    """Add the two groups."""
    for name, help_, commands in (
        (
            "cluster",
            "Make or remove the folder of a cluster, or stop the runs on it.",
            (create, drain, remove),
        ),
        ("node", "Start or stop one node of a cluster.", (start, stop)),
    ):
        machines = group(help_, name=name)
        for command in commands:
            machines.command()(command)
        app.add_typer(machines)


def create(
    folder: Folder,
    nodes: Annotated[int, typer.Option(help="Number of nodes, spares included.", min=1)],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make the cluster's folder and keys, or change its number of nodes."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    cluster = ClusterFolder(folder)
    if cluster.exists:
        if nodes < (old := cluster.nodes):
            ended = f"node {nodes}" if old == nodes + 1 else f"nodes {nodes} to {old - 1}"
            confirm(f"end {ended} of {folder}?", yes)
        LocalEngine(cluster).resize(nodes)
    else:
        cluster = ClusterFolder.create(folder, nodes=nodes)
    done = {"cluster": str(folder), "id": cluster.id, "nodes": nodes}
    emit(done, as_json, [f"{folder}: {nodes} nodes"])


def drain(
    folder: Folder,
    limit: Annotated[
        float,
        typer.Option(help="Seconds without progress after which a run is ended by force.", min=0),
    ] = 60.0,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop the runs that the cluster carries, with a checkpoint, and wait until they have ended.

    A run that cannot stop is ended by force. Exits 0 whatever becomes of the runs.
    """
    from headway.console.ending import end
    from headway.console.run import Run
    from headway.launch.cluster import ClusterFolder

    carried = {Path(str(run["run_dir"])) for run in ClusterFolder(folder).runs().values()}
    ended = []
    runs = [Run(path) for path in sorted(carried) if (path / "run.json").exists()]
    if runs:
        confirm(f"stop {', '.join(run.name for run in runs)} on {folder}?", yes)
    for run in runs:
        try:
            done = end(run, limit_s=limit, tell=lambda line: typer.echo(line, err=as_json))
            outcome, line = done.outcome, done.line()
        except HeadwayError as error:
            outcome, line = run.outcome, f"run {run.name}: {error.message}"
        typer.echo(line, err=as_json)
        ended.append({"run": run.name, "outcome": outcome})
    emit(ended, as_json, [])


def remove(folder: Folder, yes: Yes = False, as_json: AsJson = False) -> None:
    """Stop all nodes and remove the cluster's folder. An absent one is fine."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    if ClusterFolder(folder).exists:
        confirm(f"stop all nodes of {folder} and remove it?", yes)
    LocalEngine(ClusterFolder(folder)).remove()
    emit({"cluster": str(folder), "removed": True}, as_json, [f"{folder}: removed"])


def start(cluster: ClusterOption, node: Node, as_json: AsJson = False) -> None:
    """Start the node's executor unless it runs; returns when it listens."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine
    from headway.launch.nodes import bring_up

    folder = ClusterFolder(cluster)
    address = bring_up(LocalEngine(folder), folder, node)
    pid, endpoint = address.process.pid, address.endpoint
    facts = {"cluster": str(cluster), "node": node, "pid": pid, "endpoint": endpoint}
    emit(facts, as_json, [f"node {node} is up, pid {pid}, {endpoint}"])


def stop(cluster: ClusterOption, node: Node, yes: Yes = False, as_json: AsJson = False) -> None:
    """End everything that runs on the node. An absent cluster or node is fine."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    folder = ClusterFolder(cluster)
    if folder.exists:
        if folder.carried(node) is not None:
            confirm(f"end all of the run that node {node} of {cluster} carries there?", yes)
        LocalEngine(folder).stop_node(node)
    done = {"cluster": str(cluster), "node": node, "stopped": True}
    emit(done, as_json, [f"node {node} is stopped"])
