"""``headway health``: checks this node; and the two daemons, which other parts of Headway start.

Exit codes: 0 healthy, 1 a check failed, 2 bad usage, as a Slurm prolog expects them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson, group
from headway.common.errors import InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.health.burst_cli import add_command
from headway.health.daemons_cli import add_daemons, unread
from headway.health.pairwise.cli import add_commands

if TYPE_CHECKING:
    from headway.health.runner import CheckResult


app = group("Check machines, and watch the nodes of a run.", name="health")


@page(
    app,
    examples=(
        "{command}",
        "{command} --suite full --json",
        "{command} --disk /scratch --mount /shared --min-shm-mib 2048",
        "{command} --baseline fleet.json --save-baseline",
    ),
    json="one object: schema, suite, is_healthy, machine, results (name, ok, message, remedy, "
    "duration_s, values; ok is null if it was not run), judgements",
)
def check(
    suite: Annotated[
        str, typer.Option(metavar="SUITE", help="quick: seconds. full: minutes, all checks.")
    ] = "quick",
    as_json: AsJson = False,
    disk: Annotated[Path | None, unread(help="Folder that the disk check writes to.")] = None,
    min_shm_mib: Annotated[
        int | None, typer.Option(metavar="MIB", help="Least free shared memory, in MiB.")
    ] = None,
    deadline_s: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time limit of one check.")
    ] = None,
    mount: Annotated[
        list[Path] | None, unread(help="Folder that must answer and be writable; repeatable.")
    ] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Values of the fleet to judge by; repeatable."),
    ] = None,
    save_baseline: Annotated[
        bool,
        typer.Option("--save-baseline", help="Add this machine, if healthy, to the first FILE."),
    ] = False,
) -> None:
    """Check this machine: CPU, GPUs, memory, disk, network, clock.

    Exit code 0: healthy. 1: a check failed. 2: wrong usage. A check that does not apply to the
    machine is shown as not run, and counts as neither. A Slurm prolog can call it.
    """
    from dataclasses import replace

    from headway.common.node.process import end_with_parent
    from headway.health.baseline import merged, read_baseline, save_values
    from headway.health.checks.base import MIB, CheckSettings
    from headway.health.machine import this_machine
    from headway.health.report import Judge, summary
    from headway.health.runner import run_suite

    end_with_parent()
    if save_baseline and not baseline:
        raise InputError("--save-baseline without a file", remedy="add --baseline FILE")
    settings = CheckSettings(mounts=tuple(mount or ()))
    if disk is not None:
        settings = replace(settings, disk=disk)
    if min_shm_mib is not None:
        settings = replace(settings, min_shm_free_bytes=min_shm_mib * MIB)
    machine = this_machine()
    judge = Judge(machine, merged(map(read_baseline, baseline or ())))
    for result in judge.each(run_suite(suite, settings, deadline_s)):
        if not as_json:  # each as soon as it is done, since one check may take its whole deadline
            typer.echo(_line(result))
    report = judge.report(suite)
    emit(report, as_json, [summary(report)])
    if save_baseline and baseline and report.is_healthy:
        save_values(baseline[0], machine, report.values)
    raise typer.Exit(0 if report.is_healthy else 1)


add_commands(app)
add_command(app)
add_daemons(app)


def _line(result: CheckResult) -> str:
    mark = {True: "ok", False: "FAILED", None: "not run"}[result.ok]
    remedy = f"; {result.remedy}" if result.remedy else ""
    return f"{mark:<7} {result.name:<12} {result.duration_s:5.1f} s  {result.message}{remedy}"
