"""Real daemons that are asked to end, or to write what no rank asks for."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.folder import mark_generation, newest
from headway.ckpt_store.verify import read_shard, verify
from headway.common.node.arena import Arena
from headway.common.node.arming import arm, fired
from headway.common.wire.client import Client
from headway.common.wire.messages.ckpt_store import Flush, StoreStatusReply
from headway.common.wire.messages.service import Drain, Drained
from headway.testkit import snapshots

Until = Callable[..., None]


def start(cluster: Any, node: int, world_size: int, **more: Any) -> Any:
    """A daemon of a run's node: one with an executor, which need not be there."""
    words = ("--executor", f"ipc://{cluster.shm_root}/executor", "--world-size", str(world_size))
    daemon = cluster.start(node, *words, **more)
    daemon.status()  # it takes signals
    return daemon


def end(*daemons: Any) -> list[int]:
    """What systemd does at a shutdown; the exit codes."""
    for daemon in daemons:
        daemon.process.send_signal(signal.SIGTERM)
    return [daemon.process.wait(60) for daemon in daemons]


def durable_step(checkpoints: Path) -> int:
    """The newest checkpoint, each byte of which is as its ranks sealed it; -1 for none."""
    info = newest(checkpoints)
    if info is None:
        return -1
    assert verify(info) == []
    for rank in range(info.world_size):
        expected = snapshots.small_snapshot(info.step, rank, info.world_size, info.generation)
        data, extra = read_shard(info, rank)
        assert (data.tobytes(), extra) == (expected.data.tobytes(), expected.extra)
    return info.step


def two_arenas(cluster: Any) -> tuple[Arena, Arena]:
    """Of two ranks on two nodes, with the steps 5 and 6 in memory."""
    arenas = [snapshots.small_arena(cluster.shm_dir(rank), rank, 2) for rank in (0, 1)]
    for arena in arenas:
        for step in (5, 6):
            snapshots.seal_step(arena, step, wanted=False)
    return arenas[0], arenas[1]


def test_a_sigterm_to_all_stores_makes_the_newest_committed_step_durable(
    cluster: Any,
) -> None:
    one, two = two_arenas(cluster)
    snapshots.seal_step(one, 7, wanted=False)
    snapshots.seal_step(two, 7, wanted=False, commit=False)  # it died before it learned of that
    one.close()
    two.close()
    daemons = [start(cluster, node, 2) for node in (0, 1)]
    assert newest(cluster.checkpoints) is None
    assert end(*daemons) == [0, 0]
    assert durable_step(cluster.checkpoints) == 7
    assert "checkpoint of step 7 written from memory" in daemons[0].log.read_text()


def test_what_all_ranks_of_one_node_have_sealed_counts_as_committed(
    cluster: Any,
) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 3, wanted=False)
        snapshots.seal_step(arena, 4, wanted=False, commit=False)
    assert end(start(cluster, 0, 1)) == [0]
    assert durable_step(cluster.checkpoints) == 4


def test_a_snapshot_that_a_rank_doubts_makes_all_nodes_fall_back_to_the_one_before(
    cluster: Any,
) -> None:
    one, two = two_arenas(cluster)
    info = two.newest()
    assert info is not None
    two.doubt(info)
    one.close()
    two.close()
    assert end(*(start(cluster, node, 2) for node in (0, 1))) == [0, 0]
    assert durable_step(cluster.checkpoints) == 5


def test_a_damaged_snapshot_makes_all_nodes_fall_back_to_the_one_before(
    cluster: Any,
) -> None:
    one, two = two_arenas(cluster)
    info = two.newest()
    assert info is not None
    path, at = two.path, two._data_start(info.index)
    one.close()
    two.close()
    with path.open("r+b") as file:
        file.seek(at + 1000)
        file.write(b"damaged")
    assert end(*(start(cluster, node, 2) for node in (0, 1))) == [0, 0]
    assert durable_step(cluster.checkpoints) == 5


def test_a_step_that_a_newer_generation_has_gone_back_behind_is_not_written(
    cluster: Any,
) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 5, wanted=False)
        snapshots.seal_step(arena, 6, wanted=False)
    mark_generation(cluster.checkpoints, 1, restart_step=5)
    assert end(start(cluster, 0, 1)) == [0]
    assert durable_step(cluster.checkpoints) == 5


def test_an_order_to_write_the_newest_step_needs_no_rank(cluster: Any, until: Until) -> None:
    one, two = two_arenas(cluster)  # open: the ranks live, and are paused
    with one, two:
        daemons = [start(cluster, node, 2) for node in (0, 1)]
        for daemon in daemons:
            with Client(daemon.endpoint) as client:
                client.call(Flush(newest=True), StoreStatusReply, timeout_s=20)
        until(lambda: durable_step(cluster.checkpoints) == 6)
        until(lambda: not any(daemon.status().is_saving for daemon in daemons))
        for arena in (one, two):
            for step in (7, 8, 9):
                snapshots.seal_step(arena, step, wanted=False)
        assert durable_step(cluster.checkpoints) == 6  # an order is for one step
        for arena in (one, two):
            snapshots.seal_step(arena, 10)
        until(lambda: durable_step(cluster.checkpoints) == 10)


def test_a_daemon_killed_while_it_ends_spoils_nothing_and_its_successor_finishes(
    cluster: Any, until: Until
) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        daemon = start(cluster, 0, 1)
        snapshots.seal_step(arena, 1)
        until(lambda: durable_step(cluster.checkpoints) == 1 and not arena.busy())
        snapshots.seal_step(arena, 2, wanted=False)
    arm(cluster.failpoints, "store.mid_flush", where={"step": 2})
    assert end(daemon) == [-signal.SIGKILL]
    assert durable_step(cluster.checkpoints) == 1
    assert end(start(cluster, 0, 1)) == [0]
    assert durable_step(cluster.checkpoints) == 2


def test_a_second_sigterm_does_not_cut_the_last_write_short(cluster: Any, until: Until) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 1, wanted=False)
    arm(cluster.failpoints, "store.mid_flush", "sleep:1")
    daemon = start(cluster, 0, 1)
    daemon.process.send_signal(signal.SIGTERM)
    until(lambda: fired(cluster.failpoints))
    assert end(daemon) == [0]
    assert durable_step(cluster.checkpoints) == 1


def test_at_the_orderly_end_of_a_run_only_what_ranks_want_is_written(cluster: Any) -> None:
    """They may have refused a state on purpose, such as one after a spike."""
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 1)
        snapshots.seal_step(arena, 2, wanted=False)
    daemon = start(cluster, 0, 1)
    with Client(daemon.endpoint) as client:
        client.call(Drain(), Drained, timeout_s=20)
    assert daemon.process.wait(60) == 0
    assert durable_step(cluster.checkpoints) == 1


def test_on_a_full_disk_the_end_says_so_and_the_older_checkpoint_stays(
    cluster: Any, until: Until, tmp_path: Path
) -> None:
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        with snapshots.small_arena(cluster.shm_dir()) as arena:
            daemon = start(cluster, 0, 1, checkpoints=mount / "c")
            snapshots.seal_step(arena, 1)
            until(lambda: durable_step(mount / "c") == 1 and not arena.busy())
            snapshots.seal_step(arena, 2, wanted=False)
        (mount / "ballast").write_bytes(bytes(80_000))
        assert end(daemon) == [0]
        assert durable_step(mount / "c") == 1
        log = daemon.log.read_text()
        assert "No space left on device" in log
        assert "the newest snapshot in memory, of step 2, is not in a checkpoint" in log
    finally:
        subprocess.run(["umount", str(mount)], check=True)
