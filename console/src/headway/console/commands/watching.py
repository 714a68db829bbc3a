"""Commands that look at runs, live or ended, and change nothing."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson
from headway.common.errors import DeadlineError
from headway.common.help_pages import page
from headway.common.output import Table, emit, to_json
from headway.console.commands.options import (
    RUNS,
    AnyRun,
    RunsDir,
    complete_logs,
    complete_ranks,
    find_run,
    known_runs,
)
from headway.console.commands.pages import LOOK
from headway.console.commands.pods import on_pods
from headway.console.folder.logs import LEVELS

if TYPE_CHECKING:
    from headway.common.plan.grid import Grid
    from headway.common.wire.messages.driver import RankStatus
    from headway.console.live.progress import Progress
    from headway.console.run import Run


FEW_RANKS = 64
"""A table of so many ranks still fits on a screen or two."""
NEWEST_LINES = 50
FEW_RESUMED = 3
"""How many runs, the newest, the list gives resume commands for; --json has them all."""
PROGRESS_KEYS = (
    "name, phase, step, steps, loss, grad_norm, lr, tokens_per_s, mfu, eta_s, generation, paused, "
    "skipped, last_skipped, waiting, applied, detail, findings, status"
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    look = partial(page, app, heading=LOOK)
    look(
        examples=("headway runs", "headway runs --json | jq -r '.[].name'"),
        json="list: name, state, step, steps, checkpoint, started_unix_s, size_bytes, resume, "
        "trouble",
    )(runs)
    look(
        examples=("headway status", "headway status tiny --ranks"),
        json=f"one object: {PROGRESS_KEYS}",
    )(status)
    look(
        examples=("headway watch", "headway watch tiny --json"),
        json="one object per line: the keys of `status` and unix_s; or event, unix_s",
    )(watch)
    look(
        examples=("headway logs -f", "headway logs --rank 2 --since 5m --level warning"),
        json="one object per line: timestamp, level, event, file, and the fields of that event",
    )(logs)


def runs(runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """List the runs: state, step, age, size, resume commands.

    A run is starting, live, finished, stopped or failed; interrupted means that its processes ended
    without an outcome, as in a power cut. A run on machines is unreachable while no driver leads
    it: another one may take over.
    """
    from headway.console.folder import run_list

    found = run_list.entries(known_runs(runs_dir))
    lines: list[str | Table] = [f"no run in {runs_dir}; start one with `headway run`"]
    if found:
        lines = [Table(run_list.rows(found), run_list.HEADER)]
        lines += [f"run {entry.name}: {entry.trouble}" for entry in found if entry.trouble]
        resumable = [entry for entry in found if entry.resume][-FEW_RESUMED:]
        lines += [""] * bool(resumable)
        lines += [f"resume {entry.name}:  {entry.resume}" for entry in resumable]
    emit(found, as_json, lines)


def status(
    run: AnyRun = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help=f"List every rank; by default only up to {FEW_RANKS}.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Show progress, ranks, nodes and services of a run.

    The phase is starting while a command starts the run, with what that does and for how long, and
    running while the run trains. While its ranks start or recover it is gathering, reading,
    choosing, beginning, joining or leaving, with a sentence that says what it waits for.
    It is unreachable while no driver answers; another one takes over then.

    Of a run on Kubernetes it shows what each pod does or waits for.
    """
    from headway.console.live.progress import read_progress

    found = find_run(run, runs_dir)
    if (pods := on_pods(found)) is not None:
        pods.show(as_json)
        return
    few = found.config.parallel.world_size <= FEW_RANKS
    progress = read_progress(found, found.peak, num_ranks=FEW_RANKS if few else 0)
    if ranks or not few:
        progress = _with_ranks(progress, _all(found) if ranks else ())
    lines: list[str | Table] = [f"run {progress.name}: {progress.line()}"]
    if progress.detail:
        lines.append(progress.detail)
    lines += progress.findings
    lines += [f"run {progress.name}: {line}" for line in _journal_lines(found)]
    if progress.status is not None:
        lines += _status_lines(progress, found.config.parallel.grid)
    emit(progress, as_json, lines)


def _journal_lines(run: Run) -> list[str]:
    """What is wrong with the journal, and that it was: what it held is not in the new one."""
    from headway.controller.client import damaged_of

    trouble = run.journal_trouble
    lines = [trouble] if trouble else []
    if kept := damaged_of(run.folder.database):
        lines.append(f"metrics and events until the damage are in {', '.join(kept)} only")
    return lines


def _all(run: Run) -> tuple[RankStatus, ...]:
    with contextlib.suppress(DeadlineError):
        return tuple(run.ranks())
    return ()


def _with_ranks(progress: Progress, ranks: tuple[RankStatus, ...]) -> Progress:
    import msgspec

    if progress.status is None:
        return progress
    status = msgspec.structs.replace(progress.status, ranks=ranks)  # type: ignore[type-var]
    return replace(progress, status=status)


def _status_lines(progress: Progress, grid: Grid) -> list[str | Table]:
    assert progress.status is not None
    ranks = [
        (r.rank, grid.place(r.rank), r.node, r.pid, r.status, r.step) for r in progress.status.ranks
    ]
    troubles = sorted([*progress.status.troubles.items(), *progress.status.unused.items()])
    troubles += sorted(progress.status.machines.items())
    lines: list[str | Table] = [f"node {node}: {trouble}" for node, trouble in troubles]
    if progress.status.num_ranks > len(ranks):
        counts = sorted(progress.status.statuses.items(), key=lambda item: (-item[1], item[0]))
        summary = ", ".join(f"{number} {status}" for status, number in counts)
        lines.append(f"{progress.status.num_ranks} ranks: {summary}; --ranks lists them")
    if ranks:
        lines.append(Table(ranks, ("rank", "place", "node", "pid", "status", "step")))
    if progress.status.dp_pairs:
        lines.append(
            f"network: {progress.status.dp_crossing} of {progress.status.dp_pairs} pairs of "
            "neighbours in data parallelism (dp) cross leaf switches"
        )
    measured = [rank for rank in progress.status.ranks if rank.memory_bytes]
    if measured:
        from headway.common.plan.memory import size

        most = max(measured, key=lambda rank: rank.memory_bytes)
        lines.append(
            f"memory: rank {most.rank} uses most, {size(most.memory_bytes)} at its peak "
            f"(predicted: {size(most.memory_predicted)})"
        )
    for node, state in sorted(progress.status.nodes.items()):
        services = progress.status.services.get(node, {})
        pids = ", ".join(f"{name} {pid}" for name, pid in sorted(services.items()))
        lines.append(f"node {node} {state}{': ' if pids else ''}{pids}")
    return lines


def watch(
    run: AnyRun = None,
    every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Time between lines without a terminal; 5 by default.", min=0.1
        ),
    ] = 5.0,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Follow a run to its end; Ctrl-C only ends the watching."""
    from headway.console.live.follow import Follower

    found = find_run(run, runs_dir)
    if (pods := on_pods(found)) is not None:
        raise typer.Exit(pods.watch(as_json))
    follower = Follower(found, peak=found.peak, as_json=as_json, every_s=every)
    raise typer.Exit(1 if follower.follow() == "failed" else 0)


def logs(
    run: AnyRun = None,
    name: Annotated[
        str,
        typer.Option(
            metavar="PART",
            help="Part of the file's name: driver, n0, n1-agent...",
            autocompletion=complete_logs,
        ),
    ] = "",
    rank: Annotated[
        int | None,
        typer.Option(metavar="RANK", help="Lines of this rank.", autocompletion=complete_ranks),
    ] = None,
    level: Annotated[
        str,
        typer.Option(
            metavar="LEVEL",
            help="Lowest level: debug (the default), info, warning, error, critical.",
            autocompletion=lambda: list(LEVELS),
        ),
    ] = "debug",
    since: Annotated[
        str, typer.Option(metavar="AGO", help="Lines of the newest 90s, 5m, 2h or 1d.")
    ] = "",
    tail: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--tail",
            metavar="LINES",
            help="Newest lines to begin with; 50 by default, all with --since.",
            min=0,
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new lines as they come.")
    ] = False,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Print log lines of all processes, in order of time."""
    from headway.console.folder.logs import LogReader

    found = find_run(run, runs_dir)
    if rank is not None:
        found.check_rank(rank)
    for trouble in found.fetch_records():
        typer.echo(trouble, err=True)
    folders = found.log_folders
    reader = LogReader(folders, name=name, rank=rank, level=level, since=since or None)
    lines, newest = reader.read(), NEWEST_LINES if tail is None else tail
    is_all = bool(since) and tail is None
    _print_lines(lines if is_all else lines[max(0, len(lines) - newest) :], as_json)
    while follow:
        live = found.live
        _print_lines(reader.read(), as_json)
        if not live:
            return
        time.sleep(0.3)


def _print_lines(lines: list[dict[str, Any]], as_json: bool) -> None:
    from headway.console.folder.logs import as_text

    for line in lines:
        typer.echo(to_json(line) if as_json else as_text(line))
