"""``python -m headway.console.pods``: the steps that infra/terraform/targets/kubernetes takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import group
from headway.common.cli import run as run_cli

if TYPE_CHECKING:
    from headway.console.pods.cluster_objects import ClusterObjects

app = group("Prepare a namespace of Kubernetes for runs.", name="pods")

File = Annotated[Path, typer.Argument(metavar="FILE", help="kubernetes.toml")]
Cluster = Annotated[str, typer.Option(metavar="ID", help="Id of the cluster.")]
Runs = Annotated[list[str] | None, typer.Option(metavar="ID", help="Id of a run of the cluster.")]
MayDelete = Annotated[
    bool, typer.Option(envvar="DELETE_CLAIM", help="The data of claims may be deleted.")
]


def _objects(file: Path, cluster: str) -> ClusterObjects:
    from headway.console.pods.cluster_objects import ClusterObjects
    from headway.console.pods.kubeconfig import connect
    from headway.launch.engines.kubernetes.config import KubernetesConfig
    from headway.launch.engines.remote.config_file import read_config

    config = read_config(KubernetesConfig, file)
    return ClusterObjects(connect(config), cluster, config.claim)


@app.command()
def keep(file: File, copy: Annotated[Path, typer.Argument(metavar="COPY")]) -> None:
    """Copy the file, with a path of the kubeconfig that holds in any working folder."""
    from headway.common.config import to_toml
    from headway.console.pods.kubeconfig import with_whole_path
    from headway.launch.engines.kubernetes.config import KubernetesConfig
    from headway.launch.engines.remote.config_file import read_config

    copy.write_text(to_toml(with_whole_path(read_config(KubernetesConfig, file))))


@app.command()
def check(file: File) -> None:
    """Check that the API server answers and that the user has every right that a run takes."""
    from headway.console.pods import rights

    target = _objects(file, "").target
    rights.check(target)
    typer.echo(f"{target.api.server}: {target.source} has the rights, namespace {target.namespace}")


@app.command()
def seen(file: File) -> None:
    """Print as JSON whether the namespace and the claim are there, and the claim's size."""
    typer.echo(json.dumps(_objects(file, "").seen()))


@app.command()
def create(
    what: Annotated[str, typer.Argument(metavar="namespace|claim")],
    file: File,
    cluster: Cluster,
    size: Annotated[str, typer.Option(metavar="SIZE")] = "",
    storage_class: Annotated[str, typer.Option("--class", metavar="NAME")] = "",
) -> None:
    """Create the namespace or the claim."""
    made = _objects(file, cluster)
    if what == "namespace":
        made.make_namespace()
    else:
        made.make_claim(size, storage_class)


@app.command()
def delete(
    what: Annotated[str, typer.Argument(metavar="namespace|claim")],
    file: File,
    cluster: Cluster,
    delete_claim: MayDelete = False,
) -> None:
    """Delete the namespace or the claim, if the cluster has made it."""
    made = _objects(file, cluster)
    if what == "namespace":
        made.remove_namespace(may_delete=delete_claim)
    else:
        made.remove_claim(may_delete=delete_claim)


@app.command()
def removable(
    file: File, cluster: Cluster, run: Runs = None, delete_claim: MayDelete = False
) -> None:
    """Check that what the cluster has made can be deleted without harm."""
    _objects(file, cluster).check_removable(may_delete=delete_claim, run_ids=run or [])


@app.command()
def clear(file: File, cluster: Cluster, run: Runs = None) -> None:
    """Delete what these runs have left, all of which are over."""
    _objects(file, cluster).remove_runs(run or [], lambda line: typer.echo(line, err=True))


@app.command()
def left(file: File, cluster: Cluster, run: Runs = None) -> None:
    """List what is left of the cluster and of these runs; exit 1 if anything is."""
    made = _objects(file, cluster)
    found = [*made.left(), *made.left_of_runs(run or [])]
    for line in found:
        typer.echo(line)
    raise typer.Exit(1 if found else 0)


def main() -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    return run_cli(app, "python -m headway.console.pods")


if __name__ == "__main__":
    sys.exit(main())
