"""``python -m headway.console.sinks``: the exporter that the node that leads a run keeps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import group, run

app = group("Export the metrics of a run while it is live; `headway run` starts this for you.")


@app.command()
def follow(
    path: Annotated[Path, typer.Option("--run", help="The run's folder.")],
    to: Annotated[str, typer.Option(help="The sink: tensorboard or wandb.")],
) -> None:
    """Follow one run until SIGTERM, or until it is over."""
    from headway.common.log import setup
    from headway.console.sinks.exporter import serve

    setup(f"sink-{to}", in_background=True)
    raise typer.Exit(serve(path, to))


if __name__ == "__main__":
    sys.exit(run(app, "python -m headway.console.sinks"))
