"""Real daemons on real shared memory: flush, commit, death at the worst moment, and a new start."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.folder import CheckpointInfo, mark_generation, newest
from headway.ckpt_store.manifest import step_dir_name
from headway.ckpt_store.verify import read_shard, verify
from headway.common.node.arming import arm, fired
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import (
    CheckpointComplete,
    Flush,
    StoreStatusReply,
    StoreTrouble,
)
from headway.common.wire.messages.service import ServiceBeat
from headway.common.wire.server import Server
from headway.testkit import snapshots

Until = Callable[..., None]


def has_step(checkpoints: Path, step: int) -> bool:
    info = newest(checkpoints)
    return info is not None and info.step == step


def assert_bit_exact(info: CheckpointInfo | None, num_floats: int = 3000) -> None:
    assert info is not None
    assert verify(info) == []
    for rank in range(info.world_size):
        expected = snapshots.small_snapshot(
            info.step, rank, info.world_size, info.generation, num_floats
        )
        data, extra = read_shard(info, rank)
        assert data.tobytes() == expected.data.tobytes()
        assert extra == expected.extra


def test_a_wanted_committed_snapshot_becomes_durable_and_its_slot_is_released(
    cluster: Any, until: Until
) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        cluster.start()
        snapshots.seal_step(arena, 0)
        until(lambda: has_step(cluster.checkpoints, 0))
        until(lambda: not arena.busy())
        assert_bit_exact(newest(cluster.checkpoints))


def test_what_is_not_wanted_or_not_committed_stays_in_memory(cluster: Any, until: Until) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        daemon = cluster.start()
        snapshots.seal_step(arena, 0, wanted=False)
        snapshots.seal_step(arena, 1, commit=False)
        with Client(daemon.endpoint) as client:
            for _ in range(5):
                client.call(Flush(), StoreStatusReply, timeout_s=20)
        assert arena.busy()
        assert list(cluster.checkpoints.iterdir()) == []
        arena.commit(1)
        until(lambda: has_step(cluster.checkpoints, 1))


def test_two_daemons_of_two_nodes_complete_one_step(cluster: Any, until: Until) -> None:
    with (
        snapshots.small_arena(cluster.shm_dir(0), 0, 2) as one,
        snapshots.small_arena(cluster.shm_dir(1), 1, 2) as two,
    ):
        daemons = [cluster.start(0), cluster.start(1)]
        snapshots.seal_step(one, 0)
        until(lambda: not one.busy())
        assert newest(cluster.checkpoints) is None
        snapshots.seal_step(two, 0)
        until(lambda: has_step(cluster.checkpoints, 0))
        until(lambda: all(daemon.status().complete_step == 0 for daemon in daemons))
        assert_bit_exact(newest(cluster.checkpoints))


@pytest.mark.parametrize("name", ["store.mid_flush", "store.mid_manifest"])
def test_a_daemon_killed_in_the_middle_is_made_up_for_by_its_successor(
    cluster: Any, until: Until, name: str
) -> None:
    num_floats = 3_000_000  # 24 MB: three chunks, so that half of a blob is on disk
    with snapshots.small_arena(cluster.shm_dir(), num_floats=num_floats) as arena:
        cluster.start()
        snapshots.seal_step(arena, 0)
        until(lambda: has_step(cluster.checkpoints, 0))
        until(lambda: not arena.busy())
        arm(cluster.failpoints, name, where={"step": 1})
        snapshots.seal_step(arena, 1)
        daemon = cluster.daemons[0]
        until(lambda: daemon.process.poll() is not None)
        assert daemon.process.returncode == -signal.SIGKILL
        assert has_step(cluster.checkpoints, 0)
        assert_bit_exact(newest(cluster.checkpoints), num_floats)
        leftovers = list(cluster.checkpoints.glob("*/.*.tmp"))
        assert len(leftovers) == 1
        cluster.start()
        until(lambda: has_step(cluster.checkpoints, 1))
        until(lambda: not arena.busy())
        assert_bit_exact(newest(cluster.checkpoints), num_floats)
        assert not list(cluster.checkpoints.glob("*/.*.tmp"))


@pytest.mark.parametrize("name", ["store.mid_flush", "store.mid_manifest"])
def test_both_daemons_killed_lose_nothing(cluster: Any, until: Until, name: str) -> None:
    with (
        snapshots.small_arena(cluster.shm_dir(0), 0, 2) as one,
        snapshots.small_arena(cluster.shm_dir(1), 1, 2) as two,
    ):
        for node in (0, 1):
            arm(cluster.failpoints, name, "sleep:600", where={"node": node}, key=f"node-{node}")
            cluster.start(node)
        for arena in (one, two):
            snapshots.seal_step(arena, 0)
        until(lambda: len(fired(cluster.failpoints)) == 2)
        for daemon in list(cluster.daemons):
            daemon.kill()
        assert newest(cluster.checkpoints) is None
        for node in (0, 1):
            cluster.start(node)
        until(lambda: has_step(cluster.checkpoints, 0))
        until(lambda: not one.busy() and not two.busy())
        assert_bit_exact(newest(cluster.checkpoints))


def test_a_dead_trainer_s_last_snapshot_is_still_flushed(cluster: Any, until: Until) -> None:
    arena = snapshots.small_arena(cluster.shm_dir())
    snapshots.seal_step(arena, 4)
    arena.close()  # and nobody holds the file any more
    cluster.start()
    until(lambda: has_step(cluster.checkpoints, 4))
    assert_bit_exact(newest(cluster.checkpoints))


def test_retention_keeps_what_was_asked_for(cluster: Any, until: Until) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        cluster.start(0, "--keep", "2")
        for step in range(5):
            snapshots.seal_step(arena, step)
            until(lambda step=step: has_step(cluster.checkpoints, step) and not arena.busy())
            assert_bit_exact(newest(cluster.checkpoints))
        names = {step_dir_name(step, 0) for step in (3, 4)}
        until(lambda: {path.name for path in cluster.checkpoints.iterdir()} == names)


def test_an_attempt_left_behind_by_a_recovery_is_removed_and_the_new_generation_wins(
    cluster: Any, until: Until
) -> None:
    with snapshots.small_arena(cluster.shm_dir(), 0, 2) as one:
        cluster.start()
        snapshots.seal_step(one, 10)  # rank 1's node is lost before it saves this
        until(lambda: not one.busy())
        mark_generation(cluster.checkpoints, 1, restart_step=5)
        with snapshots.small_arena(cluster.shm_dir(), 1, 2) as two:
            one.invalidate_newer(5)
            for arena in (one, two):
                snapshots.seal_step(arena, 10, generation=1)
            until(lambda: has_step(cluster.checkpoints, 10))
            until(lambda: not (cluster.checkpoints / step_dir_name(10, 0)).exists())
        info = newest(cluster.checkpoints)
        assert info is not None
        assert info.generation == 1
        assert_bit_exact(info)


def test_on_a_full_disk_the_attempt_is_dropped_the_slot_released_and_the_executor_told(
    cluster: Any, until: Until, tmp_path: Path
) -> None:
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    notes: list[Any] = []
    kinds = (ServiceBeat, CheckpointComplete, StoreTrouble)
    executor = Server(
        f"ipc://{cluster.shm_root}/executor.sock",
        {kind: lambda note, _: notes.append(note) for kind in kinds},
    )

    def told(kind: type[Any]) -> list[Any]:
        executor.handle_ready()
        return [note for note in notes if isinstance(note, kind)]

    try:
        with snapshots.small_arena(cluster.shm_dir(), num_floats=60_000) as arena:
            daemon = cluster.start(0, "--executor", executor.endpoint, checkpoints=mount / "c")
            until(lambda: told(ServiceBeat))
            snapshots.seal_step(arena, 0)
            until(lambda: not arena.busy())
            until(lambda: told(StoreTrouble))
            (trouble,) = told(StoreTrouble)
            assert (trouble.kind, trouble.step) == ("no_space", 0)
            assert "free space" in trouble.remedy
            until(lambda: list((mount / "c").iterdir()) == [])
            status = daemon.status()
            assert (status.errors, status.complete_step) == (1, -1)
            snapshots.seal_step(arena, 1, wanted=False)  # training goes on
            subprocess.run(["mount", "-o", "remount,size=8m", str(mount)], check=True)
            snapshots.seal_step(arena, 2)
            until(lambda: has_step(mount / "c", 2))
            assert_bit_exact(newest(mount / "c"), 60_000)
            until(lambda: [note.step for note in told(CheckpointComplete)] == [2])
    finally:
        executor.close()
        cluster.close()
        subprocess.run(["umount", str(mount)], check=True)


def test_beats_carry_progress_that_moves_only_with_work(cluster: Any, until: Until) -> None:
    beats: list[ServiceBeat] = []
    executor = Server(
        f"ipc://{cluster.shm_root}/executor.sock",
        {ServiceBeat: lambda note, _: beats.append(note), CheckpointComplete: lambda *_: None},
    )
    try:
        with snapshots.small_arena(cluster.shm_dir()) as arena:
            cluster.start(0, "--executor", executor.endpoint)
            until(lambda: executor.handle_ready() * 0 + len(beats) >= 3)
            assert beats[-1].alive_seq > beats[0].alive_seq
            before = beats[-1].progress
            assert before == beats[0].progress
            snapshots.seal_step(arena, 0)
            until(lambda: executor.handle_ready() * 0 + beats[-1].progress > before)
    finally:
        executor.close()


def test_a_daemon_told_to_end_flushes_what_is_wanted_first_and_leaves_the_arena(
    cluster: Any, until: Until
) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        daemon = cluster.start()
        until(lambda: daemon.status().arenas)
        snapshots.seal_step(arena, 3)
        daemon.process.terminate()
        assert daemon.process.wait(30) == 0
        assert_bit_exact(newest(cluster.checkpoints))
        assert arena.path.exists()


def test_a_second_daemon_for_the_same_shared_memory_is_refused_in_one_line(
    cluster: Any, until: Until
) -> None:
    first = cluster.start()
    until(lambda: first.status())
    second = cluster.start()
    assert second.process.wait(30) == 2
    assert "another checkpoint store serves" in second.log.read_text()
    first.status()


def test_a_file_that_is_no_arena_and_an_arena_of_another_run_are_left_alone(
    cluster: Any, until: Until
) -> None:
    shm_dir = cluster.shm_dir()
    (shm_dir / "arena-7.bin").write_bytes(b"garbage" * 100)
    (shm_dir / "arena-8.bin").symlink_to(shm_dir / "arena-8.bin")  # ELOOP for whoever follows it
    (shm_dir / "arena-9.bin").mkdir()
    daemon = cluster.start()
    with snapshots.small_arena(shm_dir) as arena:
        snapshots.seal_step(arena, 0)
        until(lambda: has_step(cluster.checkpoints, 0))
        assert [a.rank for a in daemon.status().arenas] == [0]
    assert (shm_dir / "arena-7.bin").exists()


def test_an_arena_that_is_made_anew_is_followed(cluster: Any, until: Until) -> None:
    cluster.start()
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 0)
        until(lambda: has_step(cluster.checkpoints, 0) and not arena.busy())
        arena.unlink()
    with snapshots.small_arena(cluster.shm_dir(), num_floats=500) as arena:
        snapshots.seal_step(arena, 1)
        until(lambda: has_step(cluster.checkpoints, 1))
        assert_bit_exact(newest(cluster.checkpoints), 500)


def test_the_daemon_works_at_low_priority(cluster: Any, until: Until) -> None:
    daemon = cluster.start()
    until(lambda: daemon.status())
    assert os.getpriority(os.PRIO_PROCESS, daemon.process.pid) == os.nice(0) + 10


def test_status_names_what_each_rank_has(cluster: Any, until: Until) -> None:
    with snapshots.small_arena(cluster.shm_dir(), 0, 2) as arena:
        daemon = cluster.start(0, "--world-size", "2")
        snapshots.seal_step(arena, 5)
        until(lambda: daemon.status().arenas and daemon.status().arenas[0].durable_step == 5)
        snapshots.seal_step(arena, 6, wanted=False)
        status = daemon.status()
        assert (status.run_id, status.world_size, status.complete_step) == (snapshots.RUN_ID, 2, -1)
        until(lambda: daemon.status().arenas[0].committed_step == 6)
        assert status.bytes_written == arena.slot_bytes


def test_nodes_that_do_not_share_their_folder_are_told_so_and_fill_no_disk(
    cluster: Any, until: Until, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    daemons = [cluster.start(node, checkpoints=folders[node]) for node in (0, 1)]
    arenas = [snapshots.small_arena(cluster.shm_dir(node), node, 2) for node in (0, 1)]
    for step in range(0, 80, 10):
        for arena in arenas:
            snapshots.seal_step(arena, step)
        until(lambda: not any(arena.busy() for arena in arenas))
    for daemon, folder, other in zip(daemons, folders, (1, 0), strict=True):
        until(lambda folder=folder: len(list(folder.glob("*/*.safetensors"))) <= 2)
        status = daemon.status()
        assert f"no parts from ranks [{other}]" in status.last_error
        assert "check that all nodes write to the same folder" in status.last_remedy
    for arena in arenas:
        arena.close()


def test_a_folder_that_cannot_be_listed_stops_neither_training_nor_the_next_checkpoint(
    cluster: Any, until: Until
) -> None:
    daemon = cluster.start()
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 0)
        until(lambda: has_step(cluster.checkpoints, 0))
        aside = cluster.checkpoints.with_name("aside")
        cluster.checkpoints.rename(aside)
        cluster.checkpoints.write_text("a file where the folder was")
        until(lambda: "cannot be listed" in daemon.status().last_error)
        errors = daemon.status().errors
        snapshots.seal_step(arena, 10)
        until(lambda: not arena.busy())
        # The flush, and the clearing up after it; the folder itself was reported once.
        assert daemon.status().errors <= errors + 2
        cluster.checkpoints.unlink()
        aside.rename(cluster.checkpoints)
        snapshots.seal_step(arena, 20)
        until(lambda: has_step(cluster.checkpoints, 20))
