"""``headway node``: single nodes of a cluster or a run."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from headway.common.cli import AsJson
from headway.common.errors import DeadlineError, HeadwayError, InputError, RemoteError
from headway.common.help_pages import page
from headway.common.output import emit
from headway.common.polling import wait_until
from headway.console.commands.options import RUNS, AnyCluster, RunsDir, Yes, confirm, find_run
from headway.console.commands.pages import MACHINES, add_group

if TYPE_CHECKING:
    from headway.console.run import Run
    from headway.launch.cluster import ClusterFolder, NodeAddress
    from headway.launch.join.bundle import Bundle

REPORT_S = 10.0
"""A node reports twice a second; its executor takes a few seconds to start."""
REPORT_LIMIT_S = 60.0
CHECK_REPORT_S = 60.0
"""Added to the longest check of a machine: the driver reports one without a result before that."""

ClusterOption = Annotated[
    Path, typer.Option("--cluster", metavar="DIR", help="The cluster's folder.")
]
Node = Annotated[
    int, typer.Option("--node", metavar="NODE", help="Number of the node, from 0.", min=0)
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    example = "headway node stop --cluster clusters/mine --node 0"
    help_ = "Start, supervise or stop one node of a cluster."
    node = add_group(app, "node", help_, MACHINES, (example,))
    page(
        node,
        examples=(
            "headway node start --run tiny --node 1",
            "headway node start --cluster clusters/mine --node 0",
        ),
        json="one object: cluster, node, pid, endpoint",
    )(start)
    page(node, examples=(example,), json="one object: cluster, node, stopped")(stop)
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
    cluster: AnyCluster = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="A live run.")] = None,
    runs_dir: RunsDir = RUNS,
    as_json: AsJson = False,
) -> None:
    """Start a node, unless it runs already.

    Returns when the node can be reached, and in a live run when it reports to the driver: a node
    that was evicted, drained or given up becomes a spare again, or takes its ranks back. With --run
    on several machines, the node's executor is restarted, and --json prints run, node and machine.
    """
    if (cluster is None) == (run is None):
        raise InputError(
            "either --cluster or --run is needed", remedy="name the run or the cluster's folder"
        )
    from headway.launch.cluster import ClusterFolder

    if cluster is None:
        found = find_run(run, runs_dir)
        if found.folder.bundle.exists() or not found.live:
            _start_on_machine(node, found, as_json)
            return
        cluster = found.cluster_folder
    folder = ClusterFolder(cluster)
    folder.check_emulated()
    address, joined = _start_here(folder, node)
    pid, endpoint = address.process.pid, address.endpoint
    facts = {"cluster": str(cluster), "node": node, "pid": pid, "endpoint": endpoint}
    of_run = f" in run {joined.name}" if joined is not None else ""
    emit(facts, as_json, [f"node {node} is up{of_run}, pid {pid}, {endpoint}"])


def _start_here(folder: ClusterFolder, node: int) -> tuple[NodeAddress, Run | None]:
    """Start an emulated node, and let it join the live run that its cluster carries, if any.

    Raises:
        HeadwayError: it does not start, or does not report to the run's driver.
    """
    from headway.console.lifecycle.on_cluster import joinable_run
    from headway.launch.engines.local import LocalEngine
    from headway.launch.nodes import bring_up, rejoin

    deadline = time.monotonic() + REPORT_LIMIT_S
    while True:  # the end of a node that was evicted just now may still be under way
        address, run = bring_up(LocalEngine(folder), folder, node), joinable_run(folder, node)
        if run is None:
            return address, None
        rejoin(folder, node, run.path)
        if _comes_up(run, node):
            return address, run
        if time.monotonic() > deadline:
            raise HeadwayError(
                f"node {node} is up, but has not reported to the driver of run {run.name}",
                remedy=f"`headway status {run.name}` shows what the run waits for",
            )


def _start_on_machine(node: int, found: Run, as_json: bool) -> None:
    from headway.launch.engines.choose import of_bundle

    engine = of_bundle(_bundle_of(found))
    machine = engine.name_of(node)
    deadline = time.monotonic() + REPORT_LIMIT_S
    while True:  # the end of a node that was given up may be on its way to the machine
        engine.start_node(node, kill_hung=True)
        if _comes_up(found, node):
            break
        if time.monotonic() > deadline:
            raise HeadwayError(
                f"node {node} was started on {machine}, but has not reported to the driver",
                remedy=f"`headway logs {found.name} --name n{node}` shows its log",
            )
    facts = {"run": found.name, "node": node, "machine": machine}
    emit(facts, as_json, [f"node {node} of run {found.name} is up on {machine}"])


def _comes_up(run: Run, node: int) -> bool:
    """Whether the driver uses the node soon, or after the check that it has to pass first.

    Raises:
        HeadwayError: the check has failed.
    """
    wait_until(partial(_is_new_check_asked, run, node), REPORT_S)
    return wait_until(partial(_reports, run, node), REPORT_S) or _passes(run, node)


def _is_new_check_asked(run: Run, node: int) -> bool:
    """Have a machine checked again whose check has failed: it may have been repaired since.

    False if no driver answers.
    """
    try:
        status = run.status(timeout_s=1.0)
        if node in status.unused and node not in status.checking:
            run.command("check", node=node)
    except DeadlineError:
        return False
    except RemoteError:  # it has got ranks just now, or the driver is older
        return True
    return True


def _reports(run: Run, node: int) -> bool:
    """Whether the driver uses the node.

    Raises:
        HeadwayError: it does not, since the check of the machine has failed.
    """
    try:
        status = run.status(timeout_s=1.0)
    except DeadlineError:
        return False
    if node in status.unused and node not in status.checking:
        raise HeadwayError(
            f"node {node} reports to the driver, but is not used: {status.unused[node]}",
            remedy="`headway health check` on the machine shows every check",
        )
    return status.nodes.get(node) in ("active", "spare")


def _passes(run: Run, node: int) -> bool:
    """Whether the driver uses the node after a check that is under way; False without one.

    Raises:
        HeadwayError: the check has failed.
    """

    def is_settled() -> bool:
        return _reports(run, node) or not _is_checked(run, node)

    limit_s = run.config.health.quick_suite_s + CHECK_REPORT_S
    return _is_checked(run, node) and wait_until(is_settled, limit_s) and _reports(run, node)


def _is_checked(run: Run, node: int) -> bool:
    try:
        return node in run.status(timeout_s=1.0).checking
    except DeadlineError:
        return True


def _bundle_of(run: Run) -> Bundle:
    """The bundle of a live run on several machines.

    Raises:
        InputError: the run is not on several machines, or has ended.
    """
    from headway.console.hints import refuse_elsewhere
    from headway.launch.join.bundle import Bundle

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
    from headway.launch.engines.choose import config_of
    from headway.launch.join.ticket import Ticket

    bundle = _bundle_of(find_run(run, runs_dir))
    if node >= bundle.nodes:
        raise InputError(f"run {run} has no node {node}", remedy=f"use 0 to {bundle.nodes - 1}")
    typer.echo(Ticket.of(bundle, node, config_of(bundle.engine).scratch).to_json())


def stop(
    cluster: ClusterOption,
    node: Node,
    unused: Annotated[
        bool, typer.Option("--unused", help="Refuse if a live run uses the node.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End everything that runs on a node.

    Does nothing if the cluster or the node is absent.
    """
    from headway.console.lifecycle.on_cluster import check_unused
    from headway.launch.cluster import ClusterFolder
    from headway.launch.engines.local import LocalEngine

    folder = ClusterFolder(cluster)
    if folder.exists:
        folder.check_emulated()
        if unused:
            check_unused(folder, node, node)
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
    cluster: AnyCluster = None,
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
        words = ["-m", "headway.launch.machine", "init"]
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
