"""Agent and monitor as real processes on an emulated node; the test acts as all other processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from headway.common.node.ring import RingWriter
from headway.common.node.testing import child_environment, python_child, wait_until
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import MonitorBeat
from headway.common.wire.messages.health import Verdict, VerdictTaken
from headway.common.wire.messages.service import Describe, Description, ServiceBeat
from headway.common.wire.server import Server
from headway.health.announce import read_address

RUN_ID = "0badcafe"
NODE = 4
QUICK = (
    "beat_interval_s=0.1",
    "silence_floor_s=1.0",
    "data_floor_s=1.0",
    "node_silence_s=8.0",
    "again_s=600.0",
    "log_quiet_s=600.0",
    "hit_repeat_s=0.5",
)
SLOT_BYTES = 8
WORKER = """
import sys, threading, time
from pathlib import Path
from headway.common.node.flight import FlightWriter
from headway.common.node.exit_record import ExitRecord
from headway.common.node.ring import RingReader
from headway.common.plan.schedule.actions import Kind
folder, rank, generation = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
batches_a_step = int(sys.argv[4])
writer = FlightWriter.create(folder / f"flight-{rank}.bin", rank, capacity=4096)
writer.set_generation(generation)
ring = RingReader(folder / "ring-train.bin", 0) if batches_a_step else None
orders = []
threading.Thread(target=lambda: orders.extend(iter(sys.stdin.readline, "")), daemon=True).start()
print("up", flush=True)
step = 0
while True:
    with writer.record(Kind.STEP, step=step):
        with writer.record(Kind.DATA, step=step):
            for _ in range(batches_a_step):
                ring.release(ring.get(600.0)[0])
        with writer.record(Kind.FORWARD, step=step, micro_batch=0):
            time.sleep(0.01)
            while "hang\\n" in orders:
                time.sleep(0.01)
        with writer.record(Kind.NORM, step=step):
            time.sleep(0.01)
    step += 1
    print("step", step, flush=True)
    while "pause\\n" in orders:
        time.sleep(0.01)
    if "end\\n" in orders:
        ExitRecord(folder / f"words-{rank}.bin").write(0, "finished")
        sys.exit(0)
"""


@dataclass
class Bench:
    """One emulated node with its monitor, and what the test has received in other roles."""

    root: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    """What the newest driver has received, repetitions included."""
    monitors: list[MonitorBeat] = field(default_factory=list)
    beats: list[ServiceBeat] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    answer: Callable[[Verdict], str] = lambda _: "noted"
    """The driver's answer to a verdict."""
    num_drivers: int = 0

    @property
    def keys(self) -> Path:
        """Folder with the keys of the daemons."""
        return self.root / "keys"

    def key_of(self, role: str) -> KeyPair:
        """The pair of ``monitor`` or ``agent``."""
        return KeyPair.load_or_make(self.keys / f"{role}.key")

    def start(self, *arguments: str | Path, program: str = "") -> subprocess.Popen[bytes]:
        """A daemon; ``program`` is Python to run instead of ``python -m headway.health``."""
        what = ["-c", program] if program else ["-m", "headway.health"]
        command = [sys.executable, *what, *map(str, arguments)]
        for limit in QUICK:
            command += ["--set", limit]
        with (self.root / "daemons.err").open("ab") as log:
            made = subprocess.Popen(command, stderr=log, env=child_environment())
        self.processes.append(made)
        return made

    def monitor(self, *more: str) -> subprocess.Popen[bytes]:
        """The monitor of the run."""
        return self.start(
            "monitor",
            "--keys",
            self.keys,
            "--run-dir",
            self.root,
            "--run-id",
            RUN_ID,
            "--node",
            str(NODE),
            "--announce",
            self.root / "monitor.json",
            "--executor",
            f"ipc://{self.root}/executor.sock",
            *more,
        )

    def agent(self, *more: str, program: str = "") -> subprocess.Popen[bytes]:
        """The agent of node 4."""
        return self.start(
            "agent",
            "--endpoint",
            f"ipc://{self.root}/agent.sock",
            "--node-file",
            self.root / "monitor.json",
            "--keys",
            self.keys,
            "--shm-dir",
            self.root / "shm",
            "--logs",
            self.root / "logs",
            "--run-id",
            RUN_ID,
            "--node",
            str(NODE),
            "--executor",
            f"ipc://{self.root}/executor.sock",
            "--kmsg",
            self.root / "kmsg",
            "--sysfs-root",
            self.root / "sys",
            *more,
            program=program,
        )

    def driver(self) -> Server:
        """A new driver, which answers each verdict by ``answer`` and admits only the monitor."""
        keys = KeyPair.generate()
        allowed = {self.key_of("monitor").public}

        def on_verdict(verdict: Verdict, peer: bytes) -> None:
            self.verdicts.append(verdict)
            taken = self.answer(verdict)
            answer = VerdictTaken(id=verdict.id, revision=verdict.revision, taken=taken)
            server.send(peer, answer)

        def on_monitor(beat: MonitorBeat, _peer: bytes) -> None:
            self.monitors.append(beat)

        server = Server(
            "tcp://127.0.0.1:0",
            {Verdict: on_verdict, MonitorBeat: on_monitor},
            keys=keys,
            allowed=allowed,
        )
        self.servers.append(server)
        self.num_drivers += 1
        record = {
            "epoch": self.num_drivers,
            "endpoint": server.endpoint,
            "server_key": keys.public.decode(),
            "beat": 1,
            "end": 1,
        }
        (self.root / "driver.json").write_text(json.dumps(record))
        return server

    def worker(
        self, rank: int, generation: int = 0, batches_a_step: int = 0
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """A process with a flight ring; with ``batches_a_step`` it reads the ring ``train``."""
        return python_child(WORKER, self.root / "shm", rank, generation, batches_a_step)

    def ring(self, num_slots: int = 4) -> RingWriter:
        """The data ring ``train`` for one reader; this process is its data daemon."""
        path = self.root / "shm" / "ring-train.bin"
        return RingWriter.create(
            path, spec=b"{}", slot_bytes=SLOT_BYTES, num_slots=num_slots, num_readers=1
        )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Serve as driver and executor until ``condition`` holds."""

        def serve_and_ask() -> bool:
            for server in self.servers:
                server.handle_ready()
            return condition()

        wait_until(serve_and_ask, timeout_s=40, what=what)

    def describe(self) -> dict[str, object]:
        """The monitor's description of itself."""
        address = read_address(self.root / "monitor.json")
        assert address is not None
        key, server_key = self.key_of("agent"), address.server_key.encode()
        with Client(address.endpoint, keys=key, server_key=server_key) as client:
            return dict(client.call(Describe(), Description, timeout_s=20.0).state)

    def wait_for_ranks(self, count: int) -> None:
        """Wait until the monitor knows this many ranks."""
        self.wait(lambda: (self.root / "monitor.json").exists(), "a monitor")
        self.wait(lambda: self.describe()["num_ranks"] == count, f"{count} ranks known")

    def wait_for_beats(self, more: int, name: str = "agent") -> None:
        """Wait until the executor has received this many more beats with progress of a daemon."""
        seen = [beat.progress for beat in self.beats if beat.name == name]
        want = (seen[-1] if seen else 0) + more
        self.wait(
            lambda: any(one.name == name and one.progress >= want for one in self.beats[-50:]),
            f"{more} beats of the {name}",
        )

    def news(self) -> list[Verdict]:
        """The verdicts received, each revision once, in order."""
        first = {(verdict.id, verdict.revision): verdict for verdict in reversed(self.verdicts)}
        return sorted(first.values(), key=self.verdicts.index)

    def kinds(self) -> list[tuple[str, int, bool]]:
        """Kind, rank and whether it is open, of each of ``news``."""
        return [(verdict.kind, verdict.rank, verdict.is_open) for verdict in self.news()]

    def close(self) -> None:
        """End all daemons."""
        for process in self.processes:
            process.kill()
            process.wait()
        for server in self.servers:
            server.close()


@contextlib.contextmanager
def health_bench() -> Iterator[Bench]:
    """A bench in its own folder. Fails if a daemon has printed a traceback."""
    # socket paths must be short
    with tempfile.TemporaryDirectory(prefix="hw", dir="/tmp") as folder:
        made = Bench(Path(folder))
        for name in ("shm", "logs"):
            (made.root / name).mkdir()

        def on_beat(beat: ServiceBeat, _peer: bytes) -> None:
            made.beats.append(beat)

        made.servers.append(Server(f"ipc://{made.root}/executor.sock", {ServiceBeat: on_beat}))
        try:
            yield made
        finally:
            made.close()
        errors = made.root / "daemons.err"
        printed = errors.read_text() if errors.exists() else ""
    assert "Traceback" not in printed, printed
