"""Options that many commands share, and the run that they name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.errors import InputError

if TYPE_CHECKING:
    from headway.console.run import Run

RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder that holds the runs.")]
ClusterDir = Annotated[
    Path | None,
    typer.Option("--cluster", help="Folder of a cluster made by `make up`; else own nodes."),
]
AnyRun = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="Name of the run; else the newest.")
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; without a terminal nothing is asked.")
]
NamedRun = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]
RUNS = Path("runs")


def confirm(question: str, yes: bool) -> None:
    """Ask once before something is ended or broken, if a person sits at a terminal.

    Raises:
        typer.Exit: the answer was not yes; the code is 1.
    """
    if yes or not sys.stdin.isatty():
        return
    if not typer.confirm(question, default=False, err=True):
        typer.echo("nothing was done", err=True)
        raise typer.Exit(1)


def find_run(name: str | None, runs_dir: Path) -> Run:
    """A run by name; without one the newest. Raises InputError when there is none."""
    from headway.console.cluster import Cluster

    return Cluster(runs_dir).run(name)


def check_rank(run: Run, rank: int) -> None:
    """Raises InputError when the run has no such rank."""
    world = run.config.parallel.world_size
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} is not in the run", remedy=f"use 0 to {world - 1}")
