"""The local engine with real processes: its inits, and a stand-in for the executor that
announces itself and has a child."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.node.claim import claim
from headway.common.node.janitor import processes_of
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import NodePaths
from headway.common.node.testing import (
    child_environment,
    frozen,
    private_roots,
    python_child,
    wait_until,
)
from headway.launch import ClusterFolder, LocalEngine, NodeLost
from headway.launch.engines import local

EXECUTOR = """
import os, subprocess, sys, time
from pathlib import Path
from headway.common.node.process import ProcessId
from headway.launch.cluster import ClusterFolder
from headway.launch.init.beats import BeatSender
assert [sys.argv[i] for i in (1, 2, 4)] == ["executor", "--cluster", "--node"], sys.argv
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
folder = ClusterFolder(Path(sys.argv[3]))
folder.announce(int(sys.argv[5]), "tcp://127.0.0.1:9", ProcessId.current())
beats = BeatSender(os.environ)
while True:
    beats.beat()
    time.sleep(0.2)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    """An engine of two nodes; ``headway.controller`` is the stand-in above, since this
    part stands without it."""
    package = tmp_path / "path" / "headway" / "controller"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(EXECUTOR)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    with private_roots():
        made = LocalEngine(ClusterFolder.create(tmp_path / "cluster", nodes=2))
        yield made
        for node in range(2):
            made.stop_node(node)
        assert processes_of(made.cluster.id) == []


def started(engine: LocalEngine, node: int, *, other_than: ProcessId | None = None) -> ProcessId:
    """Start the node and wait until its executor has announced itself."""
    engine.start_node(node)
    return announced(engine, node, other_than=other_than)


def announced(engine: LocalEngine, node: int, *, other_than: ProcessId | None = None) -> ProcessId:
    """The node's executor, once it has announced itself."""
    wait_until(lambda: engine.cluster.living(node) not in (None, other_than), what=f"node {node}")
    found = engine.cluster.living(node)
    assert found is not None
    return found


def init_of(engine: LocalEngine, node: int) -> ProcessId:
    """The node's init, alive or not."""
    found = engine.cluster.init(node)
    assert found is not None
    return found


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
    for pid in (executor.pid, init_of(engine, 1).pid):
        assert os.getsid(pid) != os.getsid(0), "a Ctrl-C of the terminal would reach it"
    assert executor.pid in processes(engine, 1)
    assert processes(engine, 0) == set()


def test_starting_a_living_node_changes_nothing(engine: LocalEngine) -> None:
    executor = started(engine, 0)
    wait_until(lambda: len(processes(engine, 0)) == 3, what="init, executor and its child")
    before = processes(engine, 0)
    for _ in range(3):
        engine.start_node(0)
    assert processes(engine, 0) == before
    assert started(engine, 0) == executor


def test_a_killed_executor_is_replaced_and_what_it_kept_stays(engine: LocalEngine) -> None:
    first = started(engine, 0)
    wait_until(lambda: len(processes(engine, 0)) == 3, what="init, executor and its child")
    child = processes(engine, 0) - {first.pid, init_of(engine, 0).pid}
    assert first.kill()
    second = announced(engine, 0, other_than=first)
    assert second != first and not engine.has_ended(0)
    assert child <= processes(engine, 0)


def test_a_killed_init_is_replaced_and_the_executor_stays(engine: LocalEngine) -> None:
    executor, init = started(engine, 0), init_of(engine, 0)
    assert not engine.has_ended(0)
    init.kill()
    wait_until(lambda: engine.has_ended(0), what="it is known")
    engine.start_node(0, kill_hung=True)
    wait_until(lambda: init_of(engine, 0) != init, what="another init")
    assert not engine.has_ended(0) and executor.alive()
    assert announced(engine, 0) == executor


def test_an_init_and_an_executor_that_are_both_gone_are_replaced(engine: LocalEngine) -> None:
    executor, init = started(engine, 0), init_of(engine, 0)
    init.kill()
    wait_until(init.is_terminating, what="its end")
    executor.kill()
    wait_until(lambda: not executor.alive(), what="its end")
    assert engine.has_ended(0)
    engine.start_node(0, kill_hung=True)
    assert announced(engine, 0, other_than=executor) != executor


def test_an_init_and_an_executor_that_are_both_stopped_are_replaced(engine: LocalEngine) -> None:
    both = executor, init = started(engine, 0), init_of(engine, 0)
    for process in both:
        process.kill(signal.SIGSTOP)
    wait_until(lambda: {p.state() for p in both} == {"T"}, what="state T")
    engine.start_node(0, kill_hung=True)
    assert init.is_terminating()
    wait_until(executor.is_terminating, what="the end of the executor")
    assert announced(engine, 0, other_than=executor) != executor


def test_both_in_a_frozen_group_are_replaced(engine: LocalEngine) -> None:
    executor, init = started(engine, 0), init_of(engine, 0)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(frozen(init.pid, executor.pid))
        except PermissionError as error:
            pytest.skip(str(error))
        engine.start_node(0, kill_hung=True)
        assert init.is_terminating()
        assert announced(engine, 0, other_than=executor) != executor
        assert executor.is_terminating()


def test_of_two_engines_that_start_a_node_at_once_one_init_remains(engine: LocalEngine) -> None:
    LocalEngine(engine.cluster).start_node(0)
    executor = started(engine, 0)
    wait_until(lambda: len(processes(engine, 0)) == 3, what="init, executor and its child")
    assert announced(engine, 0) == executor


def test_a_stopped_node_is_not_started_again_behind_its_back(engine: LocalEngine) -> None:
    for _ in range(5):
        started(engine, 0)
        engine.stop_node(0)
        assert processes(engine, 0) == set() and not engine.has_ended(0)


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
    wait_until(lambda: len(processes(engine, 0)) == 3, what="init, executor and its child")
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
    program = engine.cluster.path.parent / "path" / "headway" / "controller" / "__main__.py"
    program.write_text("raise SystemExit('no disk')")
    engine.start_node(0)
    wait_until(lambda: log.exists() and "no disk" in log.read_text(), what="the log line")
    assert engine.cluster.address(0) is None


def test_an_executor_that_hangs_is_ended_when_it_is_to_be_fenced(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lives is left alone without; every state counts as hanging."""
    monkeypatch.setattr(local, "YOUNG_S", 0.0)
    old, init = started(engine, 1), init_of(engine, 1)
    engine.start_node(1)
    assert old.alive() and processes(engine, 1) >= {old.pid}
    engine.start_node(1, kill_hung=True)
    assert old.is_terminating()
    assert announced(engine, 1, other_than=old) != old and init_of(engine, 1) == init


def test_an_init_that_hangs_and_keeps_no_executor_is_replaced_when_fenced(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with python_child("import time; time.sleep(3600)") as stuck:
        process = ProcessId.of(stuck.pid)
        assert process is not None
        claim(engine.cluster.path / "nodes" / "0.init", process)
        engine.start_node(0, kill_hung=True)
        assert process.alive() and engine.cluster.living(0) is None, "it is young"
        monkeypatch.setattr(local, "YOUNG_S", 0.0)
        engine.start_node(0)
        assert process.alive(), "nobody said that it hangs"
        engine.start_node(0, kill_hung=True)
        assert process.is_terminating()
        assert announced(engine, 0).alive() and init_of(engine, 0) != process


def test_one_that_was_started_a_moment_ago_is_not_fenced(engine: LocalEngine) -> None:
    young = started(engine, 1)
    engine.start_node(1, kill_hung=True)
    assert young.alive() and announced(engine, 1) == young
