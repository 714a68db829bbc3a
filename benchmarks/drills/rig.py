"""The place of one drill: a machine of its own, a small run on it,
and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headway.common.errors import HeadwayError
from headway.common.node.janitor import end_run, processes_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_SHM_ROOT, ENV_SOCK_ROOT, NodePaths
from headway.common.wire.messages.driver import Status
from headway.console.cluster import Cluster
from headway.console.run import TERMINAL_OUTCOMES, Run
from headway.controller.faults import cgroups, faults
from headway.controller.faults.fault_effects import wait_frozen
from headway.launch.cluster import ClusterFolder

from benchmarks.drills import clock
from benchmarks.drills.place import environments, identity, members, status_of, tiny_corpus
from benchmarks.faults import healthy

CONFIG = "examples/tiny.toml"
SHAPE = (
    "model.layers=2", "model.hidden=64", "model.heads=4", "model.seq_len=64",
    "model.vocab_size=512",
    "train.dtype=fp32", "train.eval_batches=1", "train.eval_every=0", "train.sample_tokens=0",
    "train.global_batch_size=8", "parallel.pp=2", "parallel.dp=1", "launch.nodes=2",
    "launch.ranks_per_node=1", "launch.spares=1", "launch.standbys=1", "ckpt.durable_every=5",
    "optim.lr=1e-3", "optim.min_lr=1e-3", "optim.warmup_steps=1",
)  # fmt: skip
"""2 nodes x 1 rank and a spare, hidden 64: on two cores some 20 steps a second."""
STOP_LIMIT_S = 60.0
LEFT_LIMIT_S = 10.0
"""The last processes of a run end a moment after it is over."""
START_DISK_BYTES = 4 << 30
"""A start is refused with less than 2 GiB of room."""
ROOM_BYTES = 400 << 20
"""What a run on a disk of its own has left once it has started: quickly filled."""
ROOTS = (
    ENV_SOCK_ROOT,
    ENV_SHM_ROOT,
    "HEADWAY_CACHE",
    "OMP_NUM_THREADS",
    "LD_PRELOAD",
    "HEADWAY_CLOCK",
)


class Rig:
    """``with Rig() as rig``: everything that was started, frozen, mounted or made is gone after it.

    ``own_clock`` gives the runs a wall clock that ``clock_step`` can move; ``own_disk`` puts them
    on a small file system that can be filled.
    """

    def __init__(self, *, own_clock: bool = False, own_disk: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hw-drill-", dir="/tmp"))
        self._shm = Path(tempfile.mkdtemp(prefix="hw-drill-", dir="/dev/shm"))
        self.runs = self.folder / "runs"
        self.runs.mkdir()
        self._env = {name: os.environ.get(name) for name in ROOTS}
        self._cwd = Path.cwd()
        self._started: list[Run] = []
        self._mounted = self._is_small = False
        wanted = {
            ENV_SOCK_ROOT: str(self.folder / "s"),
            ENV_SHM_ROOT: str(self._shm),
            "HEADWAY_CACHE": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        try:
            if own_disk:
                self._mount(START_DISK_BYTES)
            if own_clock:
                wanted |= clock.environment(self.folder)
            self.data = tiny_corpus(self.folder / "corpus")
        except BaseException:
            self.close()
            raise
        os.environ.update(wanted)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the run ------------------------------------------------------------------------------
    def launch(self, name: str, *overrides: str, steps: int = 1_000_000) -> Run:
        """Start a run, or resume the one of that name."""
        settings = [*SHAPE, f"train.steps={steps}", f"data.path={self.data}", *overrides]
        return self.start(name, CONFIG, settings)

    def start(self, name: str, config: str, settings: Sequence[str]) -> Run:
        """Start a run of any configuration."""
        if self._is_small:
            self._remount(START_DISK_BYTES)
        run = Cluster(self.runs).launch(config, settings, name=name)
        if self._is_small:
            self._remount(shutil.disk_usage(self.runs).used + ROOM_BYTES)
        if run.name not in [known.name for known in self._started]:
            self._started.append(run)
        return run

    def finish(self, run: Run) -> dict[str, Any]:
        """Stop the run as a user would; returns what was left of it, for ``judge.left``."""
        left: dict[str, Any] = {"outcome": ""}
        try:
            if run.outcome not in TERMINAL_OUTCOMES:
                run.stop()
            left["outcome"] = run.wait(STOP_LIMIT_S)
        except HeadwayError as error:
            left["outcome"] = f"does not stop: {error.message}"
        self.wait(lambda: not processes_of(run.folder.run_id), LEFT_LIMIT_S)
        left["processes"] = [f"{role} {node} ({p.pid})" for p, role, node in members(run)]
        left["holders"] = [str(process.pid) for process in self.holders()]
        left["frozen"] = [path.name for path in cgroups.groups()]
        return left

    def close(self) -> None:
        """End and remove everything, whatever state it is in."""
        self.release()
        cgroups.undo_abandoned()
        for run in self._started:
            with contextlib.suppress(HeadwayError):
                end_run(run.folder.run_id)
        for name, value in self._env.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if self._mounted:
            words = ["umount", "-l", str(self.runs)]
            subprocess.run(words, check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._shm, ignore_errors=True)

    # ---- who is who ---------------------------------------------------------------------------
    def healthy(self, run: Run, beyond_step: int = 2, **more: Any) -> Status:
        """``benchmarks.faults.healthy`` of this run."""
        return healthy(run, beyond_step=beyond_step, **more)

    def node_of(self, status: Status, rank: int) -> int:
        """The node that carries a rank."""
        return next(row.node for row in status.ranks if row.rank == rank)

    def worker(self, status: Status, rank: int) -> ProcessId:
        """The process of a rank."""
        return identity(next(row.pid for row in status.ranks if row.rank == rank))

    def service(self, status: Status, node: int, name: str) -> ProcessId:
        """A service of a node."""
        return identity(status.services[node][name])

    def home(self, status: Status) -> int:
        """The node of the driver."""
        return next(node for node, names in status.services.items() if "driver" in names)

    def executor(self, run: Run, node: int) -> ProcessId:
        """The process that announced itself as the node's executor."""
        address = ClusterFolder(run.cluster_folder).address(node)
        assert address is not None, f"node {node} has no executor"
        return address.process

    def init(self, run: Run, node: int) -> ProcessId:
        """The node's init."""
        found = ClusterFolder(run.cluster_folder).init(node)
        assert found is not None, f"node {node} has no init"
        return found

    def executors(self, run: Run) -> list[ProcessId]:
        """Every executor that lives, by what the system says of it."""
        return [p for p, role, _ in members(run) if role == "executor" and p.state() not in "T"]

    def inits(self, run: Run) -> list[ProcessId]:
        """Every init that lives; they must fall before their executors."""
        return [p for p, role, _ in members(run) if role == "init"]

    def forked(self, run: Run, node: int, zygote: ProcessId) -> list[ProcessId]:
        """Every worker process of a node, standbys too."""
        rows = members(run)
        return [p for p, role, home in rows if role == "zygote" and home == node and p != zygote]

    # ---- faults -------------------------------------------------------------------------------
    def strike(
        self, run: Run, fault: str, processes: Sequence[ProcessId], seconds: float, node: int = 0
    ) -> ProcessId:
        """Begin a fault that lasts; returns who holds it once it is there."""
        holder = faults.hold(fault, processes, self.places(run, node), seconds)
        if fault in ("freeze", "silent_node", "returning_node"):
            assert all(wait_frozen(process) for process in processes), f"{fault} did not take"
        else:
            time.sleep(0.7)  # the imports of the holder
        assert holder.alive(), f"{fault} ended at once"
        return holder

    def places(self, run: Run, node: int) -> faults.Places:
        """Where the run lies on a node."""
        shm = NodePaths(run.folder.run_id, node).shm_dir
        return faults.Places(run.path, shm, run.cluster_folder)

    def release(self) -> None:
        """End every fault that lasts."""
        holders = self.holders()
        for holder in holders:
            holder.kill(signal.SIGTERM)
        self.wait(lambda: not any(holder.alive() for holder in holders), 15.0)

    def holders(self) -> list[ProcessId]:
        """Processes that hold a fault of one of these runs."""
        ids = {run.folder.run_id for run in self._started}
        return [found for found, env in environments() if env.get(faults.ENV_FAULT) in ids]

    def _remount(self, nbytes: int) -> None:
        words = ["mount", "-o", f"remount,size={nbytes}", str(self.runs)]
        subprocess.run(words, check=True, capture_output=True)

    def _mount(self, nbytes: int) -> None:
        words = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "none", str(self.runs)]
        subprocess.run(words, check=True, capture_output=True)
        self._mounted = self._is_small = True

    def mount_image(self) -> None:
        """Put the runs on an ext4 in a file, which can be frozen."""
        image = self.folder / "disk"
        with image.open("wb") as opened:
            opened.truncate(START_DISK_BYTES)
        make = ["mkfs.ext4", "-q", str(image)]
        for words in (make, ["mount", "-o", "loop", str(image), str(self.runs)]):
            subprocess.run(words, check=True, capture_output=True)
        self._mounted = True

    # ---- waiting and looking ------------------------------------------------------------------
    @staticmethod
    def wait(condition: Callable[[], Any], limit_s: float) -> float:
        """Poll until it holds; returns the seconds it took, or infinity when it did not in time."""
        begun = time.monotonic()
        while not condition():
            if time.monotonic() - begun > limit_s:
                return float("inf")
            time.sleep(0.05)
        return time.monotonic() - begun

    def steps_on(
        self, run: Run, limit_s: float, accept: Callable[[Status], bool], more: int = 3
    ) -> float:
        """Seconds until the run is in an accepted status,
        all ranks run and ``more`` steps follow."""
        first: list[int] = []

        def stepping() -> bool:
            status = status_of(run)
            if status is None or status.phase != "running" or not accept(status):
                return False
            if any(row.status != "running" for row in status.ranks):
                return False
            first.append(status.step)
            return status.step >= first[0] + more

        return self.wait(stepping, limit_s)
