"""``headway cluster`` and ``headway node``: executors on this machine, as Terraform and people start them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer
from headway.common.errors import HeadwayError, InputError
from headway.console.commands.options import AsJson, emit

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's folder.")]
ClusterOption = Annotated[Path, typer.Option("--cluster", help="The cluster's folder.")]
Node = Annotated[int, typer.Option("--node", help="Number of the node, from 0.", min=0)]


def register(app: typer.Typer) -> None:
    """Add the two groups."""
    for name, help_, commands in (
        ("cluster", "Make or remove the folder of a cluster, or stop the runs on it.", (create, drain, remove)),
        ("node", "Start or stop one node of a cluster.", (start, stop)),
    ):
        group = typer.Typer(name=name, help=help_, no_args_is_help=True, rich_markup_mode=None)
        for command in commands:
            group.command()(command)
        app.add_typer(group)


def create(
    folder: Folder,
    nodes: Annotated[int, typer.Option(help="Number of nodes, spares included.", min=1)],
    as_json: AsJson = False,
) -> None:
    """Make the cluster's folder and key, or change its number of nodes."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    cluster = ClusterFolder(folder)
    if (folder / "cluster.json").exists():
        for node in range(nodes, cluster.nodes):
            LocalEngine(cluster).stop_node(node)
        cluster.resize(nodes)
    else:
        try:
            cluster = ClusterFolder.create(folder, nodes=nodes)
        except OSError as error:
            raise InputError(f"cannot make {folder}: {error.strerror}", remedy="use another folder") from error
    emit({"cluster": str(folder), "id": cluster.id, "nodes": nodes}, as_json, [f"{folder}: {nodes} nodes"])


def drain(
    folder: Folder,
    limit: Annotated[float, typer.Option(help="Seconds to wait for each run.", min=0)] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Stop the runs that the cluster carries, with a checkpoint, and wait until they are over. Always exits 0."""
    from headway.console.run import Run

    ended = []
    for path in sorted(_carried(folder)):
        run = Run(path)
        typer.echo(f"stopping run {run.name} with a checkpoint", err=as_json)
        try:
            if not run.outcome:
                run.stop()
            done = run.wait(limit)
            line = f"run {run.name} is {done}; its next `headway run` goes on from there"
        except HeadwayError as error:
            done, line = "", f"run {run.name} is left as it is: {error.message}"
        typer.echo(line, err=as_json)
        ended.append({"run": run.name, "outcome": done})
    emit(ended, as_json, [])


def _carried(folder: Path) -> set[Path]:
    """Folders of the runs that the nodes carry."""
    found = set()
    for file in (folder / "nodes").glob("*.run"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found.add(Path(json.loads(file.read_text())["run_dir"]))
    return {path for path in found if (path / "run.json").exists()}


def remove(folder: Folder, as_json: AsJson = False) -> None:
    """Stop all nodes and remove the cluster's folder. An absent one is fine."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    cluster = ClusterFolder(folder)
    if (folder / "cluster.json").exists():
        LocalEngine(cluster).stop()
        _remove_files(folder)
    emit({"cluster": str(folder), "removed": True}, as_json, [f"{folder}: removed"])


def start(cluster: ClusterOption, node: Node, as_json: AsJson = False) -> None:
    """Start the node's executor unless it runs; returns when it listens."""
    from headway.console.start import wait_for_node
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    folder = ClusterFolder(cluster)
    if node >= folder.nodes:
        raise InputError(f"node {node} is outside the cluster's {folder.nodes} nodes",
                         remedy=f"use 0 to {folder.nodes - 1}")  # fmt: skip
    (cluster / "nodes" / f"{node}.lost").unlink(missing_ok=True)  # an order to start is a new machine
    LocalEngine(folder).start_node(node)
    wait_for_node(folder, node)
    address = folder.address(node)
    assert address is not None
    facts = {"cluster": str(cluster), "node": node, "pid": address.process.pid, "endpoint": address.endpoint}
    emit(facts, as_json, [f"node {node} is up, pid {address.process.pid}, {address.endpoint}"])


def stop(cluster: ClusterOption, node: Node, as_json: AsJson = False) -> None:
    """End everything that runs on the node. An absent cluster or node is fine."""
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    if (cluster / "cluster.json").exists():
        LocalEngine(ClusterFolder(cluster)).stop_node(node)
    emit({"cluster": str(cluster), "node": node, "stopped": True}, as_json, [f"node {node} is stopped"])


def _remove_files(folder: Path) -> None:
    """What a cluster made there and nothing else: Terraform keeps its state in the same folder."""
    import shutil

    for part in ("nodes", "logs", "keys"):
        shutil.rmtree(folder / part, ignore_errors=True)
    (folder / "cluster.json").unlink(missing_ok=True)
