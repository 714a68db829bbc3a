"""Entry point of ``python -m headway.ckpt_store``.

It has the commands of ``headway ckpt``, and ``serve``, the daemon of a node.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from headway.ckpt_store.cli import app
from headway.common.cli import run
from headway.common.help_pages import DAEMONS, page


@page(
    app,
    "serve",
    heading=DAEMONS,
    examples=(
        "{command} --endpoint ipc:///tmp/store.sock --shm-dir /dev/shm/mine --checkpoints ckpt",
    ),
)
def serve(
    endpoint: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Where to answer: ipc:///path.sock.")
    ],
    shm_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the ranks' snapshots (arena-*.bin).")
    ],
    checkpoints: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for durable checkpoints.")
    ],
    world_size: Annotated[
        int, typer.Option(min=1, help="Ranks of the whole run; 1 by default.")
    ] = 1,
    executor: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Receives the heartbeats and notes.")
    ] = None,
    run_id: Annotated[
        str,
        typer.Option(
            metavar="ID", envvar="HEADWAY_RUN_ID", help="Serve the snapshots of this run only."
        ),
    ] = "",
    node: Annotated[
        int, typer.Option(envvar="HEADWAY_NODE", help="Number of this node; 0 by default.")
    ] = 0,
    keep: Annotated[
        int, typer.Option(min=1, help="Number of complete checkpoints to keep; 3 by default.")
    ] = 3,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Prometheus exporter on loopback; 0 takes any port."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of [ckpt], as nice=5; repeatable."
        ),
    ] = None,
) -> None:
    """Write the wanted snapshots of a node to durable checkpoints.

    Runs at nice 10, so that training keeps the CPU.
    """
    from headway.ckpt_store.config import StoreConfig
    from headway.ckpt_store.server import ServeOptions, serve
    from headway.common import log
    from headway.common.config import load

    log.setup("ckpt_store", run_id=run_id, node=node)
    options = ServeOptions(
        endpoint,
        shm_dir.absolute(),  # clients in other working folders are sent these paths
        checkpoints.absolute(),
        world_size,
        executor,
        run_id,
        node,
        metrics_port,
    )
    config = load(StoreConfig, overrides=[f"keep={keep}", *(overrides or ())])
    raise typer.Exit(serve(options, config))


def main() -> int:
    """Run the command line; returns the exit code, see ``common.cli.run``."""
    return run(app, "python -m headway.ckpt_store")


if __name__ == "__main__":
    sys.exit(main())
