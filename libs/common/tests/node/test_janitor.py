"""The janitor among real processes; every one of them has private roots in its environment."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from headway.common.errors import InputError
from headway.common.node import janitor
from headway.common.node.process import ProcessId
from headway.common.node.ring import RingWriter
from headway.common.node.run_dir import NodePaths, RunLock, new_run_id
from headway.common.node.testing import (
    identity,
    no_leaks,
    python_child,
    read_line,
    send_line,
    wait_until,
)

SLEEP = "import signal; print('up', flush=True); signal.pause()"
EXECUTOR = """
import sys
from headway.common.node.run_dir import RunLock
lock = RunLock.hold(sys.argv[1])
print("up", flush=True)
sys.stdin.readline()
"""


def furnish(run_id: str, node: int = 0) -> NodePaths:
    """The folders of a node with a socket file and a segment in them."""
    paths = NodePaths(run_id, node).create()
    paths.socket("executor").touch()
    RingWriter.create(
        paths.segment("ring", 0), spec=b"", slot_bytes=64, num_slots=2, num_readers=1
    ).close()
    return paths


@contextlib.contextmanager
def member(run_id: str, node: int = 0, code: str = SLEEP) -> Iterator[subprocess.Popen[str]]:
    with python_child(code, run_id, env=NodePaths(run_id, node).environment()) as child:
        assert read_line(child) == "up"
        yield child


def blocked_on_a_lock(process: ProcessId) -> bool:
    waiting = [
        line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line
    ]
    return any(line[2] == "FLOCK" and line[5] == str(process.pid) for line in waiting)


def gone(child: subprocess.Popen[str]) -> bool:
    return not identity(child).alive()


def test_a_dead_run_loses_its_processes_sockets_and_memory(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    paths = furnish(run_id)
    with (
        member(run_id) as worker,
        member(run_id, 1) as stopped,
        member(run_id, code=EXECUTOR) as executor,
    ):
        stopped.send_signal(signal.SIGSTOP)
        executor.kill()
        executor.wait()
        done = janitor.sweep(*roots)
        assert gone(worker)
        assert gone(stopped)
    assert f"run {run_id}: ended 2 processes" in done
    assert not paths.sock_dir.exists()
    assert not paths.shm_dir.exists()
    assert [list(root.iterdir()) for root in roots] == [[], []]
    assert janitor.sweep(*roots) == []


def test_a_live_run_keeps_everything(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    paths = furnish(run_id)
    with member(run_id) as worker, member(run_id, code=EXECUTOR) as executor:
        assert janitor.sweep(*roots) == []
        assert not gone(worker)
        assert not gone(executor)
    assert paths.socket("executor").exists()
    assert paths.segment("ring", 0).exists()


def test_a_run_lives_as_long_as_one_of_its_executors_holds_it(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    furnish(run_id)
    with (
        member(run_id, code=EXECUTOR) as one,
        member(run_id, 1, code=EXECUTOR) as two,
        member(run_id) as worker,
    ):
        one.kill()
        one.wait()
        assert janitor.sweep(*roots) == []
        two.kill()
        two.wait()
        assert janitor.sweep(*roots) != []
        assert gone(worker)


def test_an_executor_that_does_not_hold_the_lock_yet_keeps_its_run_alive(
    roots: tuple[Path, Path],
) -> None:
    run_id = new_run_id()
    furnish(run_id)
    env = NodePaths(run_id, 0).environment()
    argv = [sys.executable, "-c", SLEEP, "headway.controller.executor.executor"]
    with member(run_id) as worker:
        executor = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env)
        try:
            assert executor.stdout is not None
            executor.stdout.readline()
            assert janitor.sweep(*roots) == []
            assert not gone(worker)
        finally:
            executor.kill()
            executor.communicate()
        assert janitor.sweep(*roots) != []


def test_strangers_and_runs_of_other_roots_are_left_alone(
    roots: tuple[Path, Path], tmp_path: Path
) -> None:
    dead, elsewhere = new_run_id(), new_run_id()
    furnish(dead)
    stray = roots[0] / "not-a-run"
    stray.mkdir()
    other = {**NodePaths(elsewhere, 0).environment(), "HEADWAY_SHM_ROOT": str(tmp_path)}
    with (
        python_child(SLEEP) as foreign,
        python_child(SLEEP, env=other) as neighbour,
        member(dead) as worker,
    ):
        assert read_line(foreign) == read_line(neighbour) == "up"
        done = janitor.sweep(*roots)
        assert {line.split(":")[0] for line in done} == {f"run {dead}"}
        assert gone(worker)
        assert not gone(foreign)
        assert not gone(neighbour)
    assert stray.exists()


@pytest.mark.usefixtures("roots")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_root_ends_no_process_of_another_user_whatever_its_environment_says() -> None:
    run_id, nobody = new_run_id(), 65534
    furnish(run_id)
    env = NodePaths(run_id, 0).environment()
    other = subprocess.Popen(["sleep", "100"], env={**os.environ, **env}, user=nobody)
    try:
        with member(run_id) as own:
            assert janitor.processes_of(run_id) == [identity(own)]
            janitor.end_node(run_id, 0)
            janitor.end_run(run_id)
            assert gone(own)
            assert not gone(other)
    finally:
        other.kill()
        other.wait()


@pytest.mark.usefixtures("roots")
def test_a_stranger_that_got_the_pid_of_a_run_process_meanwhile_is_spared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = new_run_id()
    env = NodePaths(run_id, 0).environment()
    with python_child(SLEEP) as stranger:
        assert read_line(stranger) == "up"
        is_running = psutil.Process.is_running

        # The kernel hands out no pid on request: what was read of the stranger's is played.
        def environ(process: psutil.Process) -> dict[str, str]:
            return env if process.pid == stranger.pid else {}

        def is_same(process: psutil.Process) -> bool:
            return process.pid != stranger.pid and is_running(process)

        monkeypatch.setattr(psutil.Process, "environ", environ)
        monkeypatch.setattr(psutil.Process, "is_running", is_same)
        assert janitor.processes_of(run_id) == []
        janitor.end_run(run_id)
        assert not gone(stranger)


def test_processes_of_a_run_without_any_folder_are_found_too(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    with member(run_id) as worker:
        assert any(run_id in line for line in janitor.sweep(*roots))
        assert gone(worker)


def test_a_link_in_the_place_of_a_run_is_not_followed(
    roots: tuple[Path, Path], tmp_path: Path
) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text("mine")
    for root in roots:
        root.mkdir(mode=0o700)
    link = roots[1] / new_run_id()
    link.symlink_to(tmp_path)
    assert not any(str(link) in line for line in janitor.sweep(*roots))
    assert treasure.read_text() == "mine"


@pytest.mark.usefixtures("roots")
def test_a_process_that_keeps_starting_others_is_ended_with_all_of_them() -> None:
    breed = """
import subprocess, sys, time
print("up", flush=True)
while True:
    subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
    time.sleep(0.002)
"""
    run_id = new_run_id()
    with member(run_id, code=breed):
        wait_until(lambda: len(janitor.processes_of(run_id)) > 3, what="children")
        janitor.end_run(run_id)
        assert janitor.processes_of(run_id) == []


@pytest.mark.usefixtures("roots")
def test_the_processes_of_a_run_are_told_by_node_and_zombies_are_none() -> None:
    run_id = new_run_id()
    with member(run_id, 0) as a, member(run_id, 1) as b, member(run_id, 1) as c:
        assert janitor.processes_of(run_id) == sorted(identity(child) for child in (a, b, c))
        assert janitor.processes_of(run_id, 1) == sorted(identity(child) for child in (b, c))
        c.kill()
        wait_until(lambda: identity(c).state() == "Z", what="zombie")
        assert janitor.processes_of(run_id, 1) == [identity(b)]
    with pytest.raises(InputError):
        janitor.processes_of("")


@pytest.mark.usefixtures("roots")
def test_ending_a_node_takes_its_processes_and_memory_and_leaves_the_rest() -> None:
    run_id = new_run_id()
    lost, kept = furnish(run_id, 0), furnish(run_id, 1)
    with member(run_id, 0, code=EXECUTOR) as executor, member(run_id, 1) as worker:
        done = janitor.end_node(run_id, 0)
        assert gone(executor)
        assert not gone(worker)
        assert done[0] == f"run {run_id} node 0: ended 1 processes"
    assert not lost.shm_dir.exists() and not lost.sock_dir.exists()
    assert kept.segment("ring", 0).exists() and kept.socket("executor").exists()


@pytest.mark.usefixtures("roots")
def test_what_cannot_be_removed_is_named_with_the_reason_and_the_rest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_id = new_run_id()
    paths = furnish(run_id)
    stuck = paths.segment("ring", 0)
    paths.segment("arena", 0).write_bytes(b"")
    really_unlink = os.unlink

    def unlink(path: Any, **where: Any) -> None:
        if Path(os.fsdecode(path)).name == stuck.name:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(stuck))
        really_unlink(path, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        memory, sockets = janitor.end_node(run_id, 0)
    assert memory.startswith(f"run {run_id}: cannot remove {paths.shm_dir}: ")
    assert "Operation not permitted" in memory and stuck.name in memory
    assert sockets == f"run {run_id}: removed {paths.sock_dir}"
    assert sorted(paths.shm_dir.iterdir()) == [stuck]


@pytest.mark.usefixtures("roots")
def test_ending_a_run_spares_the_process_that_asks() -> None:
    code = """
import sys
from headway.common.node.janitor import end_run, processes_of
print("up", flush=True)
sys.stdin.readline()
print(len(end_run(sys.argv[1])), len(processes_of(sys.argv[1])), flush=True)
"""
    run_id = new_run_id()
    furnish(run_id)
    with member(run_id) as worker, member(run_id, code=code) as asking:
        send_line(asking, "go")
        assert read_line(asking) == "3 1"  # processes, memory and sockets; itself is left
        assert gone(worker)


def test_a_starting_run_waits_for_the_sweep_of_its_id_and_then_holds_a_fresh_lock(
    roots: tuple[Path, Path],
) -> None:
    run_id = new_run_id()
    furnish(run_id)
    sweeping = RunLock.try_exclusive(run_id, roots[0])
    assert sweeping is not None
    code = "import sys; print('up', flush=True)" + EXECUTOR.replace('print("up"', 'print("held"')
    with member(run_id, code=code) as executor:
        me: ProcessId = identity(executor)
        wait_until(lambda: blocked_on_a_lock(me), what="a wait for the lock")
        (roots[0] / run_id / "run.lock").unlink()
        sweeping.release()
        assert read_line(executor) == "held"
        assert RunLock.try_exclusive(run_id, roots[0]) is None
        assert janitor.sweep(*roots) == []
        send_line(executor, "end")
        executor.wait()
        lock = RunLock.try_exclusive(run_id, roots[0])
        assert lock is not None
        lock.release()


def test_the_lock_is_not_inherited_by_programs_its_holder_starts(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    with RunLock.hold(run_id):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HEADWAY")}
        child = subprocess.Popen(["sleep", "100"], env=env, close_fds=False)
    try:
        lock = RunLock.try_exclusive(run_id, roots[0])
        assert lock is not None
        lock.release()
    finally:
        child.kill()
        child.wait()


def test_sweeping_leaves_no_file_descriptor(roots: tuple[Path, Path]) -> None:
    roots[1].mkdir(mode=0o700)
    with no_leaks(roots[1]):
        for _ in range(3):
            furnish(new_run_id())
            assert janitor.sweep(*roots)


def test_a_run_that_is_started_again_keeps_its_snapshots_and_nothing_else(
    roots: tuple[Path, Path],
) -> None:
    run_id, other = new_run_id(), new_run_id()
    for node in (0, 1):
        furnish(run_id, node).segment("arena", node).touch()
    furnish(other).segment("arena", 0).touch()
    done = janitor.sweep(*roots, spare=run_id)
    assert done and all(other in line for line in done)
    with member(run_id) as worker:
        janitor.end_run(run_id, keep_arenas=True)
        wait_until(lambda: gone(worker), what="the worker has ended")
    left = {path for root in roots for path in root.rglob("*") if not path.is_dir()}
    assert left == {NodePaths(run_id, node).segment("arena", node) for node in (0, 1)}
    janitor.end_run(run_id)
    assert [path for root in roots for path in root.rglob("*")] == []


def test_leaving_a_run_waits_for_the_lock_of_a_process_that_is_no_longer_found(
    roots: tuple[Path, Path],
) -> None:
    run_id = new_run_id()
    furnish(run_id)
    exiting = RunLock.hold(run_id)  # as by a process that has lost its environment already
    release = threading.Timer(0.3, exiting.release)
    release.start()
    assert janitor.leave_run(run_id) == [], "it waits only where it may"
    assert len(janitor.leave_run(run_id, wait_s=60.0)) == 2
    assert not any((root / run_id).exists() for root in roots)
    release.join()


def test_a_run_that_another_process_holds_is_not_waited_for(roots: tuple[Path, Path]) -> None:
    run_id = new_run_id()
    furnish(run_id)
    with member(run_id, code=EXECUTOR):
        assert janitor.leave_run(run_id, wait_s=3600.0) == []
        assert all((root / run_id).exists() for root in roots)
