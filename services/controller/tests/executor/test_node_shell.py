"""What a node's shell carries out for its guardian: real processes, a real lease, real files."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node import zygote_beat
from headway.common.node.exit_record import ExitRecord
from headway.common.node.process import ProcessId, spawn
from headway.common.node.run_dir import RunDir, new_run_id
from headway.common.node.testing import identity, private_roots, python_child, wait_until
from headway.common.wire.message import Message
from headway.common.wire.messages.driver import WorkerGone
from headway.common.wire.messages.executor import WorkerBeat
from headway.controller.executor import node_end, node_files, node_run
from headway.controller.executor.machine.folder_probe import FolderLook
from headway.controller.executor.node_events import Exit, FolderSeen, Looked, WorkerReported
from headway.controller.executor.node_run import NodeRun
from headway.launch.cluster import ClusterFolder
from headway.launch.lease.base import Holder
from headway.launch.lease.file import FileLease

SLEEP = [sys.executable, "-c", "import time; time.sleep(100)"]


class Nodes:
    """Nodes of one run in this process, whose services are sleepers."""

    def __init__(self, folder: Path) -> None:
        self.run = RunDir.create(folder / "run", run_id=new_run_id())
        self.run.config.write_text("[recovery]\ndriver_silent_s = 0.75\n[launch]\nstandbys = 0\n")
        self.cluster = ClusterFolder(folder / "cluster")
        self.made: list[NodeRun] = []
        self.started: list[tuple[int, str, int, ProcessId]] = []

    def add(self, node: int, *, is_fresh: bool = False) -> NodeRun:
        made = NodeRun(self.cluster, node, self.run.path, is_fresh=is_fresh)

        def start(name: str, epoch: int = -1) -> ProcessId:
            env = {**os.environ, **made.paths.environment(), "HEADWAY_ROLE": name}
            process = spawn(SLEEP, self.run.logs / f"n{node}-{name}.log", env)
            self.started.append((node, name, epoch, process))
            return process

        made.services.start = start  # type: ignore[method-assign]
        self.made.append(made)
        return made

    def pump(self) -> bool:
        """A turn of every node's loop."""
        for run in self.made:
            run.side_thread.run_callbacks()
            run.look()
            run.look_at_folder()
        return True

    def drivers(self, *, living: bool = True) -> list[tuple[int, int]]:
        """(node, epoch) of the drivers that were started."""
        found = [(n, e, p) for n, name, e, p in self.started if name == "driver"]
        return [(n, e) for n, e, p in found if p.alive() or not living]

    def process(self, node: int, name: str) -> ProcessId:
        return [p for n, s, _, p in self.started if (n, s) == (node, name)][-1]

    def publish(self, node: int, epoch: int, beat: int = 1) -> None:
        """What the driver of this node does when it is up."""
        process = self.process(node, "driver")
        holder = Holder(
            epoch, node, process.pid, process.start_ticks, "tcp://127.0.0.1:9", "k", beat
        )
        FileLease(self.run.path).publish(holder)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with private_roots():
        made = Nodes(tmp_path)
        yield made
        for run in made.made:
            run.guardian.is_ending = True
            run.side_thread.close()
        for _, _, _, process in made.started:
            process.kill()


def test_a_fresh_run_gets_one_driver_and_one_monitor_on_its_first_node(nodes: Nodes) -> None:
    first, second = nodes.add(0, is_fresh=True), nodes.add(1, is_fresh=True)
    wait_until(lambda: nodes.pump() and nodes.drivers() == [(0, 1)], what="a driver")
    wait_until(
        lambda: nodes.pump() and first.guardian.services.process("monitor") is not None,
        what="a monitor",
    )
    assert second.guardian.leading.epoch == 0


def test_a_dead_driver_is_followed_by_the_next_epoch_on_its_node_and_a_dead_node_by_another(
    nodes: Nodes,
) -> None:
    first, second = nodes.add(0, is_fresh=True), nodes.add(1, is_fresh=True)
    wait_until(lambda: nodes.pump() and nodes.drivers() == [(0, 1)], what="a driver")
    nodes.publish(0, 1)
    nodes.process(0, "driver").kill()
    wait_until(lambda: nodes.pump() and nodes.drivers() == [(0, 2)], what="its successor")
    nodes.publish(0, 2)
    nodes.made.remove(first)  # as if it were frozen, with its driver
    wait_until(lambda: nodes.pump() and (1, 3) in nodes.drivers(), what="another node's driver")
    nodes.publish(1, 3)
    nodes.made.append(first)  # it comes back, and finds that it does not lead any more
    wait_until(lambda: nodes.pump() and nodes.drivers() == [(1, 3)], what="one driver")
    wait_until(lambda: nodes.pump() and not nodes.process(0, "monitor").alive(), what="one monitor")
    assert second.guardian.leading.epoch == 3 and first.guardian.leading.epoch == 0


def test_a_folder_that_hangs_freezes_nothing_and_is_reported(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, thaw = nodes.add(1), threading.Event()
    wait_until(lambda: nodes.pump() and len(nodes.started) == 4, what="the services")

    def hang() -> FolderSeen:
        thaw.wait()
        return FolderSeen("there")

    run._look_at_folder = hang  # type: ignore[assignment]
    monkeypatch.setattr("headway.controller.executor.node_run.FOLDER_HANGS_S", 0.1)
    wait_until(
        lambda: nodes.pump() and "does not answer" in run.guardian.trouble(), what="a sentence"
    )
    nodes.process(1, "agent").kill()
    wait_until(
        lambda: nodes.pump() and run.guardian.services.process("agent") is None, what="its death"
    )
    thaw.set()
    wait_until(
        lambda: nodes.pump() and "does not answer" not in run.guardian.trouble(), what="an answer"
    )


def test_services_started_by_a_dying_executor_are_found_by_its_successor(nodes: Nodes) -> None:
    run = nodes.add(1)
    wait_until(lambda: nodes.pump() and len(nodes.started) == 4, what="the services")
    (run.paths.sock_dir / "executor.json").unlink(missing_ok=True)
    found = node_files.running_services(run.paths, ["dataloader", "ckpt_store", "zygote"])
    wanted = {name: nodes.process(1, name) for name in ("dataloader", "ckpt_store")}
    assert found == wanted, "a zygote is known by its record: workers look like it"


# ---- the folder -------------------------------------------------------------------------------
def test_only_a_removal_counts_as_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    config = folder / "config.toml"
    config.write_text("")
    look = FolderLook(folder, config, FileLease(folder))
    assert look().state == "there"
    for number in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EACCES):

        def fail(*_: object, code: int = number, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", fail)
            seen = look()
        assert seen.state == "unknown" and os.strerror(number) in seen.detail
    config.unlink()
    folder.rmdir()
    assert look().state == "gone"
    (tmp_path / "runs").rmdir()
    assert look().state == "unknown", "the folder of all runs is not mounted"
    (tmp_path / "runs").mkdir()
    look._device = -1
    assert look().state == "unknown", "another file system lies there"


# ---- workers ----------------------------------------------------------------------------------
def test_what_dead_workers_leave_is_bounded(nodes: Nodes) -> None:
    run = nodes.add(1)
    logs = run.run.logs
    for number in range(40):
        ExitRecord(run.paths.segment("words", f"n1w{number}")).prepare()
        (logs / f"n1w{number}.log").touch()
        (logs / f"n1w{number}.log.1").touch()
    (logs / "n2w0.log").touch()
    node_files.clear_away(run.paths, logs, {"n1w2", "n1w39"}, keep=3)
    left = {f"n1w{number}" for number in (2, 36, 37, 38, 39)}
    assert {path.stem for path in logs.glob("n1w*.log")} == left
    assert {path.name.removesuffix(".log.1") for path in logs.glob("n1w*.log.1")} == left
    assert {p.stem.removeprefix("words-") for p in run.paths.segments("words")} == left
    assert (logs / "n2w0.log").exists()
    assert node_files.next_worker(run.paths, logs) == 40
    run.paths.segment("words", "n1w39").write_bytes(b"nonsense")
    assert node_files.exit_record(run.paths, "n1w39") == Exit()


ZYGOTE = """
import os, sys
from pathlib import Path
def refused(): raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = refused
from headway.trainer.worker.zygote import serve
serve(Path(sys.argv[1]), 1)
"""


def test_a_zygote_that_cannot_fork_says_so_and_serves_on(nodes: Nodes) -> None:
    run = nodes.add(1)
    with python_child(ZYGOTE, nodes.run.path) as zygote:
        wait_until(lambda: zygote_beat.read(run.paths.shm_dir) is not None, 60.0, "its record")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"n1w4", str(run.paths.socket("zygote")))
        wait_until(lambda: bool((zygote_beat.read(run.paths.shm_dir) or (0, 0, []))[2]), what="it")
        found = zygote_beat.read(run.paths.shm_dir)
        assert found is not None and found[0].pid == zygote.pid
        assert found[2] == [("n1w4", 0, 0, "[Errno 11] Resource temporarily unavailable")]
        turns = found[1]
        wait_until(lambda: (zygote_beat.read(run.paths.shm_dir) or (0, 0))[1] > turns, what="turns")
        assert zygote.poll() is None


def test_a_log_that_takes_no_line_hides_no_death(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Message] = []
    run = nodes.add(1)
    run._send = sent.append
    wait_until(lambda: nodes.pump() and len(nodes.started) == 4, what="the services")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("info", "warning", "error"):
        monkeypatch.setattr(node_run.log, name, fail, raising=False)
    with python_child("import time; time.sleep(100)") as worker:
        process = identity(worker)
        beat = WorkerBeat(
            worker="n1w0", pid=process.pid, start_ticks=process.start_ticks, status="running"
        )
        run.handle(WorkerReported(beat))
        nodes.process(1, "dataloader").kill()
    wait_until(lambda: nodes.pump() and bool(sent), what="a note about the worker")
    assert isinstance(sent[0], WorkerGone) and sent[0].worker == "n1w0"
    wait_until(lambda: nodes.pump() and len(nodes.started) == 5, what="the service's successor")


# ---- the end ----------------------------------------------------------------------------------
def test_no_failing_step_keeps_the_end_from_the_next(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nodes.add(1)
    wait_until(lambda: nodes.pump() and len(nodes.started) == 4, what="the services")
    monkeypatch.setattr(node_end, "DRAIN_LIMIT_S", 0.5)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("info", "warning", "error"):
        monkeypatch.setattr(node_end.log, name, fail, raising=False)
    monkeypatch.setattr(node_end.NodeEnd, "_finish_store", fail)
    monkeypatch.setattr(node_end.NodeEnd, "_save_last_records", fail)
    monkeypatch.setattr(node_end, "end_node", fail)
    run.ending().run()
    assert not any(process.alive() for _, _, _, process in nodes.started)
    assert not run.paths.shm_dir.exists() and not run.paths.sock_dir.exists()
    run.handle(Looked({}))
    assert len(nodes.started) == 4, "an ending node starts nothing"
