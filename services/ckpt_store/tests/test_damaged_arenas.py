"""Damaged memory never becomes a checkpoint, and keeps neither the daemon nor the
other ranks waiting."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.ckpt_store.arenas import Arenas
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import (
    DamagedSnapshotError,
    StaleSnapshotError,
    write_manifest,
    write_shard,
)
from headway.ckpt_store.folder import newest
from headway.ckpt_store.manifest import CHUNK_BYTES, step_dir_name
from headway.ckpt_store.verify import verify
from headway.common.node import arena_format
from headway.common.node.arena import Arena
from headway.common.wire.messages.ckpt_store import CheckpointComplete, StoreTrouble
from headway.common.wire.messages.service import ServiceBeat
from headway.common.wire.server import Server
from headway.testkit import snapshots

Until = Callable[..., None]


def flip(arena: Arena, step: int) -> int:
    """Flip a bit in the data of ``step``, and return the slot."""
    (info,) = (info for info in arena.sealed() if info.step == step)
    at = arena._data_start(info.index) + arena.slot_bytes // 3
    with arena.path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes([os.pread(file.fileno(), 1, at)[0] ^ 0x20]), at)
    return info.index


def sealed_snapshot(folder: Path, num_floats: int = 3000) -> Any:
    """What the daemon flushes: a snapshot that lies in an arena."""
    arena = snapshots.small_arena(folder, num_floats=num_floats)
    snapshots.seal_step(arena, 4)
    arenas = Arenas(folder, snapshots.RUN_ID)
    arenas.look(keep_mapped=False)
    (slot,) = arenas.slots()
    return arena, arenas.snapshot(slot)


def test_the_pieces_of_a_blob_have_the_digests_that_the_arena_took(tmp_path: Path) -> None:
    num_floats = CHUNK_BYTES // 4 + 500  # three chunks
    _, snapshot = sealed_snapshot(tmp_path, num_floats)
    assert snapshot.digest is not None
    part = write_shard(Files(), tmp_path / "c", snapshot)
    assert len(part.chunks) == 3
    write_manifest(Files(), tmp_path / "c" / step_dir_name(4, 0))
    info = newest(tmp_path / "c")
    assert info is not None and verify(info) == []


@pytest.mark.parametrize("what", ["data", "extra"])
def test_a_damaged_snapshot_is_named_and_leaves_nothing_on_the_disk(
    tmp_path: Path, what: str
) -> None:
    arena, snapshot = sealed_snapshot(tmp_path)
    slot = 0
    if what == "data":
        slot = flip(arena, 4)
    else:
        snapshot = replace(snapshot, extra=b"another 4")
    with pytest.raises(DamagedSnapshotError) as error:
        write_shard(Files(), tmp_path / "c", snapshot)
    assert f"step 4, rank 0 in slot {slot} of {arena.path}" in error.value.message
    assert list((tmp_path / "c" / step_dir_name(4, 0)).iterdir()) == []


def test_a_snapshot_that_was_overwritten_meanwhile_is_not_called_damaged(tmp_path: Path) -> None:
    arena, snapshot = sealed_snapshot(tmp_path)
    flip(arena, 4)
    arena.invalidate_newer(3)
    with pytest.raises(StaleSnapshotError):
        write_shard(Files(), tmp_path / "c", snapshot)


def test_damage_after_the_part_was_written_costs_a_complete_checkpoint_nothing(
    tmp_path: Path,
) -> None:
    """The daemon died between its last rename and the release."""
    arena, snapshot = sealed_snapshot(tmp_path)
    write_shard(Files(), tmp_path / "c", snapshot)
    flip(arena, 4)
    with pytest.raises(DamagedSnapshotError):
        write_shard(Files(), tmp_path / "c", snapshot)
    write_manifest(Files(), tmp_path / "c" / step_dir_name(4, 0))
    info = newest(tmp_path / "c")
    assert info is not None and verify(info) == []


class Notes:
    """An executor that keeps what stores send it."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(
            f"ipc://{folder}/executor.sock",
            {
                kind: lambda note, _: self.all.append(note)
                for kind in (ServiceBeat, CheckpointComplete, StoreTrouble)
            },
        )
        self.all: list[Any] = []

    def trouble(self) -> list[StoreTrouble]:
        self.server.handle_ready()
        return [note for note in self.all if isinstance(note, StoreTrouble)]


@pytest.fixture
def notes(cluster: Any) -> Iterator[Notes]:
    made = Notes(cluster.shm_root)
    yield made
    made.server.close()


def test_the_store_reports_rank_file_and_step_and_the_other_rank_does_not_wait(
    cluster: Any, until: Until, notes: Notes
) -> None:
    with (
        snapshots.small_arena(cluster.shm_dir(0), 0, 2) as one,
        snapshots.small_arena(cluster.shm_dir(1), 1, 2) as two,
    ):
        cluster.start(0)
        cluster.start(1, "--executor", notes.server.endpoint)
        snapshots.seal_step(two, 0, commit=False)
        flip(two, 0)
        snapshots.seal_step(one, 0)
        until(lambda: not one.busy())
        two.commit(0)
        until(lambda: notes.trouble())
        (trouble,) = notes.trouble()
        assert (trouble.kind, trouble.step) == ("flush_failed", 0)
        assert "rank 1" in trouble.message and str(two.path) in trouble.message
        until(lambda: not two.busy())
        until(lambda: not list(cluster.checkpoints.glob("*/rank-0.*")), 60)
        for arena in (one, two):
            snapshots.seal_step(arena, 1)
        until(lambda: (info := newest(cluster.checkpoints)) is not None and info.step == 1)
        assert verify(info := newest(cluster.checkpoints)) == [] and info is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["header", "counters", "cut", "emptied", "pipe"])
def test_one_damaged_file_keeps_the_daemon_from_no_other_arena(cluster: Any, damage: str) -> None:
    folder = cluster.shm_dir()
    with snapshots.small_arena(folder, 0) as arena, snapshots.small_arena(folder, 1) as other:
        snapshots.seal_step(other, 0)
        arenas = Arenas(folder, snapshots.RUN_ID)
        arenas.look(keep_mapped=False)
        assert len(arenas.slots()) == 1
        with other.path.open("r+b", buffering=0) as file:
            match damage:
                case "header":
                    os.pwrite(file.fileno(), b"\xff", 0)
                case "counters":
                    os.pwrite(file.fileno(), b"\xff" * 8, 8 * arena_format.COMMITTED)
                case "cut" | "emptied":
                    os.truncate(file.fileno(), 5000 if damage == "cut" else 0)
                case _:
                    other.path.unlink()
                    os.mkfifo(other.path)
        snapshots.seal_step(arena, 0)
        for _ in range(3):
            ranks, wanted = arenas.look(keep_mapped=False), arenas.slots()
            assert 0 in ranks and 0 in {slot.rank for slot in wanted}
        assert 0 in arenas.committed()
        arenas.close()


def test_a_wanted_slot_with_a_damaged_header_is_not_flushed(cluster: Any) -> None:
    with snapshots.small_arena(cluster.shm_dir()) as arena:
        snapshots.seal_step(arena, 0)
        arenas = Arenas(cluster.shm_dir(), snapshots.RUN_ID)
        word = arena_format.slot_word(0) + arena_format.GENERATION
        with arena.path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"\x05", 8 * word)
        assert arenas.look(keep_mapped=False) == {0} and arenas.slots() == ()
        arenas.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_a_library_save_replaces_a_damaged_arena(cluster: Any, until: Until, is_open: bool) -> None:
    daemon = cluster.start()
    daemon.status()
    state = {"w": np.arange(1000.0)}
    client = CheckpointClient(daemon.endpoint)
    client.save(1, state)
    client.wait(1, 30)
    if not is_open:
        client.close()
        client = CheckpointClient(daemon.endpoint)
    (path,) = cluster.shm_dir().glob("arena-*.bin")
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"\xff", 0)
    client.save(2, state)
    client.wait(2, 30)
    client.close()
    until(lambda: (info := newest(cluster.checkpoints)) is not None and info.step == 2)
