"""What do the agents and the monitor of a large run cost?

``python -m benchmarks.observers``.

``agent``: one agent beside eight played ranks whose steps take 0.1 s, then 6 s: its CPU time, its
memory, and the bytes of its beat. ``monitor``: a real monitor process gets the beats of 1,536 nodes
of 8 ranks, and a summary of a step a second, over CURVE: its cores and memory, the time from a beat
that shows a crash to the verdict in its file, and how long it takes until beats of all nodes have
arrived again after it was killed and another one was started.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
import zmq
from headway.common.node.testing import child_environment, python_child, read_line, wait_until
from headway.common.plan.collectives import Op, memberships
from headway.common.plan.grid import Grid
from headway.common.wire import codec
from headway.common.wire.client import Client
from headway.common.wire.group_table import GroupRow, pack
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.health import AgentBeat
from headway.common.wire.messages.service import Describe, Description
from headway.common.wire.messages.summaries import GroupSum, StepSum, StepSummary
from headway.health.announce import Address, read_address
from headway.testkit.beats import RUN_ID, SimulatedNode, lockstep

from benchmarks.report import finish, parser

RANKS = 8
STEPS_S = (0.1, 6.0)
LIMITS = {
    "agent_share": 0.01,
    "agent_mib": 60.0,
    "beat_bytes": 6000.0,
    "monitor_cores": 0.5,
    "monitor_mib": 512.0,
    "verdict_p99_ms": 100.0,
    "back_s": 8.0,
}
WORKER = """
import sys, time
from pathlib import Path
from headway.common.node.flight import FlightWriter
from headway.common.plan.collectives import Op, memberships
from headway.common.plan.grid import Grid
from headway.common.plan.schedule.actions import Kind
folder, rank, step_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
writer = FlightWriter.create(folder / f"flight-{rank}.bin", rank)
lines = writer.table.begin(0, memberships(Grid(tp=8, pp=8, dp=192), rank)).values()
writer.set_generation(0)
print("up", flush=True)
step = 0
while True:
    with writer.record(Kind.STEP, step=step):
        for action in range(20):
            with writer.record(Kind.FORWARD, step=step, micro_batch=action):
                for line in lines:
                    line.enter(Op.ALL_GATHER, 1 << 20)
                    line.leave()
                time.sleep(step_s / 20)
    step += 1
"""


class Daemons:
    """A monitor and agents in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root, self.keys = root, root / "keys"
        for name in ("keys", "run", "shm", "logs", "sys", "events"):
            (root / name).mkdir()
        self.announced = root / "monitor.json"
        self._started: list[psutil.Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            end(process)

    def start(self, *words: str | Path) -> psutil.Process:
        """A daemon of the health service."""
        argv = [sys.executable, "-m", "headway.health", *map(str, words)]
        log = (self.root / "daemons.err").open("ab")
        made = psutil.Process(
            subprocess.Popen(argv, stderr=log, stdout=log, env=child_environment()).pid
        )
        self._started.append(made)
        return made

    def monitor(self) -> tuple[psutil.Process, Address]:
        """The monitor, once it listens."""
        self.announced.unlink(missing_ok=True)
        made = self.start(
            "monitor", "--run-dir", self.root / "run", "--run-id", RUN_ID, "--keys", self.keys,
            "--announce", self.announced, "--grid", "8,192,8",
            "--summaries", self.root / "events",
        )  # fmt: skip
        wait_until(lambda: read_address(self.announced) is not None, what="the monitor listens")
        address = read_address(self.announced)
        assert address is not None
        return made, address

    def agent(self) -> psutil.Process:
        """The agent of node 0."""
        return self.start(
            "agent", "--endpoint", f"ipc://{self.root}/agent.sock", "--node-file",
            self.announced, "--keys", self.keys, "--shm-dir", self.root / "shm",
            "--logs", self.root / "logs", "--run-id", RUN_ID, "--node", "0",
            "--kmsg", self.root / "kmsg", "--sysfs-root", self.root / "sys",
            "--events", self.root / "events",
        )  # fmt: skip


def cpu_s(process: psutil.Process) -> float:
    """CPU time of a process so far, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def end(process: psutil.Process) -> None:
    """Kill a daemon and take it away, unless that was done."""
    if process.is_running():
        process.kill()
        os.waitpid(process.pid, 0)


def of_agent(seconds: float) -> dict[str, float]:
    """Share of a core and MiB of an agent of eight ranks, the worst of both step times."""
    shares, sizes = [], []
    for step_s in STEPS_S:
        with ExitStack() as stack:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hw-observers-")))
            daemons = stack.enter_context(Daemons(root))
            daemons.monitor()
            for rank in range(RANKS):
                words = str(root / "shm"), str(rank), str(step_s)
                worker = stack.enter_context(python_child(WORKER, *words))
                assert read_line(worker) == "up"
            agent = daemons.agent()
            time.sleep(5.0)  # its start is not its cost
            before_s = cpu_s(agent)
            time.sleep(seconds)
            shares.append((cpu_s(agent) - before_s) / seconds)
            sizes.append(agent.memory_full_info().uss / 2**20)
        print(f"agent, steps of {step_s:g} s: {shares[-1]:.2%} of a core, {sizes[-1]:.0f} MiB")
    return {"agent_share": max(shares), "agent_mib": max(sizes)}


def grid_of(nodes: int) -> Grid:
    """A layout of so many nodes of eight ranks."""
    return Grid(tp=RANKS, pp=8, dp=nodes // 8) if nodes % 8 == 0 else Grid(tp=RANKS, dp=nodes)


def beats_of(nodes: int) -> list[AgentBeat]:
    """One beat of each node, whose ranks are in the middle of a step."""
    grid = grid_of(nodes)
    base = SimulatedNode(0, lockstep(RANKS, 100, lambda _: 0.4)).beat(20.0)
    found = []
    for node in range(nodes):
        workers = []
        for worker in base.workers:
            rank = node * RANKS + worker.rank
            rows = tuple(
                GroupRow(
                    one.line, one.number, one.size, Op.ALL_GATHER, 1 << 20, 90_000, 89_999, 120, 130
                )
                for one in memberships(grid, rank)
            )
            changes = {"rank": rank, "pid": 10_000 + rank, "packed_groups": pack(rows)}
            workers.append(msgspec.structs.replace(worker, **changes))  # type: ignore[type-var]
        changed: Any = {"node": node, "pid": node + 1, "workers": tuple(workers)}
        found.append(msgspec.structs.replace(base, **changed))  # type: ignore[type-var]
    return found


def moved(beat: AgentBeat) -> AgentBeat:
    """The same with ranks that have begun another action."""
    workers: Any = tuple(
        msgspec.structs.replace(worker, head=worker.head + 1)  # type: ignore[type-var]
        for worker in beat.workers
    )
    return msgspec.structs.replace(beat, workers=workers)  # type: ignore[type-var]


def summary_of(grid: Grid, node: int, sequence: int) -> StepSummary:
    """One step of each rank of a node."""
    steps = []
    for rank in range(node * RANKS, (node + 1) * RANKS):
        sums = tuple(
            GroupSum(one.line, one.number, 400, 90_000, 1 << 30, 1_000, 900_000)
            for one in memberships(grid, rank)
        )
        times = (sequence, 0, 1_000_000, 700_000, 2_000, 100, 0, 30_000, 9_000)
        steps.append(StepSum(rank, 0, sequence, *times, sums))
    return StepSummary(
        run_id=RUN_ID, node=node, pid=node + 1, boot_id="b", sequence=sequence, num_dropped=0,
        steps=tuple(steps),
    )  # fmt: skip


class Fleet:
    """The agents of all nodes, played by this process: two beats and a summary a second."""

    def __init__(self, beats: Sequence[AgentBeat], address: Address, keys: KeyPair) -> None:
        self.beats, self.sequence, self.grid = beats, 0, grid_of(len(beats))
        self._moved = [moved(beat) for beat in beats]
        self.clients = [
            Client(address.endpoint, keys=keys, server_key=address.server_key.encode(),
                   high_water_mark=4)
            for _ in beats
        ]  # fmt: skip

    def beat(self) -> None:
        """One beat of each."""
        self.sequence += 1
        beats = self._moved if self.sequence % 2 else self.beats
        for beat, client in zip(beats, self.clients, strict=True):
            changed = msgspec.structs.replace(beat, sequence=self.sequence)  # type: ignore[type-var]
            client.notify(changed)
            if self.sequence % 2 == 0:
                client.notify(summary_of(self.grid, beat.node, self.sequence // 2))

    def crash(self, node: int) -> None:
        """A beat in which one rank's process is gone."""
        self.sequence += 1
        beat = self.beats[node]
        gone = msgspec.structs.replace(beat.workers[3], state="gone")  # type: ignore[type-var]
        workers = (*beat.workers[:3], gone, *beat.workers[4:])
        self.clients[node].notify(
            msgspec.structs.replace(beat, sequence=self.sequence, workers=workers)  # type: ignore[type-var]
        )

    def close(self) -> None:
        """Disconnect all."""
        for client in self.clients:
            client.close()


def of_monitor(nodes: int, seconds: float) -> dict[str, float]:
    """What a monitor of so many nodes costs, and how fast it is."""
    zmq.Context.instance().set(zmq.MAX_SOCKETS, 16384)
    with (
        tempfile.TemporaryDirectory(prefix="hw-observers-") as name,
        Daemons(Path(name)) as daemons,
    ):
        monitor, address = daemons.monitor()
        beats = beats_of(nodes)
        keys = KeyPair.load_or_make(daemons.keys / "agent.key")
        fleet = Fleet(beats, address, keys)
        cores = _cores(monitor, fleet, seconds)
        mib = monitor.memory_info().rss / 2**20
        delays_ms = _delays_ms(fleet, daemons.root / "run" / "verdicts.jsonl")
        fleet.close()
        end(monitor)
        begun_s = time.monotonic()
        monitor, address = daemons.monitor()
        fleet = Fleet(beats, address, keys)
        fleet.beat()
        back_s = _until_all(address, keys, nodes) - begun_s
        fleet.close()
    return {
        "beat_bytes": float(len(codec.encode(beats[0]))),
        "monitor_cores": cores,
        "monitor_mib": mib,
        "verdict_p99_ms": sorted(delays_ms)[-1 - len(delays_ms) // 100],
        "verdict_median_ms": statistics.median(delays_ms),
        "back_s": back_s,
    }


def _cores(monitor: psutil.Process, fleet: Fleet, seconds: float) -> float:
    """Cores at two beats a second, once all have connected."""
    for _ in range(20):
        fleet.beat()
        time.sleep(0.5)
    begun_s, before_s = time.monotonic(), cpu_s(monitor)
    while time.monotonic() - begun_s < seconds:
        due_s = time.monotonic() + 0.5
        fleet.beat()
        time.sleep(max(0.0, due_s - time.monotonic()))
    return (cpu_s(monitor) - before_s) / (time.monotonic() - begun_s)


def _delays_ms(fleet: Fleet, file: Path) -> list[float]:
    """From the beat that shows a crash to the verdict in the file, of 100 crashes."""
    found = []
    for node in range(0, len(fleet.beats), max(1, len(fleet.beats) // 100)):
        before = file.stat().st_size if file.exists() else 0
        begun_s = time.monotonic()
        fleet.crash(node)
        wait_until(lambda: file.exists() and file.stat().st_size > before)  # noqa: B023
        found.append((time.monotonic() - begun_s) * 1000)
    return found


def _until_all(address: Address, keys: KeyPair, nodes: int) -> float:
    """When beats of all nodes have arrived."""
    asker = Client(address.endpoint, keys=keys, server_key=address.server_key.encode())

    def num_nodes() -> int:
        answer = asker.call(Describe(), Description)
        return int(answer.state["num_nodes"])

    wait_until(lambda: num_nodes() >= nodes, 60.0)
    asker.close()
    return time.monotonic()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; the exit code is the number of limits that do not hold."""
    made = parser(__doc__)
    made.add_argument("--part", choices=("agent", "monitor", "both"), default="both")
    made.add_argument("--nodes", type=int, default=1536)
    made.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    options = made.parse_args(argv)
    figures: dict[str, float] = {}
    if options.part != "monitor":
        figures |= of_agent(options.seconds)
    if options.part != "agent":
        figures |= of_monitor(options.nodes, options.seconds)
    for name, value in figures.items():
        print(f"{name:18} {value:.4g}")
    failures = [
        f"{name} {value:.4g}, limit {LIMITS[name]:g}"
        for name, value in figures.items()
        if name in LIMITS and value > LIMITS[name]
    ]
    return finish(options.out, failures, nodes=options.nodes, **figures)


if __name__ == "__main__":
    sys.exit(main())
