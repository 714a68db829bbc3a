"""How fast do many nodes join, and how fast is their driver's death healed?

``python -m benchmarks.joined [--nodes 1536]``

As ``benchmarks.beats``, with a key of its own for each node, which it makes and which the driver
admits when the node joins with its token. Then driver and executor of the first node are killed
together. Every other node looks at the lease when an executor would, decides as executors do
whether to claim it, starts the driver by an executor's command, and follows the holder that it
finds there. A successor of the first node's executor beats, but does not lead.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import zmq
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.node.testing import private_roots
from headway.common.paces import FOLDER_LOOK_S
from headway.common.polling import wait_until
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message
from headway.common.wire.messages.executor import DriverBeat
from headway.controller.executor.clock_offset import ClockOffset
from headway.controller.executor.election import LeaseCandidate
from headway.controller.executor.node_run import CALM_S
from headway.controller.executor.service_commands import NodeServices
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder, LeaseView
from headway.testkit.played.executor import Inbox, PlayedExecutor
from headway.testkit.played.place import JoinedPlace

from benchmarks.beats import (
    RANKS,
    configuration,
    console_of,
    cores,
    phase_of,
    turn,
    until_running,
)  # fmt: skip
from benchmarks.report import finish, parser

JOIN_LIMIT_S, LIMIT_CORES, HEAL_LIMIT_S = 30.0, 0.3, 5.0
AT_ONCE = 32
LOOK_S = 0.02
"""One process plays all nodes: those that look at the lease within this time share what is read."""

TURN_S = 0.01
"""Between two looks of the rig at all nodes; it takes as much from the cores of the driver."""
SETTLE_S = 3.0
"""Nodes look at the lease, each at another time, before the driver is killed."""


class Rig:
    """A run without machines, and what starts drivers for it."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.config = configuration(nodes)
        self.place = JoinedPlace(folder, self.config, nodes)
        self.lease = self.place.lease
        self.keys = [self.place.cluster.key_of("executor")]
        self.keys += [KeyPair.generate() for _ in range(1, nodes)]
        self.clusters = {0: self.place.cluster}
        """Of the nodes that have led: each machine has a folder of its own."""
        self._folder = folder
        self._seen_at, self._seen = 0.0, LeaseView()

    def look(self) -> LeaseView:
        """The lease as it was at most ``LOOK_S`` ago."""
        if time.monotonic() - self._seen_at >= LOOK_S:
            self._seen_at, self._seen = time.monotonic(), self.lease.look()
        return self._seen

    def claim(self, node: int, after: int) -> ProcessId | None:
        """Claim the next epoch and start its driver, as the node's executor does; None if another
        node was faster."""
        epoch = self.lease.claim(after)
        if epoch is None:
            return None
        paths = NodePaths(self.place.run.run_id, node).create()
        if node not in self.clusters:
            path = self._folder / f"cluster-{node}"
            self.clusters[node] = ClusterFolder.create(path, nodes=len(self.keys))
            (path / "keys/executor.key").unlink()
            self.keys[node].save(path / "keys/executor.key")
        services = NodeServices(self.place.run, self.config, paths, self.clusters[node].path)
        return services.start("driver", epoch)

    def log(self) -> str:
        """What the drivers have logged last."""
        return "".join(path.read_text()[-2000:] for path in self.place.run.logs.glob("*driver*"))


class Executor(PlayedExecutor):
    """One that finds the driver by the lease, and may lead."""

    def __init__(self, number: int, rig: Rig, holder: Holder, keys: KeyPair, inbox: Inbox) -> None:
        self.keys, self._rig = keys, rig
        self.heard_at, self.epoch = time.monotonic(), 0
        """When a driver has answered last, and which."""
        self._follows = holder.epoch
        self._looked_at, self._due_at = 0.0, time.monotonic() + FOLDER_LOOK_S * (number % 100) / 100
        silent_s = rig.config.recovery.driver_silent_s
        self.leading = LeaseCandidate(number, silent_s)
        super().__init__(number, rig.place.run.run_id, holder, keys, inbox, RANKS)
        self.clock = ClockOffset()

    def _take(self, message: Message) -> None:
        super()._take(message)
        if isinstance(message, DriverBeat):
            self.heard_at, self.epoch = time.monotonic(), message.epoch

    def look(self) -> int | None:
        """Look at the lease when it is time, and follow its holder; returns the epoch after which
        this node claims the lease."""
        now = time.monotonic()
        if now < self._due_at:
            return None
        self._due_at += FOLDER_LOOK_S * ((now - self._due_at) // FOLDER_LOOK_S + 1)
        is_calm = now - self.heard_at < CALM_S and not self.leading.is_stale
        pause_s = self._rig.lease.calm_look_s if is_calm else self._rig.lease.look_s
        if now - self._looked_at < pause_s:
            return None
        self._looked_at, view = now, self._rig.look()
        self.leading.see(view, now)
        if view.holder is not None and view.holder.endpoint and view.holder.epoch > self._follows:
            self._follows = view.holder.epoch
            self.leave()
            self.follow(view.holder, self.keys)
            self.clock = ClockOffset()
            self.beat()
            self.answer()
        standing = self.leading.next(
            now, own="", failures=0, silent_s=now - self.heard_at, is_readable=True
        )
        return standing.claim.after if standing.claim is not None else None


class Healing:
    """From the death of a driver until the run steps again, with the times of what happens.

    Since the death: a node has claimed the lease; the driver that it starts has published where it
    listens; every node has found that; every node got an answer; the run is ``running`` again.
    """

    def __init__(
        self, rig: Rig, executors: Sequence[Executor], inbox: Inbox, holder: Holder
    ) -> None:
        self._rig, self._executors, self._inbox, self._former = rig, executors, inbox, holder
        self._begin_s = 0.0
        self.driver: ProcessId | None = None
        self.driver_cpu_s = 0.0
        """Of the new driver, from its start on; the load of the machine changes it little."""
        self.seconds: dict[str, float] = {}

    def run(self, driver: ProcessId) -> None:
        """End the driver, and play the executors until the run steps again."""
        epoch = self._former.epoch + 1
        settled_at = time.monotonic() + SETTLE_S
        self._until("", lambda: time.monotonic() > settled_at)
        self._begin_s = time.monotonic()
        driver.kill()
        self._until("claimed_s", lambda: self.driver is not None)
        self._until("listens_s", lambda: self._holder().epoch == epoch)
        self._until("found_s", lambda: all(one._follows == epoch for one in self._executors))
        self._until("answered_s", lambda: all(one.epoch == epoch for one in self._executors))
        holder = self._holder()
        with console_of(holder, self._rig.clusters[holder.node]) as console:
            self._until("healed_s", lambda: phase_of(console) == "running")
        assert self.driver is not None
        used = psutil.Process(self.driver.pid).cpu_times()
        self.driver_cpu_s = used.user + used.system

    def _holder(self) -> Holder:
        return self._rig.look().holder or self._former

    def _until(self, name: str, is_reached: Callable[[], bool]) -> None:
        def is_over() -> bool:
            self._turn()
            return is_reached()

        assert wait_until(is_over, 120.0, every_s=TURN_S), f"{name}: {self._rig.log()}"
        if name:
            self.seconds[name] = time.monotonic() - self._begin_s

    def _turn(self) -> None:
        turn(self._executors, self._inbox)
        for executor in self._executors:
            after = executor.look()
            if after is not None and executor.number:
                claimed = self._rig.claim(executor.number, after)
                executor.leading.claimed(None if claimed is None else after + 1)
                self.driver = claimed or self.driver


def measure(folder: Path, nodes: int, seconds: float) -> dict[str, float | int]:
    """Join, beat, lose the driver."""
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 16384)
    rig = Rig(folder, nodes)
    keys = rig.keys
    drivers = [rig.claim(0, 0)]
    try:
        assert wait_until(lambda: rig.lease.look().holder is not None, 60.0), rig.log()
        holder = rig.lease.look().holder
        assert drivers[0] is not None and holder is not None
        begin_s = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            join = rig.place.join
            list(pool.map(lambda node: join(node, keys[node], holder), range(1, nodes)))
        joined_s = time.monotonic() - begin_s
        inbox = Inbox()
        executors = [Executor(number, rig, holder, own, inbox) for number, own in enumerate(keys)]
        until_running(executors, inbox, holder, rig.place.cluster)
        running_s = time.monotonic() - begin_s
        used = cores(psutil.Process(drivers[0].pid), executors, seconds)
        healing = Healing(rig, executors, inbox, holder)
        try:
            healing.run(drivers[0])
        finally:
            drivers.append(healing.driver)
    finally:
        for driver in drivers:
            if driver is not None:
                driver.kill()
    return {
        "nodes": nodes,
        "joined_s": joined_s,
        "running_s": running_s,
        "cores": used,
        "load": os.getloadavg()[0],
        **healing.seconds,
        "healing_cpu_s": healing.driver_cpu_s,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns 0 when all limits hold."""
    options = parser(__doc__)
    options.add_argument("--nodes", type=int, default=1536)
    options.add_argument("--seconds", type=float, default=20.0)
    given = options.parse_args(argv)
    with private_roots(), tempfile.TemporaryDirectory(prefix="headway-joined-") as folder:
        row = measure(Path(folder), given.nodes, given.seconds)
    print(", ".join(f"{key} {value:.3g}" for key, value in row.items()), flush=True)
    limits = {"joined_s": JOIN_LIMIT_S, "cores": LIMIT_CORES, "healed_s": HEAL_LIMIT_S}
    wrong = [f"{key} is above {limit}" for key, limit in limits.items() if row[key] > limit]
    return finish(given.out, wrong, **row)


if __name__ == "__main__":
    sys.exit(main())
