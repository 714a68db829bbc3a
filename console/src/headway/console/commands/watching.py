"""Commands that look at runs, live or ended, and change nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson
from headway.common.errors import DeadlineError
from headway.common.output import Table, emit, to_json
from headway.console.commands.options import RUNS, AnyRun, RunsDir, check_rank, find_run

if TYPE_CHECKING:
    from headway.common.wire.messages.driver import RankStatus
    from headway.console.progress import Progress
    from headway.console.run import Run


FEW_RANKS = 64
"""A table of so many ranks still fits on a screen or two."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("runs")(runs)
    app.command("status")(status)
    app.command("watch")(watch)
    app.command("logs")(logs)


def runs(runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """List the runs: state, step, newest checkpoint."""
    from headway.console.cluster import Cluster
    from headway.console.summary import checkpoints

    rows = []
    for run in Cluster(runs_dir).runs():
        kept = checkpoints(run)
        rows.append(
            {
                "name": run.name,
                "state": run.state,
                "step": completed_steps(run),
                "steps": run.config.train.steps,
                "checkpoint": kept[-1]["step"] if kept else None,
            }
        )
    cells = [
        (
            row["name"],
            row["state"],
            f"{row['step']}/{row['steps']}",
            None if row["checkpoint"] is None else f"step {row['checkpoint']}",
        )
        for row in rows
    ]
    table = Table(cells, ("run", "state", "step", "checkpoint"))
    none = f"no run in {runs_dir}; start one with `headway run`"
    emit(rows, as_json, [table if rows else none])


def completed_steps(run: Run) -> int:
    """Completed steps, by the journal."""
    newest = run.query("SELECT MAX(step) FROM metrics")
    return 0 if not newest or newest[0][0] is None else int(newest[0][0]) + 1


def status(
    run: AnyRun = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help=f"List every rank; else only up to {FEW_RANKS} ranks.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show progress, ranks, nodes and services of a run."""
    from headway.console.progress import read_progress

    found = find_run(run, runs_dir)
    few = found.config.parallel.world_size <= FEW_RANKS
    progress = read_progress(found, found.peak, num_ranks=FEW_RANKS if few else 0)
    if ranks or not few:  # a driver of an older version lists all of them unasked
        progress = _with_ranks(progress, _all(found) if ranks else ())
    lines: list[str | Table] = [f"run {progress.name}: {progress.line()}"]
    if progress.detail:
        lines.append(progress.detail)
    if progress.status is not None:
        lines += _status_lines(progress)
    emit(progress, as_json, lines)


def _all(run: Run) -> tuple[RankStatus, ...]:
    with contextlib.suppress(DeadlineError):
        return tuple(run.ranks())
    return ()


def _with_ranks(progress: Progress, ranks: tuple[RankStatus, ...]) -> Progress:
    if progress.status is None:
        return progress
    fields = {name: getattr(progress.status, name) for name in progress.status.__struct_fields__}
    return replace(progress, status=type(progress.status)(**{**fields, "ranks": ranks}))


def _status_lines(progress: Progress) -> list[str | Table]:
    assert progress.status is not None
    ranks = [(r.rank, r.node, r.pid, r.status, r.step) for r in progress.status.ranks]
    lines: list[str | Table] = []
    if progress.status.num_ranks > len(ranks):
        counts = sorted(progress.status.statuses.items(), key=lambda item: (-item[1], item[0]))
        summary = ", ".join(f"{number} {status}" for status, number in counts)
        lines.append(f"{progress.status.num_ranks} ranks: {summary}; --ranks lists them")
    if ranks:
        lines.append(Table(ranks, ("rank", "node", "pid", "status", "step")))
    for node, state in sorted(progress.status.nodes.items()):
        services = progress.status.services.get(node, {})
        pids = ", ".join(f"{name} {pid}" for name, pid in sorted(services.items()))
        lines.append(f"node {node} {state}{': ' if pids else ''}{pids}")
    return lines


def watch(
    run: AnyRun = None,
    every: Annotated[
        float, typer.Option(help="Seconds between lines without a terminal.", min=0.1)
    ] = 5.0,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Follow a run to its end. Ctrl-C only ends the watching; --json prints one object a time."""
    from headway.console.follow import Follower

    found = find_run(run, runs_dir)
    follower = Follower(found, peak=found.peak, as_json=as_json, every_s=every)
    raise typer.Exit(1 if follower.follow() == "failed" else 0)


def logs(
    run: AnyRun = None,
    name: Annotated[
        str, typer.Option(help="Part of the file's name: driver, n0, n1-zygote...")
    ] = "",
    rank: Annotated[int | None, typer.Option(help="Lines of this rank only.")] = None,
    level: Annotated[
        str, typer.Option(help="Lowest level: debug, info, warning, error, critical.")
    ] = "debug",
    tail: Annotated[
        int, typer.Option("-n", "--tail", help="Newest lines to begin with.", min=0)
    ] = 50,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on as new lines come.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Print the newest log lines of all processes.

    Lines of all files of the run, in order of time.
    """
    from headway.console.logs import LogReader

    found = find_run(run, runs_dir)
    if rank is not None:
        check_rank(found, rank)
    reader = LogReader(
        [found.folder.logs, found.cluster_folder / "logs"], name=name, rank=rank, level=level
    )
    reader.check_name()
    _print_lines(reader.read()[-tail:] if tail else [], as_json)
    while follow:
        live = found.live
        _print_lines(reader.read(), as_json)
        if not live:
            return
        time.sleep(0.3)


def _print_lines(lines: list[dict[str, Any]], as_json: bool) -> None:
    from headway.console.logs import as_text

    for line in lines:
        typer.echo(to_json(line) if as_json else as_text(line))
