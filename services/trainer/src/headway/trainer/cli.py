"""``python -m headway.trainer``: the processes of a run. Heavy imports happen
inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import group

app = group("The trainer's own processes; `headway run` starts them for you.", name="trainer")

RUN = Annotated[Path, typer.Option(help="The run's folder.")]
CLUSTER = Annotated[Path, typer.Option(help="The cluster's folder.")]
NODE = Annotated[int, typer.Option(help="Number of the node, from 0.")]


@app.command()
def train(
    config: Annotated[
        list[Path], typer.Argument(help="TOML files; a later one wins.", exists=True)
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="One value: train.steps=20")
    ] = None,
) -> None:
    """Train without other services: under torchrun, or alone for a single rank."""
    from headway.trainer.torchrun import train as run

    raise typer.Exit(run(config, overrides or []))


@app.command()
def executor(cluster: CLUSTER, node: NODE) -> None:
    """Manage one node: start, watch and restart its processes."""
    from headway.common.log import setup
    from headway.launch.cluster import ClusterFolder
    from headway.trainer.control.node.executor import Executor

    setup("executor", node=node, in_background=True)
    raise typer.Exit(Executor(ClusterFolder(cluster), node).run())


@app.command()
def driver(
    run: RUN,
    cluster: CLUSTER,
    node: NODE,
    epoch: Annotated[int, typer.Option(help="The epoch that was claimed for it.")],
) -> None:
    """Lead one run: decide on recoveries, keep the journal, accept commands."""
    from headway.common.log import get_logger, setup
    from headway.launch.cluster import ClusterFolder
    from headway.launch.lease import SupersededError
    from headway.trainer.control.driver import Driver

    setup("driver", node=node, in_background=True)
    try:
        raise typer.Exit(Driver(run, ClusterFolder(cluster), node, epoch).run())
    except SupersededError as error:
        get_logger("driver").info("another driver leads the run", reason=str(error))
        raise typer.Exit(0) from None


@app.command()
def zygote(run: RUN, node: NODE) -> None:
    """Fork warm workers on request."""
    from headway.trainer.zygote import serve

    raise typer.Exit(serve(run, node))


@app.command()
def worker(
    run: RUN, node: NODE, name: Annotated[str, typer.Option(help="The worker's name.")]
) -> None:
    """Run one worker; used where the zygote cannot fork (CUDA)."""
    from headway.trainer.worker import main

    raise typer.Exit(main(run, node, name))
