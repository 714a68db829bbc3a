"""``headway cluster render``: what other systems need to start the nodes of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson, group
from headway.common.help_pages import epilog, page
from headway.common.output import to_json
from headway.console.commands.options import NewName, Settings

EXAMPLE = "headway cluster render kubernetes my.toml --image headway:0.1 --claim headway"


def add_render(cluster: typer.Typer) -> None:
    """Add the group to ``headway cluster``."""
    render = group(
        "Print files with which another system starts a run.",
        name="render",
        epilog=epilog([EXAMPLE]),
    )
    cluster.add_typer(render)
    page(render, examples=[EXAMPLE], json="list of the objects, as Kubernetes defines them")(
        kubernetes
    )


def kubernetes(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of the run.")],
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Container image with Headway in it.")
    ],
    claim: Annotated[
        str,
        typer.Option(metavar="PVC", help="ReadWriteMany claim that holds corpus and checkpoints."),
    ],
    name: NewName = None,
    namespace: Annotated[
        str, typer.Option(metavar="NS", help="Namespace of all objects; left out by default.")
    ] = "",
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Python in the image; python3 by default.")
    ] = "python3",
    selector: Annotated[
        list[str] | None,
        typer.Option(
            "--node-selector",
            metavar="KEY=VALUE",
            help="Use only machines with this label; repeatable.",
        ),
    ] = None,
    gpu_resource: Annotated[
        str, typer.Option(metavar="NAME", help="Resource name of a GPU; nvidia.com/gpu by default.")
    ] = "nvidia.com/gpu",
    overrides: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print a new run as Kubernetes manifests.

    They are a Secret, a Lease with a ServiceAccount that may use it, a NetworkPolicy and a Job.
    Nothing is started. Each call renders a new run with its own keys: keep the output secret.
    Relative paths in the configuration refer to the claim. See docs/howto/kubernetes.md.
    """
    from headway.common.config import load
    from headway.console.lifecycle.launch import run_name
    from headway.console.pods.manifests import manifests, to_yaml
    from headway.launch.engines.kubernetes.config import KubernetesConfig
    from headway.trainer.config import RunConfig

    resolved = load(RunConfig, [config], overrides or [])
    pods = KubernetesConfig(
        image=image,
        claim=claim,
        namespace=namespace,
        python=python,
        node_selector=tuple(selector or ()),
        gpu_resource=gpu_resource,
    )
    found = manifests(resolved, pods, name or run_name(config.stem))
    typer.echo(to_json(found) if as_json else to_yaml(found).rstrip())
