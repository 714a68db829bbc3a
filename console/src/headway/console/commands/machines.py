"""``headway cluster`` and ``headway node``: executors on this machine, as Terraform and people start them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson, group
from headway.common.errors import HeadwayError
from headway.common.output import emit

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
    as_json: AsJson = False,
) -> None:
    """Make the cluster's folder and key, or change its number of nodes."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    cluster = ClusterFolder(folder)
    if cluster.exists:
        LocalEngine(cluster).resize(nodes)
    else:
        cluster = ClusterFolder.create(folder, nodes=nodes)
    done = {"cluster": str(folder), "id": cluster.id, "nodes": nodes}
    emit(done, as_json, [f"{folder}: {nodes} nodes"])


def drain(
    folder: Folder,
    limit: Annotated[float, typer.Option(help="Seconds to wait for each run.", min=0)] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Stop the runs that the cluster carries, with a checkpoint, and wait until they are over. Always exits 0."""
    from headway.console.run import Run
    from headway.launch.cluster import ClusterFolder

    carried = {Path(str(run["run_dir"])) for run in ClusterFolder(folder).runs().values()}
    ended = []
    for path in sorted(path for path in carried if (path / "run.json").exists()):
        run = Run(path)
        typer.echo(f"stopping run {run.name} with a checkpoint", err=as_json)
        try:
            if not run.outcome:
                run.stop()
            done = run.wait(limit)
            line = f"run {run.name} is {done}; its next `headway run` resumes there"
        except HeadwayError as error:
            done, line = "", f"run {run.name} was not stopped: {error.message}"
        typer.echo(line, err=as_json)
        ended.append({"run": run.name, "outcome": done})
    emit(ended, as_json, [])


def remove(folder: Folder, as_json: AsJson = False) -> None:
    """Stop all nodes and remove the cluster's folder. An absent one is fine."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

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


def stop(cluster: ClusterOption, node: Node, as_json: AsJson = False) -> None:
    """End everything that runs on the node. An absent cluster or node is fine."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    folder = ClusterFolder(cluster)
    if folder.exists:
        LocalEngine(folder).stop_node(node)
    done = {"cluster": str(cluster), "node": node, "stopped": True}
    emit(done, as_json, [f"node {node} is stopped"])
