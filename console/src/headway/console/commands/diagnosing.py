"""``headway diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands.options import RUNS, RunsDir, complete_runs, find_run
from headway.console.commands.pages import LOOK


def register(app: typer.Typer) -> None:
    """Add the command."""
    page(
        app,
        heading=LOOK,
        examples=("headway diagnose", "headway diagnose ./incident --json"),
        json="one object: found (list of diagnoses), read, unread",
    )(diagnose)


def diagnose(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN|FOLDER",
            help="A run, the newest by default; or a folder of any job's dumps, logs, stacks, "
            "counters and kernel logs.",
            autocompletion=complete_runs,
            show_default=False,
        ),
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Say who holds up or broke a run or a job, why, and what to do.

    Exits 1 if something is wrong.
    """
    from headway.health.client import diagnose_folder, diagnose_run

    if what is not None and _is_folder(what, runs_dir):
        done = diagnose_folder(Path(what))
    else:
        done = diagnose_run(find_run(what, runs_dir).folder.verdicts.parent)
    rows = [one.as_dict() for one in done.found]
    emit({"found": rows, "read": done.read, "unread": done.unread}, as_json, done.lines)
    raise typer.Exit(1 if done.is_wrong else 0)


def _is_folder(what: str, runs_dir: Path) -> bool:
    """Whether it is a folder that is no run."""
    path = Path(what)
    is_run = any((folder / "run.json").exists() for folder in (runs_dir / what, path))
    return path.is_dir() and not is_run
