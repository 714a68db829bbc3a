"""``python -m headway.controller``: the processes that keep a run going.

Heavy imports happen inside the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import group
from headway.common.cli import run as run_cli
from headway.common.help_pages import DAEMONS, page

app = group("Run one of the processes that keep a run going.", name="controller")

RUN = Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")]
CLUSTER = Annotated[Path, typer.Option(metavar="DIR", help="The cluster's folder.")]
NODE = Annotated[int, typer.Option(help="Number of the node, from 0.")]


@page(app, heading=DAEMONS)
def executor(cluster: CLUSTER, node: NODE) -> None:
    """Manage one node: start, watch and restart its processes."""
    from headway.common.log import setup
    from headway.controller.executor.executor import Executor
    from headway.launch.cluster import ClusterFolder

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
    from headway.controller.driver.driver import Driver
    from headway.launch.cluster import ClusterFolder
    from headway.launch.lease.base import SupersededError

    setup("driver", node=node, in_background=True)
    try:
        raise typer.Exit(Driver(run, ClusterFolder(cluster), node, epoch).run())
    except SupersededError as error:
        get_logger("driver").info("another driver leads the run", reason=str(error))
        raise typer.Exit(0) from None


def main() -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    return run_cli(app, "python -m headway.controller")


if __name__ == "__main__":
    sys.exit(main())
