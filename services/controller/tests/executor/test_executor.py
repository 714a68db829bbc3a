"""Real executors with real services, around a driver that only answers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from headway.common.config import load, to_toml
from headway.common.errors import RemoteError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import child_environment, private_roots, python_child, wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.driver import NodeBeat, Seals
from headway.common.wire.messages.executor import (
    Attached,
    AttachRun,
    KillWorker,
    ReadSeals,
    RestartService,
    StopRun,
)
from headway.common.wire.messages.service import Done, Ping, Pong
from headway.controller.faults import fault_effects as effects
from headway.launch.cluster import ClusterFolder
from headway.launch.engines.local import LocalEngine
from headway.testkit.played.driver import PlayedDriver
from headway.trainer.config import RunConfig

NODE = 1  # a spare: it keeps services, and leads only when nobody else does
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207


@dataclass
class Bench:
    """One executor of a cluster of two, and a driver for it."""

    cluster: ClusterFolder
    engine: LocalEngine
    run: RunDir
    driver: PlayedDriver

    @property
    def paths(self) -> NodePaths:
        return NodePaths(self.run.run_id, NODE)

    @property
    def executor(self) -> ProcessId:
        address = self.cluster.address(NODE)
        assert address is not None
        return address.process

    def console(self) -> Client:
        address = self.cluster.address(NODE)
        assert address is not None
        return Client(
            address.endpoint,
            keys=self.cluster.key_of("console"),
            server_key=self.cluster.key_of("executor").public,
        )

    def newest(self) -> NodeBeat:
        found = self.driver.newest(NODE)
        assert found is not None
        return found

    def pid(self, name: str) -> ProcessId:
        """A service's process, once it runs."""
        wait_until(lambda: name in (self.newest().services or {}), what=name)
        services = self.newest().services
        assert services is not None
        found = ProcessId.of(services[name])
        assert found is not None
        return found

    def replaced(self, name: str, old: ProcessId) -> None:
        """Wait until another process of the service is reported."""
        wait_until(
            lambda: (self.newest().services or {}).get(name, old.pid) != old.pid,
            30.0,
            f"a new {name}",
        )


@contextlib.contextmanager
def made_bench(folder: Path) -> Iterator[Bench]:
    with private_roots():
        cluster = ClusterFolder.create(folder / "cluster", nodes=2)
        run = RunDir.create(folder / "run", run_id=new_run_id())
        limits = ["service_silent_s=1.5", "driver_silent_s=1.0", "service_start_s=30.0"]
        settings = [f"recovery.{limit}" for limit in limits]
        config = load(RunConfig, overrides=[*settings, "launch.standbys=0", "launch.spares=1"])
        run.config.write_text(to_toml(config))
        driver = PlayedDriver(cluster, run.path, run.run_id)
        made = Bench(cluster, LocalEngine(cluster), run, driver)
        made.engine.start_node(NODE)
        wait_until(lambda: cluster.living(NODE) is not None, 60.0, "an executor")
        with made.console() as console:
            console.call(AttachRun(run_dir=str(run.path)), Attached, timeout_s=60.0)
        wait_until(lambda: driver.newest(NODE) is not None, 60.0, "a full beat")
        yield made
        made.driver.close()
        made.engine.stop_node(NODE)


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One node for all tests that leave it whole."""
    with made_bench(tmp_path_factory.mktemp("bench")) as made:
        yield made


@pytest.fixture
def bench(shared_bench: Bench) -> Bench:
    shared_bench.driver.notes.clear()
    return shared_bench


def test_an_executor_dials_the_holder_and_says_everything_only_when_it_changes(
    bench: Bench,
) -> None:
    for name in ("dataloader", "ckpt_store", "zygote"):
        bench.pid(name)
    wait_until(lambda: bench.driver.beats[-1].workers is None, what="a beat without changes")
    assert bench.driver.beats[-1].version == bench.newest().version
    assert bench.newest().run_id == bench.run.run_id and bench.newest().incarnation > 0
    facts = json.loads((bench.paths.sock_dir / "executor.json").read_text())
    assert facts["epoch"] == bench.driver.epoch
    mode = (bench.paths.sock_dir / "executor.json").stat().st_mode & 0o777
    assert mode == 0o600


def test_a_successor_adopts_services_and_goes_on_with_a_higher_incarnation(bench: Bench) -> None:
    dataloader, store = bench.pid("dataloader"), bench.pid("ckpt_store")
    old, before = bench.executor, bench.newest()
    old.kill()
    wait_until(lambda: not old.alive(), what="its end")
    bench.engine.start_node(NODE)
    wait_until(lambda: bench.newest().incarnation > before.incarnation, what="a successor")
    services = bench.newest().services or {}
    assert (services["dataloader"], services["ckpt_store"]) == (dataloader.pid, store.pid)


def test_a_successor_starts_while_the_disk_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here (needs root)")
    try:
        with made_bench(disk) as bench, effects.filled(disk):
            old, before = bench.executor, bench.newest()
            old.kill()
            wait_until(lambda: not old.alive(), what="its end")
            bench.engine.start_node(NODE)
            wait_until(lambda: bench.newest().incarnation > before.incarnation, what="a successor")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_an_executor_that_hangs_is_replaced_and_its_predecessors_services_stay(
    bench: Bench,
) -> None:
    dataloader, old, before = bench.pid("dataloader"), bench.executor, bench.newest()
    old.kill(signal.SIGSTOP)
    bench.engine.start_node(NODE, kill_hung=True)
    wait_until(lambda: bench.newest().incarnation > before.incarnation, what="a successor")
    assert old.is_terminating() and (bench.newest().services or {})["dataloader"] == dataloader.pid


def test_orders_of_another_run_and_of_an_older_driver_change_nothing(bench: Bench) -> None:
    dataloader = bench.pid("dataloader")
    own, epoch = bench.run.run_id, bench.driver.epoch
    for run_id, number in (("12345678", epoch), ("", epoch), (own, epoch - 1)):
        bench.driver.order(NODE, StopRun(run_id=run_id, epoch=number, outcome="failed"))
        bench.driver.order(
            NODE, RestartService(run_id=run_id, epoch=number, service="dataloader", reason="x")
        )
    bench.driver.order(NODE, KillWorker(run_id=own, epoch=epoch, worker="n1w5"))
    bench.driver.order(NODE, ReadSeals(run_id=own, epoch=epoch, generation=3))
    wait_until(lambda: bool(bench.driver.notes), what="the answer to the last order")
    assert isinstance(bench.driver.notes[0], Seals)
    with bench.console() as console:
        with pytest.raises(RemoteError, match="carries run"):
            console.call(StopRun(run_id="12345678", epoch=2**31, outcome="failed"), Done)
        console.call(Ping(), Pong)
    assert bench.pid("dataloader") == dataloader and bench.cluster.carried(NODE) is not None


def test_a_service_is_replaced_when_the_driver_blames_it(bench: Bench) -> None:
    old = bench.pid("dataloader")
    order = RestartService(
        run_id=bench.run.run_id, epoch=bench.driver.epoch, service="dataloader", reason="no data"
    )
    bench.driver.order(NODE, order)
    bench.replaced("dataloader", old)


def test_a_service_that_hangs_is_replaced(bench: Bench) -> None:
    old = bench.pid("dataloader")
    with Client(bench.paths.endpoint("dataloader")) as client:
        client.call(Ping(), Pong, timeout_s=30.0)  # it serves, and has sent beats
    held = threading.Event()
    over = threading.Event()
    libc = ctypes.CDLL(None, use_errno=True)

    def hold() -> None:  # a tracer is a thread: it must live as long as the process is to hang
        assert libc.ptrace(PTRACE_SEIZE, old.pid, 0, 0) == 0, os.strerror(ctypes.get_errno())
        assert libc.ptrace(PTRACE_INTERRUPT, old.pid, 0, 0) == 0
        held.set()
        over.wait()

    tracer = threading.Thread(target=hold)
    tracer.start()
    try:
        assert held.wait(10.0)
        bench.replaced("dataloader", old)
    finally:
        over.set()
        tracer.join()


def test_a_damaged_arena_is_named_and_the_others_are_read(bench: Bench) -> None:
    bench.paths.segment("arena", 1).write_bytes(b"\xff" * 4096)
    bench.paths.segment("arena", 2).mkdir()
    order = ReadSeals(run_id=bench.run.run_id, epoch=bench.driver.epoch, generation=3)
    bench.driver.order(NODE, order)
    wait_until(lambda: bool(bench.driver.notes), what="seals")
    seals = bench.driver.notes[0]
    bench.paths.segment("arena", 2).rmdir()
    bench.paths.segment("arena", 1).unlink()
    assert isinstance(seals, Seals) and sorted(seals.damaged) == [1, 2] and seals.sealed == {}
    assert "arena-1.bin" in seals.damaged[1]


def test_a_service_that_cannot_be_started_is_named_in_the_beat_and_comes_back(
    bench: Bench,
) -> None:
    old = bench.pid("dataloader")
    logs, aside = bench.run.logs, bench.run.path / "aside"
    logs.rename(aside)
    logs.write_text("no folder")
    old.kill()
    wait_until(lambda: "dataloader does not run" in bench.driver.beats[-1].trouble, what="a word")
    logs.unlink()
    aside.rename(logs)
    bench.replaced("dataloader", old)
    wait_until(lambda: "dataloader" not in bench.driver.beats[-1].trouble, what="no word of it")


WORKER = """
import sys, time
from headway.common.wire.messages.executor import StepMetrics, WorkerBeat
from headway.trainer.worker.link import Link
from headway.common.node.process import ProcessId
me = ProcessId.current()
beat = lambda: WorkerBeat(worker="n1w7", pid=me.pid, start_ticks=me.start_ticks, status="running",
                          generation=0, rank=0)
link = Link(sys.argv[1], "n1w7", beat, print, lambda _: None)
for line in sys.stdin:
    word, number = line.split()
    if word == "count":
        print(len(link._kept), flush=True)
    elif word == "report":
        link.report_kept(int(number))
    else:
        getattr(link, word)(StepMetrics(generation=0, step=int(number), loss=1.0, grad_norm=1.0,
                                        lr=0.1, tokens=1, duration_s=0.1, unix_s=1.0))
"""


def test_metrics_survive_executor_and_driver(bench: Bench) -> None:
    """Three drivers and two executors; every step reaches the last driver that is asked."""

    def steps(driver: PlayedDriver) -> set[int]:
        rows = [r.metrics for rs in driver.reports.values() for r in rs]
        return {m.step for m in rows if m is not None}

    with python_child(WORKER, bench.paths.endpoint("executor")) as worker:
        assert worker.stdin is not None

        def send(first: int, last: int) -> None:
            worker.stdin.write("".join(f"send {step}\n" for step in range(first, last)))
            worker.stdin.flush()

        send(0, 10)
        wait_until(lambda: steps(bench.driver) == set(range(10)), what="the first steps")
        bench.driver.stores = False
        send(10, 20)
        wait_until(lambda: steps(bench.driver) == set(range(20)), what="steps that are not stored")
        bench.driver.close()  # it has stored none of the last ten
        bench.driver = PlayedDriver(bench.cluster, bench.run.path, bench.run.run_id)
        bench.driver.stores = False
        wait_until(lambda: steps(bench.driver) >= set(range(10, 20)), what="them again")
        old = bench.executor
        old.kill()
        wait_until(lambda: not old.alive(), what="the executor's end")
        bench.driver.reports.clear()
        bench.driver.stores = True
        bench.engine.start_node(NODE)
        wait_until(lambda: steps(bench.driver) >= set(range(10, 20)), 40.0, "them once more")
        (rows,) = bench.driver.reports.values()
        assert [r.sequence for r in rows][:1] == [1]
        send(20, 30)
        wait_until(lambda: steps(bench.driver) >= set(range(10, 30)), what="the last steps")


def test_metrics_that_another_rank_reports_are_kept_until_they_are_stored(bench: Bench) -> None:
    with python_child(WORKER, bench.paths.endpoint("executor")) as worker:
        assert worker.stdin is not None and worker.stdout is not None

        def write(*lines: str) -> None:
            worker.stdin.write("".join(f"{line}\n" for line in lines))
            worker.stdin.flush()

        def kept() -> int:
            write("count 0")
            return int(worker.stdout.readline())

        write(*(f"keep {step}" for step in range(10)))
        bench.driver.measured = (0, 4)
        wait_until(lambda: kept() == 5, what="what is stored is dropped")
        bench.driver.reports.clear()
        write("report 8")

        def steps() -> list[int]:
            found = [r.metrics for rs in bench.driver.reports.values() for r in rs]
            return [one.step for one in found if one is not None]

        wait_until(lambda: steps() == [5, 6, 7], what="what is not, without what is repeated")
        assert kept() == 0


def test_two_executors_of_one_node_started_at_once_become_one(bench: Bench) -> None:
    command = [sys.executable, "-m", "headway.controller", "executor"]
    words = [*command, "--cluster", str(bench.cluster.path), "--node", str(NODE)]
    second = subprocess.run(
        words, env=child_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert second.returncode != 0
    assert "already has an executor" in second.stderr and "Traceback" not in second.stderr


def test_a_run_that_is_stopped_leaves_nothing_on_the_node(bench: Bench) -> None:
    """The last test of the shared node: it carries no run afterwards."""
    processes = [bench.pid(name) for name in ("dataloader", "ckpt_store", "zygote")]
    processes[0].kill(signal.SIGSTOP)
    order = StopRun(run_id=bench.run.run_id, epoch=bench.driver.epoch, outcome="finished")
    bench.driver.order(NODE, order)
    wait_until(lambda: bench.cluster.carried(NODE) is None, 40.0, "a node that is idle")
    assert not any(process.alive() for process in processes)
    assert not bench.paths.shm_dir.exists() and not bench.paths.sock_dir.exists()
    with bench.console() as console:
        console.call(Ping(), Pong)
