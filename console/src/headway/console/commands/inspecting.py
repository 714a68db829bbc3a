"""``headway trace``, ``headway replay`` and ``headway doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from headway.common.cli import AsJson
from headway.common.help_pages import page
from headway.common.output import Table, emit
from headway.console.commands.options import RUNS, AnyRun, RunsDir, Settings, find_run
from headway.console.commands.pages import LOOK, MACHINES
from headway.console.commands.pods import with_records


def register(app: typer.Typer) -> None:
    """Add the commands."""
    page(
        app,
        heading=LOOK,
        examples=("headway trace", "headway trace tiny --steps 10:20 -o tiny.pftrace"),
        json="one object: run, path, slices",
    )(trace)
    page(
        app, heading=LOOK, examples=("headway replay",), json="list: epoch, clock, event, then, now"
    )(replay)
    page(
        app,
        heading=MACHINES,
        examples=("headway doctor", "headway doctor my.toml --set parallel.nccl_profile=roce"),
        json="list: name, level, message, remedy",
    )(doctor)


def trace(
    run: AnyRun = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="trace.json (the default), trace.json.gz, or trace.pftrace for protobuf.",
        ),
    ] = Path("trace.json"),
    steps: Annotated[
        str,
        typer.Option(
            metavar="FIRST:LAST",
            help="Only these steps, both included; `:` for all. Otherwise the last 50 before the "
            "end and before each recovery.",
        ),
    ] = "",
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write a trace of all ranks for ui.perfetto.dev."""
    from headway.console.live.summary import TRACED_STEPS
    from headway.console.trace.export import clock_troubles, parse_steps, write_trace

    found = with_records(find_run(run, runs_dir))
    for trouble in [*found.fetch_records(), *clock_troubles(found)]:
        typer.echo(trouble, err=True)
    newest = None if steps else TRACED_STEPS
    written = write_trace(found, out, steps=parse_steps(steps), newest=newest)
    done = {"run": found.name, "path": out, "slices": written}
    lines = [f"{out}: {written} slices; open it in https://ui.perfetto.dev"]
    if newest is not None:
        lines.append(f"the last {newest} steps before the end and each recovery; --steps : for all")
    emit(done, as_json, lines)


def replay(run: AnyRun = None, runs_dir: RunsDir = RUNS, as_json: AsJson = False) -> None:
    """Make the driver's recorded decisions again.

    Exits 1 if this version decides differently.
    """
    from headway.console.hints import refuse_elsewhere
    from headway.controller.client import replay as decisions

    found = find_run(run, runs_dir)
    refuse_elsewhere(found.path)
    rows = list(decisions(found.folder.database))
    differing = [row for row in rows if row.then != row.now]
    lines = [f"epoch {row.epoch}  {row.clock:.3f} s  {row.event}: {row.then}" for row in rows]
    lines += [f"DIFFERS at {row.clock:.3f} s, today: {row.now or 'nothing'}" for row in differing]
    lines.append(f"{len(rows)} decisions, {len(differing)} of them differ today")
    emit(rows, as_json, lines)
    raise typer.Exit(1 if differing else 0)


def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="TOML file: also show what it sets for NCCL here."),
    ] = None,
    overrides: Settings = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine can run Headway.

    Exits 1 if something would keep a run from working.
    """
    from headway.console.machine.doctor import examine

    found = examine(runs_dir)
    if config is not None or overrides:
        from headway.common.config import load
        from headway.console.machine.nccl import examine_nccl
        from headway.trainer.config import RunConfig

        found |= examine_nccl(load(RunConfig, [config] if config else [], overrides or []))
    marks = {"ok": "ok", "note": "NOTE", "bad": "BAD"}
    rows = [
        (marks[f.level], name, f"{f.message}; {f.remedy}" if f.remedy else f.message)
        for name, f in found.items()
    ]
    emit([{"name": name, **vars(f)} for name, f in found.items()], as_json, [Table(rows)])
    raise typer.Exit(1 if any(f.level == "bad" for f in found.values()) else 0)
