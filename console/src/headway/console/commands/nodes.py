"""``headway node``: single nodes of a cluster or a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import DeadlineError, HeadwayError, InputError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.common.polling import wait_until
from headway.console.commands.options import RUNS, RunsDir, Yes, confirm, find_run
from headway.console.commands.pages import MACHINES, add_group

if TYPE_CHECKING:
    from headway.console.run import Run
    from headway.launch.joining.bundle import Bundle

REPORT_S = 10.0
"""A node reports twice a second; its executor takes a few seconds to start."""
REPORT_LIMIT_S = 60.0

ClusterOption = Annotated[
    Path, typer.Option("--cluster", metavar="DIR", help="The cluster's folder.")
]
Node = Annotated[
    int, typer.Option("--node", metavar="NODE", help="Number of the node, from 0.", min=0)
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    node = add_group(
        app,
        "node",
        "Start, supervise or stop one node of a cluster.",
        MACHINES,
        ("headway node stop --cluster clusters/mine --node 0",),
    )
    page(
        node,
        examples=(
            "headway node start --run tiny --node 1",
            "headway node start --cluster clusters/mine --node 0",
        ),
        json="one object: cluster, node, pid, endpoint",
    )(start)
    page(
        node,
        examples=("headway node stop --cluster clusters/mine --node 0",),
        json="one object: cluster, node, stopped",
    )(stop)
    page(
        node,
        examples=(
            "headway node init --ticket ticket.json",
            "headway node init --cluster clusters/mine --node 0",
        ),
    )(init)
    page(node, examples=("headway node ticket --run tiny --node 2 > ticket.json",))(ticket)


def start(
    node: Node,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="DIR", help="The cluster's folder.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN", help="A run on several machines.")
    ] = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Start a node, unless it runs already.

    Returns when the node can be reached. With --run, the node's executor is restarted: a machine
    that was evicted, drained or given up becomes a spare again. --json then prints run, node and
    machine.
    """
    if (cluster is None) == (run is None):
        raise InputError(
            "either --cluster or --run is needed", remedy="use --run for a run on several machines"
        )
    if cluster is None:
        _start_on_machine(node, run, runs_dir, as_json)
        return
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine
    from headway.launch.nodes import bring_up

    folder = ClusterFolder(cluster)
    folder.check_emulated()
    address = bring_up(LocalEngine(folder), folder, node)
    pid, endpoint = address.process.pid, address.endpoint
    facts = {"cluster": str(cluster), "node": node, "pid": pid, "endpoint": endpoint}
    emit(facts, as_json, [f"node {node} is up, pid {pid}, {endpoint}"])


def _start_on_machine(node: int, run: str | None, runs_dir: Path, as_json: bool) -> None:
    from headway.launch.engines import of_bundle

    found = find_run(run, runs_dir)
    engine = of_bundle(_bundle_of(found))
    machine = engine.name_of(node)
    deadline = time.monotonic() + REPORT_LIMIT_S
    while True:  # the end of a node that was given up may be on its way to the machine
        engine.start_node(node, kill_hung=True)
        if wait_until(lambda: _reports(found, node), REPORT_S):
            break
        if time.monotonic() > deadline:
            raise HeadwayError(
                f"node {node} was started on {machine}, but has not reported to the driver",
                remedy=f"`headway logs {found.name} --name n{node}` shows its log",
            )
    facts = {"run": found.name, "node": node, "machine": machine}
    emit(facts, as_json, [f"node {node} of run {found.name} is up on {machine}"])


def _reports(run: Run, node: int) -> bool:
    try:
        return run.status(timeout_s=1.0).nodes.get(node) in ("active", "spare")
    except DeadlineError:
        return False


def _bundle_of(run: Run) -> Bundle:
    """
    Raises:
        InputError: the run is not on several machines, or has ended.
    """
    from headway.console.hints import refuse_elsewhere
    from headway.launch.joining.bundle import Bundle

    refuse_elsewhere(run.path)
    if not run.folder.bundle.exists():
        raise InputError(
            f"run {run.name} is not on several machines",
            remedy="use `headway node start --cluster DIR` for nodes on this machine",
        )
    if not run.live:
        raise InputError(f"run {run.name} is not live", remedy="resume it with `headway run`")
    return Bundle.load(run.folder.bundle)


def ticket(
    node: Node,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="A run on several machines.")],
    runs_dir: RunsDir = RUNS,
) -> None:
    """Print a ticket that lets a machine join a run as a node.

    For machines that your own supervisor starts; see docs/howto/ssh.md. The ticket is one line of
    JSON and valid for an hour. Keep it secret: it admits any machine. A file with it must have mode
    0600; `umask 077` before makes it so.
    """
    from headway.launch.engines import config_of
    from headway.launch.joining.ticket import Ticket

    bundle = _bundle_of(find_run(run, runs_dir))
    if node >= bundle.nodes:
        raise InputError(f"run {run} has no node {node}", remedy=f"use 0 to {bundle.nodes - 1}")
    typer.echo(Ticket.of(bundle, node, config_of(bundle.engine).scratch).to_json())


def stop(cluster: ClusterOption, node: Node, yes: Yes = False, as_json: AsJson = False) -> None:
    """End everything that runs on a node.

    Does nothing if the cluster or the node is absent.
    """
    from headway.launch.cluster import ClusterFolder
    from headway.launch.local import LocalEngine

    folder = ClusterFolder(cluster)
    if folder.exists:
        folder.check_emulated()
        if folder.carried(node) is not None:
            confirm(f"end the processes of the run on node {node} of {cluster}?", yes)
        LocalEngine(folder).stop_node(node)
    done = {"cluster": str(cluster), "node": node, "stopped": True}
    emit(done, as_json, [f"node {node} is stopped"])


def init(
    ticket: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Join a run with this output of `headway node ticket`."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option("--cluster", metavar="DIR", help="A cluster of nodes on this machine."),
    ] = None,
    node: Annotated[
        int | None, typer.Option("--node", metavar="NODE", help="Its node, from 0.", min=0)
    ] = None,
) -> None:
    """Supervise a node in the foreground.

    For systemd, srun, or the first process of a container. It starts the node's executor and
    restarts it when it fails or hangs.

    With --ticket, this machine joins a run. On SIGTERM the node hands over to a spare and leaves.

    With --cluster and --node it is the init of an emulated node, which `headway node start` runs in
    the background. SIGTERM and Ctrl-C are passed on to the executor, and init exits after it. If
    init is killed, the executor keeps running, and the next init adopts it.
    """
    import os
    import sys

    from headway.common.node.files import check_private
    from headway.launch.cluster import ClusterFolder

    if (cluster is None) != (node is None) or (cluster is None) == (ticket is None):
        raise InputError(
            "either --ticket, or --cluster and --node are needed",
            remedy="use --ticket to join a run, --cluster for a node on this machine",
        )
    if ticket is not None:
        words = ["-m", "headway.launch.joining", "init"]
        try:
            with ticket.open("rb") as file:
                check_private(ticket, os.fstat(file.fileno()).st_mode)
                os.dup2(file.fileno(), sys.stdin.fileno())
        except OSError as error:
            raise InputError(
                f"cannot read {ticket}: {error.strerror}", remedy="`headway node ticket` prints one"
            ) from error
    else:
        assert cluster is not None
        ClusterFolder(cluster).check_emulated()
        words = ["-m", "headway.launch.init", "--cluster", str(cluster), "--node", str(node)]
    os.execv(sys.executable, [sys.executable, *words])
