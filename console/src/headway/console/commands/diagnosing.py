"""``headway diagnose``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.console.commands.options import RUNS, RunsDir, complete_runs, find_run
from headway.console.commands.pages import LOOK
from headway.console.commands.pods import with_records

if TYPE_CHECKING:
    from headway.console.analysis.replay import Step

MAX_STEPS = 64
"""How many of the newest steps of a run are replayed."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    page(
        app,
        heading=LOOK,
        examples=(
            "headway diagnose",
            "headway diagnose ./incident --json",
            "headway diagnose tiny --html diagnosis.html",
            "headway diagnose tiny --what-if",
        ),
        json="one object: found (list of diagnoses), read, unread; with --what-if a list: trace, "
        "slowdown, cause, seconds, ideal_seconds, by_rank, by_stage, by_kind",
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
    what_if: Annotated[
        bool,
        typer.Option(
            "--what-if",
            help="How much faster steps would be without stragglers: of a run, a Parquet trace "
            "of StragglerAnalysis, or a folder of them.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Also write a page with pictures: who waits for whom, the grid, a heat map, a "
            "step. It needs neither a server nor a network.",
            show_default=False,
        ),
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Say who holds up or broke a run or a job, why, and what to do.

    Exits 1 if something is wrong: in a folder anything, of a run an open verdict of its monitor.
    Slow steps alone, and what slowed a run that has ended, are reported with 0.
    """
    from headway.health.client import diagnose_folder, diagnose_run

    if what_if:
        _show_what_if(what, runs_dir, as_json)
        return
    is_run = what is None or not _is_folder(what, runs_dir)
    run = with_records(find_run(what, runs_dir)) if is_run else None
    if run is None:
        done = diagnose_folder(Path(what or ""))
    else:
        folder, grid = run.folder, run.config.parallel.grid
        control, is_over = folder.verdicts.parent, not run.live
        done = diagnose_run(control, folder.summaries, grid, is_over=is_over)
    if html is not None:
        from headway.console.reports.diagnosis import folder_page

        page = folder_page(str(what), done) if run is None else run.diagnosis().page()
        typer.echo(f"pictures: {page.write(html)}", err=True)
    rows = [one.as_dict() for one in done.found]
    emit({"found": rows, "read": done.read, "unread": done.unread}, as_json, done.lines)
    raise typer.Exit(1 if done.is_wrong else 0)


def _show_what_if(what: str | None, runs_dir: Path, as_json: AsJson) -> None:
    from headway.console.analysis.what_if import what_if

    found = {}
    for name, steps in _steps(what, runs_dir):
        try:
            found[name] = what_if(steps)
        except ValueError as error:
            raise InputError(
                f"{name} cannot be replayed: {error}", remedy="record all ranks of whole steps"
            ) from error
    lines = []
    for name, one in found.items():
        times = f"{one.seconds:.3f} s, {one.ideal_seconds:.3f} s without stragglers"
        lines += [f"{name}: a step takes {times} ({one.slowdown:.2f}x)", f"why    {one.cause}"]
    rows = [
        {"trace": name, "slowdown": one.slowdown, "cause": one.cause, **asdict(one)}
        for name, one in found.items()
    ]
    emit(rows, as_json, lines)


def _steps(what: str | None, runs_dir: Path) -> Iterator[tuple[str, list[Step]]]:
    """Name and steps of each trace in a folder, of a trace, or of a run.

    Raises:
        InputError: none was found.
    """
    from headway.console.analysis.actions import step_actions
    from headway.console.analysis.events import load_events
    from headway.console.analysis.own_steps import own_steps
    from headway.console.analysis.step_traces import read_steps

    path = Path(what or "")
    traces = sorted(path.rglob("*.parquet")) if what and _is_folder(what, runs_dir) else []
    if what and path.suffix == ".parquet":
        traces = [path]
    if traces:
        yield from ((str(one), [*read_steps(one).values()]) for one in traces)
        return
    run = with_records(find_run(what, runs_dir))
    for trouble in run.fetch_records():
        typer.echo(trouble, err=True)
    grid = run.config.parallel.grid
    steps = own_steps(step_actions(load_events(run.path), grid), grid)
    newest = sorted(steps)[-MAX_STEPS:]
    if not newest:
        raise InputError(f"run {run.name} has no finished step", remedy="wait for its first steps")
    yield run.name, [steps[key] for key in newest]


def _is_folder(what: str, runs_dir: Path) -> bool:
    """Whether it is a folder other than a run's.

    Raises:
        InputError: it is a path that leads nowhere; names of runs contain no slash.
    """
    path = Path(what)
    if "/" in what and not path.exists():
        raise InputError(f"{what} does not exist", remedy="check the path")
    is_run = any((folder / "run.json").exists() for folder in (runs_dir / what, path))
    return path.is_dir() and not is_run
