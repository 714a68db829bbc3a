"""``headway health``: checks this node; and the two daemons, which other parts of Headway start.

Exit codes: 0 healthy, 1 a check failed, 2 bad usage, as a Slurm prolog expects them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson, group
from headway.common.errors import InputError
from headway.common.help_pages import DAEMONS, page
from headway.common.output import emit
from headway.health.burst_cli import add_command
from headway.health.pairwise.cli import add_commands

if TYPE_CHECKING:
    from headway.common.plan.grid import Grid
    from headway.health.runner import CheckResult


def _unread(**options: Any) -> Any:
    """An option for a path that is not checked, since that would hang on a hung mount."""
    return typer.Option(parser=Path, metavar="DIR", **options)


app = group("Check machines, and watch the nodes of a run.", name="health")

RunId = Annotated[
    str, typer.Option(metavar="ID", help="Id of the run; heartbeats of other runs are dropped.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A limit of [health], as beat_interval_s=0.2; repeatable.",
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rules", metavar="FILE", help="TOML file with rules of your own for lines; repeatable."
    ),
]
Keys = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Folder with monitor.key and agent.key, made if missing."),
]
Executor = Annotated[
    str | None,
    typer.Option(metavar="ENDPOINT", help="ipc:// endpoint that receives the heartbeats."),
]
MetricsPort = Annotated[
    int | None, typer.Option(metavar="PORT", help="Prometheus on loopback; 0 takes a free port.")
]


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
    disk: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder that the disk check writes to.")
    ] = None,
    min_shm_mib: Annotated[
        int | None, typer.Option(metavar="MIB", help="Least free shared memory, in MiB.")
    ] = None,
    deadline_s: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time limit of one check.")
    ] = None,
    mount: Annotated[
        list[Path] | None, _unread(help="Folder that must answer and be writable; repeatable.")
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

    from headway.health.baseline import merged, read_baseline, save_values
    from headway.health.checks.base import MIB, CheckSettings
    from headway.health.machine import this_machine
    from headway.health.report import Judge, summary
    from headway.health.runner import run_suite

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


@page(app, heading=DAEMONS)
def agent(
    endpoint: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="Where to listen: ipc:///path.sock.")
    ],
    node_file: Annotated[Path, typer.Option(help="JSON file with the monitor's endpoint and key.")],
    keys: Keys,
    shm_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Shared-memory folder of the node, with its flight records."
        ),
    ],
    logs: Annotated[Path, _unread(help="Folder with the logs to follow.")],
    run_id: RunId,
    node: Annotated[int, typer.Option(help="Number of this node.")],
    log_pattern: Annotated[
        str,
        typer.Option(metavar="PATTERN", help="This node's files in that folder; *.log by default."),
    ] = "*.log",
    executor: Executor = None,
    metrics_port: MetricsPort = None,
    rank_metrics: Annotated[
        bool, typer.Option("--rank-metrics", help="Export the figures of each rank, too.")
    ] = False,
    events: Annotated[Path | None, _unread(help="Folder where flight records are saved.")] = None,
    fabric_address: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where other nodes reach the ranks of this one.")
    ] = "",
    mount: Annotated[
        list[Path] | None,
        _unread(help="Folder on a file system that the run needs, besides its logs; repeatable."),
    ] = None,
    sysfs_root: Annotated[
        Path,
        typer.Option(
            parser=Path,
            metavar="DIR",
            envvar="HEADWAY_SYSFS_ROOT",
            help="Instead of /sys, for counters of NICs and interfaces.",
        ),
    ] = Path("/sys"),
    kmsg: Annotated[
        Path,
        typer.Option(
            parser=Path,
            metavar="FILE",
            envvar="HEADWAY_KMSG",
            help="Instead of /dev/kmsg: a file of kernel lines.",
        ),
    ] = Path("/dev/kmsg"),
    nvml: Annotated[
        str,
        typer.Option(
            metavar="LIBRARY", envvar="HEADWAY_NVML", help="Instead of libnvidia-ml.so.1."
        ),
    ] = "",
    rules: Rules = None,
    keep_gib: Annotated[
        float, typer.Option(metavar="GIB", help="Disk space for saved flight records.")
    ] = 4.0,
    verdicts: Annotated[
        Path | None,
        _unread(help="The run's verdicts.jsonl: records around incidents are kept longer."),
    ] = None,
    overrides: Set = None,
) -> None:
    """Observe the ranks of this node and report to the run's monitor."""
    from headway.common.config import load
    from headway.health.agent import AgentOptions, run_agent
    from headway.health.config import HealthConfig

    options = AgentOptions(
        endpoint,
        node_file,
        keys,
        shm_dir,
        logs,
        run_id,
        node,
        log_pattern,
        executor,
        metrics_port,
        rank_metrics,
        events,
        fabric_address,
        tuple(mount or ()),
        sysfs_root,
        kmsg,
        nvml,
        keep_gib,
        verdicts,
    )
    config = load(HealthConfig, overrides=overrides or ())
    raise typer.Exit(run_agent(options, config.with_rules(rules or ())))


@page(app, heading=DAEMONS)
def monitor(
    run_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder of the run: verdicts.jsonl is written, driver.json read."
        ),
    ],
    run_id: RunId,
    keys: Keys,
    node: Annotated[
        int, typer.Option(help="Number of the node that it runs on; 0 by default.")
    ] = 0,
    announce: Annotated[
        Path | None,
        typer.Option(
            help="JSON file for endpoint and key, for the agents of a run without a driver."
        ),
    ] = None,
    bind: Annotated[
        str, typer.Option(metavar="ENDPOINT", help="tcp:// address to listen on.")
    ] = "tcp://127.0.0.1:0",
    executor: Executor = None,
    metrics_port: MetricsPort = None,
    grid: Annotated[
        str,
        typer.Option(metavar="DEGREES", help="TP,DP,PP of the run: which ranks do the same work."),
    ] = "",
    rules: Rules = None,
    summaries: Annotated[
        Path | None, _unread(help="Folder where summaries of steps are saved.")
    ] = None,
    keep_gib: Annotated[float, typer.Option(metavar="GIB", help="Disk space for them.")] = 4.0,
    overrides: Set = None,
) -> None:
    """Judge what the agents of a run report, and advise its driver."""
    from headway.common.config import load
    from headway.health.config import HealthConfig
    from headway.health.monitor import MonitorOptions, run_monitor

    options = MonitorOptions(
        bind,
        keys,
        run_dir,
        run_id,
        node,
        announce,
        executor,
        metrics_port,
        _grid(grid),
        summaries,
        keep_gib,
    )
    config = load(HealthConfig, overrides=overrides or ())
    raise typer.Exit(run_monitor(options, config.with_rules(rules or ())))


def _grid(text: str) -> Grid | None:
    """The grid of ``TP,DP,PP``, None of an empty text.

    Raises:
        InputError: it is something else.
    """
    if not text:
        return None
    from headway.common.plan.grid import Grid

    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
        raise InputError(f"--grid {text!r} is not TP,DP,PP", remedy="give three counts, as 1,2,2")
    tp, dp, pp = map(int, parts)
    return Grid(tp=tp, dp=dp, pp=pp)


def _line(result: CheckResult) -> str:
    mark = {True: "ok", False: "FAILED", None: "not run"}[result.ok]
    remedy = f"; {result.remedy}" if result.remedy else ""
    return f"{mark:<7} {result.name:<12} {result.duration_s:5.1f} s  {result.message}{remedy}"
