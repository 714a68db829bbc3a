"""Entry point of ``python -m headway.trainer``: the processes that compute.

Heavy imports happen inside the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import group
from headway.common.help_pages import DAEMONS, page

app = group("Train under torchrun, or run one of the trainer's own processes.", name="trainer")

RUN = Annotated[Path, typer.Option(metavar="DIR", help="The run's folder.")]
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
    from headway.trainer.worker.torchrun import train as run

    raise typer.Exit(run(config, overrides or []))


@page(app, heading=DAEMONS)
def zygote(run: RUN, node: NODE) -> None:
    """Fork warm workers on request: they start at once."""
    from headway.trainer.worker.zygote import serve

    raise typer.Exit(serve(run, node))


@page(app, heading=DAEMONS)
def worker(
    run: RUN,
    node: NODE,
    name: Annotated[str, typer.Option(metavar="NAME", help="The worker's name.")],
) -> None:
    """Run one worker; used where the zygote cannot fork (CUDA)."""
    from headway.trainer.worker.worker import main

    raise typer.Exit(main(run, node, name))


@page(app, heading=DAEMONS)
def trials(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="For logs, and what the ranks exchange.")
    ],
) -> None:
    """Train what `headway ablate` sends, one after another."""
    from headway.trainer.trials.server import serve

    raise typer.Exit(serve(folder))
