"""The local engine with real processes: a stand-in for the executor that announces
itself and has a child."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.janitor import processes_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.node.testing import private_roots, python_child, wait_until
from headway.launch import ClusterFolder, LocalEngine, NodeLost

EXECUTOR = """
import subprocess, sys, time
from pathlib import Path
from headway.common.node.process import ProcessId
from headway.launch.cluster import ClusterFolder
assert [sys.argv[i] for i in (1, 2, 4)] == ["executor", "--cluster", "--node"], sys.argv
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
folder = ClusterFolder(Path(sys.argv[3]))
folder.announce(int(sys.argv[5]), "tcp://127.0.0.1:9", ProcessId.current())
time.sleep(3600)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    """An engine of two nodes; ``headway.trainer`` is the stand-in above, since this
    part stands without it."""
    package = tmp_path / "path" / "headway" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(EXECUTOR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    with private_roots():
        made = LocalEngine(ClusterFolder.create(tmp_path / "cluster", nodes=2))
        yield made
        for node in range(2):
            made.stop_node(node)
        assert processes_of(made.cluster.id) == []


def started(engine: LocalEngine, node: int, *, other_than: ProcessId | None = None) -> ProcessId:
    """Start the node and wait until its executor has announced itself."""
    engine.start_node(node)

    def is_up() -> bool:
        address = engine.cluster.address(node)
        return address is not None and address.process != other_than and address.process.alive()

    wait_until(is_up, what=f"node {node}")
    address = engine.cluster.address(node)
    assert address is not None
    return address.process


def processes(engine: LocalEngine, node: int) -> set[int]:
    return {process.pid for process in processes_of(engine.cluster.id, node)}


def test_a_started_node_is_known_by_its_environment_and_detached(engine: LocalEngine) -> None:
    executor = started(engine, 1)
    found = Path(f"/proc/{executor.pid}/environ").read_bytes().split(b"\0")
    assert {
        f"HEADWAY_RUN_ID={engine.cluster.id}".encode(),
        b"HEADWAY_NODE=1",
        b"HEADWAY_ROLE=executor",
    } <= set(found)
    assert os.getsid(executor.pid) != os.getsid(0), "a Ctrl-C of the terminal would reach it"
    assert executor.pid in processes(engine, 1)
    assert processes(engine, 0) == set()


def test_starting_a_living_node_changes_nothing(engine: LocalEngine) -> None:
    executor = started(engine, 0)
    wait_until(lambda: len(processes(engine, 0)) == 2, what="the executor and its child")
    before = processes(engine, 0)
    for _ in range(3):
        engine.start_node(0)
    assert processes(engine, 0) == before
    assert started(engine, 0) == executor


def test_a_killed_executor_is_replaced_and_what_it_kept_stays(engine: LocalEngine) -> None:
    first = started(engine, 0)
    wait_until(lambda: len(processes(engine, 0)) == 2, what="the executor and its child")
    child = processes(engine, 0) - {first.pid}
    assert first.kill()
    wait_until(lambda: not first.alive(), what="its end")
    second = started(engine, 0, other_than=first)
    assert second != first
    assert child <= processes(engine, 0)


def test_a_stopped_executor_is_ended_and_replaced(engine: LocalEngine) -> None:
    first = started(engine, 0)
    first.kill(signal.SIGSTOP)
    wait_until(lambda: first.state() == "T", what="state T")
    second = started(engine, 0, other_than=first)
    assert not first.alive() and second.alive()


def test_a_pid_that_another_process_has_now_is_neither_trusted_nor_ended(
    engine: LocalEngine,
) -> None:
    with python_child("import time; time.sleep(3600)") as stranger:
        older = ProcessId(stranger.pid, 1)
        engine.cluster.announce(0, "tcp://127.0.0.1:9", older)
        started(engine, 0, other_than=older)
        assert stranger.poll() is None


def test_stopping_a_node_ends_all_that_runs_on_it_and_spares_the_others(
    engine: LocalEngine,
) -> None:
    gone, stays = started(engine, 0), started(engine, 1)
    wait_until(lambda: len(processes(engine, 0)) == 2, what="the executor and its child")
    paths = NodePaths(engine.cluster.id, 0).create()
    (paths.shm_dir / "arena-0.bin").write_bytes(b"x")
    engine.stop_node(0)
    assert not gone.alive() and stays.alive()
    assert processes(engine, 0) == set()
    assert not paths.shm_dir.exists() and not paths.sock_dir.exists()
    assert engine.cluster.address(0) is None
    engine.stop_node(0)


def test_stopping_a_node_ends_the_run_that_it_carries(engine: LocalEngine) -> None:
    run_id = "0badcafe"
    env = NodePaths(run_id, 0).environment()
    engine.cluster.write("nodes/0.run", {"run_dir": "/nowhere", "run_id": run_id})
    with python_child("import time; time.sleep(3600)", env=env) as worker:
        wait_until(lambda: bool(processes_of(run_id, 0)), what="the worker in /proc")
        engine.stop_node(0)
        assert worker.wait(timeout=20) == -signal.SIGKILL
    assert engine.cluster.read("nodes/0.run") is None


def test_a_lost_node_cannot_be_started_again(engine: LocalEngine) -> None:
    executor = started(engine, 1)
    engine.lose_node(1)
    assert not executor.alive() and engine.cluster.lost(1)
    with pytest.raises(NodeLost, match=r"node 1 of .* is gone; use a spare node"):
        engine.start_node(1)
    assert processes(engine, 1) == set()
    assert not engine.cluster.lost(0)


def test_what_an_executor_says_goes_to_its_log(engine: LocalEngine) -> None:
    log = engine.cluster.path / "logs" / "n0-executor.log"
    (Path(os.environ["PYTHONPATH"]) / "headway" / "trainer" / "__main__.py").write_text(
        "raise SystemExit('no disk')"
    )
    engine.start_node(0)
    wait_until(lambda: log.exists() and "no disk" in log.read_text(), what="the log line")
    assert engine.cluster.address(0) is None


def test_an_executor_that_hangs_is_ended_when_it_is_to_be_fenced(engine: LocalEngine) -> None:
    """One that lives is left alone without; a debugger's stop and every other
    state count as hanging."""
    old = started(engine, 1)
    engine.start_node(1)
    assert old.alive() and processes(engine, 1) >= {old.pid}
    engine.start_node(1, fence=True)
    assert old.is_doomed()
    wait_until(lambda: engine.cluster.living(1) not in (None, old), what="a successor")


def test_one_that_was_started_a_moment_ago_is_not_fenced(engine: LocalEngine) -> None:
    started(engine, 1)
    engine.start_node(1, fence=True)
    young = engine._started[1]
    engine.start_node(1, fence=True)
    assert engine._started[1] == young and young.alive()
    wait_until(lambda: engine.cluster.living(1) == young, what="its announcement")
