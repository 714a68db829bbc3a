"""The end of a run on a node: whoever is frozen or dead by then, its last
flight records are saved."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from headway.ckpt_store import __main__ as store_program
from headway.ckpt_store import server as store_server
from headway.ckpt_store import store_watch
from headway.ckpt_store.client import newest
from headway.ckpt_store.config import StoreConfig
from headway.common import log
from headway.common.node.arena import Arena
from headway.common.node.arming import arm
from headway.common.node.event_files import event_files
from headway.common.node.flight import FlightWriter
from headway.common.node.process import ProcessId, spawn
from headway.common.node.run_dir import RunDir, new_run_id
from headway.common.node.testing import identity, private_roots, wait_until
from headway.common.wire.client import Client
from headway.common.wire.messages.executor import WorkerBeat
from headway.common.wire.messages.service import Ping, Pong
from headway.controller.executor import node_end
from headway.controller.executor.node_events import Looked
from headway.controller.executor.node_run import NodeRun
from headway.launch.cluster import ClusterFolder
from headway.testkit import snapshots
from headway.testkit.played.hanging_rank import hanging_rank
from structlog.testing import capture_logs


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NodeRun]:
    with private_roots():
        folder = RunDir.create(tmp_path / "run", run_id=new_run_id())
        folder.config.write_text("")
        made = NodeRun(ClusterFolder(tmp_path / "cluster"), 0, folder.path)
        made.guardian.services.kept.clear()
        yield made
        made.side_thread.close()


def end(run: NodeRun) -> None:
    run.ending().run()


def keep(run: NodeRun, name: str, process: ProcessId) -> ProcessId:
    run.guardian.services.keep(name, 0.0, process)
    return process


def sleeper(run: NodeRun, name: str) -> ProcessId:
    """A service that has no handler for SIGTERM yet dies of it, as an
    interpreter that still imports."""
    code = [sys.executable, "-c", "import time; time.sleep(100)"]
    return keep(run, name, spawn(code, run.run.logs / "sleeper.log", os.environ))


@pytest.fixture
def frozen_rank(run: NodeRun) -> Iterator[ProcessId]:
    with hanging_rank(run.paths.segment("flight", 0), 0) as child:
        child.send_signal(signal.SIGSTOP)
        process = identity(child)
        wait_until(lambda: process.state() == "T", what="a stopped rank")
        beat = WorkerBeat(
            worker="n0w0", pid=process.pid, start_ticks=process.start_ticks, status="running"
        )
        run.guardian.workers.receive(beat, 0.0)
        yield process
        assert not process.alive()


def saved(run: NodeRun) -> list[int]:
    files = [pl.read_parquet(file.path) for file in event_files(run.run.events, node=0)]
    return [step for file in files for step in file.filter(rank=0)["step"]]


@pytest.mark.usefixtures("frozen_rank")
def test_a_frozen_rank_is_killed_soon_and_its_open_records_are_kept(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_end, "DRAIN_LIMIT_S", 1000.0)  # the test's own limit is 300 s
    end(run)
    assert saved(run) == [0, 1, 2, 3, 4]
    assert not run.paths.shm_dir.exists()


@pytest.mark.usefixtures("frozen_rank")
@pytest.mark.parametrize("state", ["starting", "stopped", "dead"])
def test_an_agent_that_saved_nothing_loses_nothing(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(node_end, "DRAIN_LIMIT_S", 1.0)
    monkeypatch.setattr(node_end, "WORKERS_LIMIT_S", 0.2)
    agent = sleeper(run, "agent")
    if state == "stopped":
        agent.kill(signal.SIGSTOP)
        wait_until(lambda: agent.state() == "T", what="a stopped agent")
    if state == "dead":
        agent.kill()
        wait_until(lambda: not agent.alive(), what="a dead agent")
    end(run)
    assert saved(run) == [0, 1, 2, 3, 4]
    assert not agent.alive()


def test_an_agent_that_saved_all_leaves_nothing_to_be_written_twice(
    run: NodeRun, frozen_rank: ProcessId
) -> None:
    frozen_rank.kill()
    wait_until(lambda: not frozen_rank.alive(), what="a dead rank")
    node_end.Saving(run.paths.shm_dir, run.run.events, 0).run()
    assert saved(run) == [0, 1, 2, 3, 4]
    end(run)
    assert saved(run) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("frozen_rank")
def test_a_failing_disk_is_logged_and_does_not_keep_a_run_from_its_end(
    run: NodeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    run.run.events.rmdir()
    run.run.events.write_text("no folder")
    end(run)
    assert "flight records are not saved" in capfd.readouterr().err
    assert not run.paths.shm_dir.exists()


def test_workers_that_have_not_spoken_to_a_new_executor_are_ended_too(
    run: NodeRun, frozen_rank: ProcessId
) -> None:
    run.handle(Looked({}))  # writes them down
    successor = NodeRun(run.cluster, 0, run.run.path)
    assert successor.guardian.workers.members == {}
    assert list(successor.guardian.workers.processes().values()) == [frozen_rank]
    run.lock.release()
    end(successor)
    assert saved(run) == [0, 1, 2, 3, 4]


def test_a_rank_stuck_in_the_kernel_is_saved_as_far_as_it_came(run: NodeRun) -> None:
    writer = FlightWriter.create(run.paths.segment("flight", 0), 0)  # nobody ends this process
    for step in range(3):
        writer.begin(1, step=step)
    end(run)
    assert saved(run) == [0, 1, 2]


def test_an_agent_stuck_in_the_kernel_is_not_helped_by_a_second_saver(
    run: NodeRun, frozen_rank: ProcessId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_end, "DRAIN_LIMIT_S", 0.2)
    agent = sleeper(run, "agent")
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(ProcessId, "kill", lambda *_: True)
        patch.setattr(node_end, "end_node", lambda *_: [])
        patch.setattr(node_end, "leave_run", lambda *_: [])
        end(run)
    assert saved(run) == []
    assert any("the agent does not end" in line["event"] for line in logs)
    for process in (agent, frozen_rank):
        process.kill()
    wait_until(lambda: not agent.alive() and not frozen_rank.alive(), what="both ended")


@pytest.mark.usefixtures("frozen_rank")
def test_the_agent_of_a_node_saves_to_the_folder_of_its_run(run: NodeRun) -> None:
    second = NodeRun(run.cluster, 0, run.run.path)
    agent = second.services.start("agent")
    with Client(run.paths.endpoint("agent")) as client:
        client.call(Ping(), Pong, timeout_s=20.0)
    agent.kill(signal.SIGTERM)
    wait_until(lambda: not agent.alive(), what="the agent's end")
    assert saved(run) == [0, 1], "the rank lives: what it has open is left to the next agent"
    second.lock.release()
    end(run)
    assert saved(run) == [0, 1, 2, 3, 4]


# ---- the checkpoint store -----------------------------------------------------------------
RANKS = 3


def _keep_store(run: NodeRun) -> ProcessId:
    """A real store that is up and running."""
    store = keep(run, "ckpt_store", run.services.start("ckpt_store"))
    with Client(run.paths.endpoint("ckpt_store")) as client:
        client.call(Ping(), Pong, timeout_s=20.0)
    return store


def _want_durable(run: NodeRun, step: int, action: str) -> None:
    """Every rank's snapshot of ``step`` is wanted; the store does ``action`` amid each of them."""
    for rank in range(RANKS):
        arm(run.paths.failpoints, "store.mid_flush", action, {"rank": rank})
        layout = json.dumps(snapshots.small_layout(rank, RANKS)).encode()
        path, run_id = run.paths.segment("arena", rank), run.run.run_id
        with Arena.create(
            path, run_id=run_id, rank=rank, slot_bytes=40_000, layout=layout
        ) as arena:
            snapshots.seal_step(arena, step)


def test_a_node_ends_only_when_its_store_has_written_what_was_wanted(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_end, "DRAIN_LIMIT_S", 1.0)
    store = _keep_store(run)
    _want_durable(run, 5, "sleep:1.2")
    with capture_logs() as logs:
        end(run)
    found = newest(run.run.checkpoints)
    assert found is not None and (found.step, found.world_size) == (5, RANKS)
    wait_until(lambda: not store.alive(), what="the store's end")  # SIGKILL is on its way
    assert not run.paths.shm_dir.exists()
    assert not [line for line in logs if "checkpoint store" in line["event"]]


@pytest.mark.parametrize("action", ["sleep:60", "stop"])
def test_a_store_that_stands_still_is_ended_with_a_line_that_says_what_is_lost(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(store_watch, "STILL_LIMIT_S", 1.5)
    store = _keep_store(run)
    _want_durable(run, 5, action)
    with capture_logs() as logs:
        end(run)
    wait_until(lambda: not store.alive(), what="the store's end")  # SIGKILL is on its way
    assert not run.paths.shm_dir.exists()
    (line,) = [line for line in logs if "checkpoint store is ended" in line["event"]]
    assert line["undurable_steps"] == [5]
    assert line["checkpoints"] == str(run.run.checkpoints)
    assert newest(run.run.checkpoints) is None


def test_a_file_that_is_no_arena_keeps_no_run_from_its_end(
    run: NodeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_end, "DRAIN_LIMIT_S", 1.0)
    store = _keep_store(run)
    _want_durable(run, 5, "sleep:0.2")
    run.paths.segment("arena", 7).write_bytes(b"no arena")
    run.paths.segment("arena", 8).mkdir()
    with capture_logs() as logs:
        end(run)
    found = newest(run.run.checkpoints)
    assert found is not None and found.step == 5
    wait_until(lambda: not store.alive(), what="the store's end")
    told = [line["arena"] for line in logs if "arena is not looked at" in line["event"]]
    assert sorted(Path(path).name for path in told) == ["arena-7.bin", "arena-8.bin"]
    NodeRun(run.cluster, 0, run.run.path).lock.release()


# ---- settings ---------------------------------------------------------------------------------
def _configured(run: NodeRun, text: str) -> NodeRun:
    run.run.config.write_text(text)
    made = NodeRun(run.cluster, 0, run.run.path)
    run.lock.release()
    return made


def test_the_store_of_a_run_takes_the_niceness_of_its_table(run: NodeRun) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    second = _configured(run, "[ckpt]\nnice = 3\n")
    second.guardian.services.kept.clear()
    store = _keep_store(second)
    assert os.getpriority(os.PRIO_PROCESS, store.pid) == min(own + 3, 19)
    end(second)


OTHER_VALUES = {
    "durable_every": 7,
    "snapshot_every": 7,
    "keep": 9,
    "verify_before_remove": "sizes",
    "nice": 3,
    "scan_period_s": 0.25,
    "folder_period_s": 0.75,
}


def test_every_setting_of_the_store_reaches_it(run: NodeRun) -> None:
    assert OTHER_VALUES.keys() == {field.name for field in dataclasses.fields(StoreConfig)}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in OTHER_VALUES.items())
    second = _configured(run, f"[ckpt]\n{text}\n")
    spec = second.services.spec("ckpt_store")
    seen: list[StoreConfig] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_server, "serve", lambda _, config: seen.append(config) or 0)
        patch.setattr(log, "setup", lambda *_, **__: None)
        assert store_program.run(store_program.app, "ckpt_store", list(spec.argv[3:])) == 0
    assert dataclasses.asdict(seen[0]) == OTHER_VALUES
    second.lock.release()


def test_processes_of_a_node_know_the_size_of_their_logs(run: NodeRun) -> None:
    process = run.services.start("agent")
    try:
        environment = Path(f"/proc/{process.pid}/environ")
        wait_until(lambda: b"HEADWAY_LOG_MIB=64" in environment.read_bytes().split(b"\0"), 10.0)
    finally:
        process.kill()
