"""Options that many commands share, the run that they name, and the one question they may ask."""

from __future__ import annotations

import math
import sys
import tomllib
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.console.hints import run_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headway.console.run import Run

RUNS = Path("runs")
RUN_HELP = "Name of the run; the newest by default."
GATEWAY: ContextVar[Path | None] = ContextVar("GATEWAY", default=None)
"""The key file of ``headway --cluster FILE``, whose runs the command means."""


def run_names(runs_dir: Path) -> list[str]:
    """Names of the runs in a folder, the newest first; nothing heavy is imported."""
    return [folder.name for folder in reversed(run_folders(runs_dir))]


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names for the shell's completion."""
    return [name for name in run_names(_runs_dir(ctx)) if name.startswith(incomplete)]


def complete_ranks(ctx: typer.Context, incomplete: str) -> list[str]:
    """The ranks of the run that the line names so far, or of the newest."""
    parallel = _table(ctx, "parallel")
    degrees = [int(parallel.get(axis, 1)) for axis in ("tp", "pp", "dp")]
    size = math.prod(degrees) if parallel else 0
    return [str(rank) for rank in range(size) if str(rank).startswith(incomplete)]


def complete_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The nodes of that run, spares included."""
    launch = _table(ctx, "launch")
    size = int(launch.get("nodes", 0)) + int(launch.get("spares", 0))
    return [str(node) for node in range(size) if str(node).startswith(incomplete)]


def complete_logs(ctx: typer.Context, incomplete: str) -> list[str]:
    """The log files of that run."""
    logs = (_runs_dir(ctx) / _run(ctx) / "logs").glob("*.log")
    return sorted(path.stem for path in logs if path.stem.startswith(incomplete))


def _runs_dir(ctx: typer.Context) -> Path:
    return Path(ctx.params.get("runs_dir") or RUNS)


def _table(ctx: typer.Context, name: str) -> dict[str, Any]:
    """One table of the run's resolved configuration, empty where there is none."""
    try:
        text = (_runs_dir(ctx) / _run(ctx) / "config.toml").read_text()
        return dict(tomllib.loads(text).get(name, {}))
    except (OSError, ValueError):
        return {}


def _run(ctx: typer.Context) -> str:
    """The run that the line names so far, else the newest; empty without any."""
    # words are left in args while the last option still lacks its value
    typed = [ctx.params.get("run"), *(ctx.params.get("words") or ()), *ctx.args]
    known = run_names(_runs_dir(ctx))
    return next((word for word in typed if word in known), known[0] if known else "")


RunsDir = Annotated[
    Path, typer.Option("--runs-dir", metavar="DIR", help="Folder of the runs; ./runs by default.")
]
ClusterDir = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="DIR",
        help="Use the nodes of this cluster; see `headway cluster create`.",
    ),
]
AnyRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help=RUN_HELP, autocompletion=complete_runs)
]
AnyCluster = Annotated[
    Path | None, typer.Option("--cluster", metavar="DIR", help="The cluster's folder.")
]
NewName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the run; the file's name by default.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one setting, e.g. train.steps=50; repeatable."
    ),
]
Step = Annotated[
    int | None, typer.Option(metavar="STEP", help="Step of a checkpoint; the newest by default.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Ask once before something is ended or broken, if a person sits at a terminal.

    Without a terminal nothing is asked: scripts say what they mean.

    Raises:
        typer.Exit: the answer was not yes; the code is 1.
    """
    if yes or not sys.stdin.isatty():
        return
    if not typer.confirm(question, default=False, err=True):
        typer.echo("nothing was done", err=True)
        raise typer.Exit(1)


def reporter(as_json: bool) -> Callable[[str], None]:
    """What prints a line of progress: on standard error beside JSON."""
    return lambda line: typer.echo(line, err=as_json)


def known_runs(runs_dir: Path) -> Sequence[Run]:
    """Runs of a folder, or all of a gateway, which are attached to the folder; the newest last."""
    gateway = GATEWAY.get()
    if gateway is None:
        from headway.console.cluster import Cluster

        return Cluster(runs_dir).runs()
    from headway.console.gateway.access import Access
    from headway.console.gateway.remote_run import attach

    return attach(Access.load(gateway), runs_dir)


def find_run(name: str | None, runs_dir: Path) -> Run:
    """A run by name; without one the newest. Raises InputError when there is none."""
    gateway = GATEWAY.get()
    if gateway is None:
        from headway.console.cluster import Cluster

        return Cluster(runs_dir).run(name)
    from headway.console.gateway.access import Access
    from headway.console.gateway.remote_run import attach, newest_name

    access = Access.load(gateway)
    [found] = attach(access, runs_dir, name or newest_name(access))
    return found
