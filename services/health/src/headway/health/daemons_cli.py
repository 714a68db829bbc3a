"""``headway health agent`` and ``monitor``: the daemons, which other parts of Headway start.

Their options are declared here one by one, in groups, and the commands only list them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from headway.common.errors import InputError
from headway.common.help_pages import DAEMONS, page
from headway.health.notify.address import ENV

if TYPE_CHECKING:
    from headway.common.plan.grid import Grid


def unread(**options: Any) -> Any:
    """An option for a path that is not checked, since that would hang on a hung mount."""
    return typer.Option(parser=Path, metavar="DIR", **options)


def add_daemons(app: typer.Typer) -> None:
    """Add both commands to ``headway health``."""
    page(app, heading=DAEMONS)(agent)
    page(app, heading=DAEMONS)(monitor)


# ---- of both ------------------------------------------------------------------------------------
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

# ---- of the agent: the run and its node ---------------------------------------------------------
Endpoint = Annotated[
    str, typer.Option(metavar="ENDPOINT", help="Where to listen: ipc:///path.sock.")
]
NodeFile = Annotated[Path, typer.Option(help="JSON file with the monitor's endpoint and key.")]
Node = Annotated[int, typer.Option(help="Number of this node.")]
RankMetrics = Annotated[
    bool, typer.Option("--rank-metrics", help="Export the figures of each rank, too.")
]
FabricAddress = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where other nodes reach the ranks of this one.")
]

# ---- of the agent: what it reads ----------------------------------------------------------------
ShmDir = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Shared-memory folder of the node, with its flight records."),
]
Logs = Annotated[Path, unread(help="Folder with the logs to follow.")]
LogPattern = Annotated[
    str,
    typer.Option(metavar="PATTERN", help="This node's files in that folder; *.log by default."),
]
Mount = Annotated[
    list[Path] | None,
    unread(help="Folder on a file system that the run needs, besides its logs; repeatable."),
]
SysfsRoot = Annotated[
    Path,
    typer.Option(
        parser=Path,
        metavar="DIR",
        envvar="HEADWAY_SYSFS_ROOT",
        help="Instead of /sys, for counters of NICs and interfaces.",
    ),
]
Kmsg = Annotated[
    Path,
    typer.Option(
        parser=Path,
        metavar="FILE",
        envvar="HEADWAY_KMSG",
        help="Instead of /dev/kmsg: a file of kernel lines.",
    ),
]
Nvml = Annotated[
    str,
    typer.Option(metavar="LIBRARY", envvar="HEADWAY_NVML", help="Instead of libnvidia-ml.so.1."),
]

# ---- of the agent: what it keeps ----------------------------------------------------------------
Events = Annotated[Path | None, unread(help="Folder where flight records are saved.")]
KeepGib = Annotated[float, typer.Option(metavar="GIB", help="Disk space for saved flight records.")]
Verdicts = Annotated[
    Path | None,
    unread(help="The run's verdicts.jsonl: records around incidents are kept longer."),
]


def agent(
    endpoint: Endpoint,
    node_file: NodeFile,
    keys: Keys,
    shm_dir: ShmDir,
    logs: Logs,
    run_id: RunId,
    node: Node,
    log_pattern: LogPattern = "*.log",
    executor: Executor = None,
    metrics_port: MetricsPort = None,
    rank_metrics: RankMetrics = False,
    events: Events = None,
    fabric_address: FabricAddress = "",
    mount: Mount = None,
    sysfs_root: SysfsRoot = Path("/sys"),
    kmsg: Kmsg = Path("/dev/kmsg"),
    nvml: Nvml = "",
    rules: Rules = None,
    keep_gib: KeepGib = 4.0,
    verdicts: Verdicts = None,
    overrides: Set = None,
) -> None:
    """Observe the ranks of this node and report to the run's monitor."""
    from headway.common.config import load
    from headway.health.agent import AgentOptions, run_agent
    from headway.health.config import HealthConfig

    options = AgentOptions(
        endpoint, node_file, keys, shm_dir, logs, run_id, node, log_pattern, executor, metrics_port,
        rank_metrics, events, fabric_address, tuple(mount or ()), sysfs_root, kmsg, nvml, keep_gib,
        verdicts,
    )  # fmt: skip
    config = load(HealthConfig, overrides=overrides or ())
    raise typer.Exit(run_agent(options, config.with_rules(rules or ())))


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
        Path | None, unread(help="Folder where summaries of steps are saved.")
    ] = None,
    keep_gib: Annotated[float, typer.Option(metavar="GIB", help="Disk space for them.")] = 4.0,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            envvar=ENV,
            help="Web address that verdicts are sent to; repeatable. In the environment, where no "
            "other user sees them, separated by spaces.",
        ),
    ] = None,
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
    config = load(HealthConfig, overrides=overrides or ()).notifying(notify or ())
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
