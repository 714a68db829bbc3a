"""``headway health``: checks this node; and the two daemons, which other parts of Headway start.

Exit codes: 0 healthy, 1 a check failed, 2 bad usage, as a Slurm prolog expects them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.cli import AsJson, group
from headway.common.output import emit

if TYPE_CHECKING:
    from headway.health.runner import CheckResult


def _unread(**options: Any) -> Any:
    """An option for a path that is not checked, since that would hang on a hung mount."""
    return typer.Option(parser=Path, metavar="<path>", **options)


app = group("Check this node; agent and monitor of a run.", name="health")

RunId = Annotated[str, typer.Option(help="Id of the run; beats of other runs are dropped.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A limit of [health], as beat_interval_s=0.2; repeatable."),
]
Keys = Annotated[
    Path, typer.Option(help="Folder with monitor.key and agent.key, made in it if missing.")
]
Executor = Annotated[
    str | None, typer.Option(help="ipc:// endpoint of the executor that gets beats.")
]
MetricsPort = Annotated[
    int | None, typer.Option(help="Prometheus port on loopback; 0 takes a free one.")
]


@app.command()
def check(
    suite: Annotated[str, typer.Option(help="The suite to run: 'quick'.")] = "quick",
    as_json: AsJson = False,
    disk: Annotated[Path | None, typer.Option(help="Folder that the disk check writes to.")] = None,
    min_shm_mib: Annotated[
        int | None, typer.Option(help="Minimum of free shared memory, MiB.")
    ] = None,
    deadline_s: Annotated[
        float | None, typer.Option(help="Time limit of one check, seconds.")
    ] = None,
) -> None:
    """Check this node. Exits with code 0 if healthy, 1 if a check failed, 2 on bad usage."""
    from dataclasses import replace

    from headway.health.checks.base import MIB, CheckSettings
    from headway.health.runner import run_suite

    settings = CheckSettings()
    if disk is not None:
        settings = replace(settings, disk=disk)
    if min_shm_mib is not None:
        settings = replace(settings, min_shm_free_bytes=min_shm_mib * MIB)
    results = []
    for result in run_suite(suite, settings, deadline_s):
        results.append(result)
        if not as_json:  # each as soon as it is done, since one check may take its whole deadline
            typer.echo(_line(result))
    emit(results, as_json, [])
    raise typer.Exit(0 if all(result.ok for result in results) else 1)


@app.command()
def agent(
    endpoint: Annotated[str, typer.Option(help="ipc:// endpoint to serve on.")],
    node_file: Annotated[Path, typer.Option(help="JSON file with the monitor's endpoint and key.")],
    keys: Keys,
    shm_dir: Annotated[
        Path, typer.Option(help="Shared-memory folder of the node, with its flight rings.")
    ],
    logs: Annotated[Path, _unread(help="Folder with the logs to follow.")],
    run_id: RunId,
    node: Annotated[int, typer.Option(help="Number of this node.")],
    log_pattern: Annotated[
        str, typer.Option(help="Pattern of this node's files in the folder.")
    ] = "*.log",
    executor: Executor = None,
    metrics_port: MetricsPort = None,
    rank_metrics: Annotated[
        bool, typer.Option("--rank-metrics", help="Export the figures of each rank, too.")
    ] = False,
    events: Annotated[Path | None, _unread(help="Folder where flight records are saved.")] = None,
    overrides: Set = None,
) -> None:
    """Watch this node for the monitor of a run."""
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
    )
    raise typer.Exit(run_agent(options, load(HealthConfig, overrides=overrides or ())))


@app.command()
def monitor(
    run_dir: Annotated[
        Path, typer.Option(help="Folder of the run: verdicts.jsonl is written, driver.json read.")
    ],
    run_id: RunId,
    keys: Keys,
    node: Annotated[int, typer.Option(help="Number of the node that the monitor runs on.")] = 0,
    announce: Annotated[
        Path | None,
        typer.Option(
            help="JSON file for endpoint and key, for the agents of a run without a driver."
        ),
    ] = None,
    bind: Annotated[str, typer.Option(help="tcp:// address to listen on.")] = "tcp://127.0.0.1:0",
    executor: Executor = None,
    metrics_port: MetricsPort = None,
    overrides: Set = None,
) -> None:
    """Evaluate the beats of a run's agents and advise its driver."""
    from headway.common.config import load
    from headway.health.config import HealthConfig
    from headway.health.monitor import MonitorOptions, run_monitor

    options = MonitorOptions(bind, keys, run_dir, run_id, node, announce, executor, metrics_port)
    raise typer.Exit(run_monitor(options, load(HealthConfig, overrides=overrides or ())))


def _line(result: CheckResult) -> str:
    mark = "ok    " if result.ok else "FAILED"
    remedy = f"; {result.remedy}" if result.remedy else ""
    return f"{mark} {result.name:<10} {result.duration_s:5.1f} s  {result.message}{remedy}"
