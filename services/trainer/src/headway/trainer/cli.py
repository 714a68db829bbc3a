"""``python -m headway.trainer``: the processes of a run. Heavy imports happen
inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import group
from headway.common.help_pages import DAEMONS, page

app = group("Train under torchrun, or run one of the trainer's own processes.", name="trainer")

RUN = Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")]
CLUSTER = Annotated[Path, typer.Option(metavar="DIR", help="The cluster's folder.")]
NODE = Annotated[int, typer.Option(help="Number of the node, from 0.")]


@page(
    app,
    examples=(
        "{command} examples/tiny.toml --set parallel.pp=1 --set parallel.dp=1",
        "torchrun --nproc-per-node 4 -m headway.trainer train examples/tiny.toml",
    ),
)
def train(
    config: Annotated[
        list[Path],
        typer.Argument(metavar="CONFIG...", help="TOML files; a later one wins.", exists=True),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting, e.g. train.steps=20; repeatable.",
        ),
    ] = None,
) -> None:
    """Train without other services, alone or under torchrun."""
    from headway.trainer.torchrun import train as run

    raise typer.Exit(run(config, overrides or []))


@page(app, heading=DAEMONS)
def executor(cluster: CLUSTER, node: NODE) -> None:
    """Manage one node: start, watch and restart its processes."""
    from headway.common.log import setup
    from headway.launch.cluster import ClusterFolder
    from headway.trainer.control.node.executor import Executor

    setup("executor", node=node, in_background=True)
    raise typer.Exit(Executor(ClusterFolder(cluster), node).run())


@page(app, heading=DAEMONS)
def driver(
    run: RUN,
    cluster: CLUSTER,
    node: NODE,
    epoch: Annotated[int, typer.Option(help="The leadership of the run that was claimed for it.")],
) -> None:
    """Lead one run: decide, keep its journal, accept commands."""
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


@page(app, heading=DAEMONS)
def zygote(run: RUN, node: NODE) -> None:
    """Fork warm workers on request: they start at once."""
    from headway.trainer.zygote import serve

    raise typer.Exit(serve(run, node))


@page(app, heading=DAEMONS)
def worker(
    run: RUN,
    node: NODE,
    name: Annotated[str, typer.Option(metavar="NAME", help="The worker's name.")],
) -> None:
    """Run one worker; used where the zygote cannot fork (CUDA)."""
    from headway.trainer.worker import main

    raise typer.Exit(main(run, node, name))
