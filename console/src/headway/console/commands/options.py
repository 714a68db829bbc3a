"""Options and output that many commands share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.errors import InputError

if TYPE_CHECKING:
    from headway.console.run import Run

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder that holds the runs.")]
ClusterDir = Annotated[
    Path | None, typer.Option("--cluster", help="Folder of a cluster made by `make up`; else own nodes.")
]
AnyRun = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Name of the run; else the newest.")]
NamedRun = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.")]
RUNS = Path("runs")


def find_run(name: str | None, runs_dir: Path) -> Run:
    """A run by name; without one the newest. Raises InputError when there is none."""
    from headway.console.cluster import Cluster

    return Cluster(runs_dir).run(name)


def check_rank(run: Run, rank: int) -> None:
    """Raises InputError when the run has no such rank."""
    world = run.config.parallel.world_size
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} is not in the run", remedy=f"use 0 to {world - 1}")


def emit(data: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print ``data`` as one line of JSON, or ``lines``."""
    if as_json:
        typer.echo(to_json(data))
        return
    for line in lines:
        typer.echo(line)


def to_json(data: Any) -> str:
    """One line of JSON from plain values, dataclasses and messages."""
    return json.dumps(data, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
