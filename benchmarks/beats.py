"""What do the beats of many nodes cost their driver, sockets included?

``python -m benchmarks.beats``.

A real driver process gets a run of ``--nodes`` nodes with 8 ranks each. This process plays all
their executors over CURVE: it answers what a generation needs until every rank runs, and sends one
beat a second for each node, one more whenever a node changes. Reported is the processor time of the
driver in that time, as cores.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import zmq
from headway.common.config import load
from headway.common.node.testing import private_roots
from headway.common.polling import wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.driver import GetStatus, Status
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder
from headway.testkit.played.executor import Inbox, PlayedExecutor
from headway.testkit.played.place import Place
from headway.trainer.config import RunConfig

from benchmarks.report import finish, parser

RANKS = 8
LIMIT_CORES = 0.2


def configuration(nodes: int) -> RunConfig:
    """A run of so many ranks; nothing of it is ever trained."""
    world = nodes * RANKS
    return load(
        RunConfig,
        overrides=[
            f"parallel.tp={RANKS}", "parallel.pp=1", f"parallel.dp={nodes}", "model.heads=8",
            f"launch.nodes={nodes}", f"launch.ranks_per_node={RANKS}", "launch.spares=0",
            f"train.global_batch_size={nodes}", "train.micro_batch_size=1",
            "recovery.join_timeout_s=600", "recovery.node_silent_s=100", "recovery.node_lost_s=200",
            f"train.steps={world}",
        ],
    )  # fmt: skip


def measure(folder: Path, nodes: int, seconds: float) -> dict[str, float | int]:
    """Cores that a driver of so many nodes needs at one beat a second each."""
    place = Place(folder, configuration(nodes), nodes)
    executors: list[PlayedExecutor] = []
    driver = place.start()
    try:
        holder, keys, inbox = place.holder(), place.cluster.key_of("executor"), Inbox()
        zmq.Context.instance().set(zmq.MAX_SOCKETS, 16384)
        executors += [
            PlayedExecutor(number, place.run.run_id, holder, keys, inbox, RANKS)
            for number in range(nodes)
        ]
        start_s = time.monotonic()
        until_running(executors, inbox, holder, place.cluster)
        started_s = time.monotonic() - start_s
        used = cores(psutil.Process(driver.pid), executors, seconds)
    finally:
        place.close()
        for executor in executors:
            executor.leave()
    return {"nodes": nodes, "ranks": nodes * RANKS, "cores": used, "until_running_s": started_s}


def until_running(
    executors: Sequence[PlayedExecutor], inbox: Inbox, holder: Holder, cluster: ClusterFolder
) -> None:
    """Play the executors until every rank runs."""
    with console_of(holder, cluster) as console:

        def is_running() -> bool:
            turn(executors, inbox)
            return phase_of(console) == "running"

        assert wait_until(is_running, 300.0, every_s=0.01), "the run does not begin"


def console_of(holder: Holder, cluster: ClusterFolder) -> Client:
    """A console's connection to the driver."""
    keys, server_key = cluster.key_of("console"), holder.server_key.encode()
    return Client(holder.endpoint, keys=keys, server_key=server_key)


def phase_of(console: Client) -> str:
    """What the driver reports."""
    return console.call(GetStatus(num_ranks=0), Status, timeout_s=60.0).phase


def turn(executors: Sequence[PlayedExecutor], inbox: Inbox) -> None:
    """Read what has arrived, and send the beats that are due."""
    for node in inbox.ready():
        node.answer()
    due_s = time.monotonic() - 1.0
    for executor in executors:
        if executor.beaten_at < due_s:
            executor.beat()
            executor.answer()


def cores(driver: psutil.Process, executors: Sequence[PlayedExecutor], seconds: float) -> float:
    """Cores of the driver; beats are spread over each second, as those of real nodes are."""
    begin_s, before, sent = time.monotonic(), driver.cpu_times(), 0
    while (elapsed := time.monotonic() - begin_s) < seconds:
        while sent < elapsed * len(executors):
            executor = executors[sent % len(executors)]
            executor.step += 1
            executor.beat()
            executor.answer()
            sent += 1
        time.sleep(0.001)
    after = driver.cpu_times()
    return (after.user + after.system - before.user - before.system) / elapsed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns 0 when no run needs more than ``LIMIT_CORES``."""
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, nargs="+", default=[128, 1536])
    options.add_argument("--seconds", type=float, default=20.0)
    given = options.parse_args(argv)
    rows = []
    for nodes in given.nodes:
        with private_roots(), tempfile.TemporaryDirectory(prefix="headway-beats-") as folder:
            rows.append(measure(Path(folder), nodes, given.seconds))
        print(", ".join(f"{key} {value:.3g}" for key, value in rows[-1].items()), flush=True)
    slow = [row for row in rows if row["cores"] > LIMIT_CORES]
    wrong = [f"{row['nodes']} nodes need {row['cores']:.2f} cores" for row in slow]
    return finish(given.out, wrong, rows=rows)


if __name__ == "__main__":
    sys.exit(main())
