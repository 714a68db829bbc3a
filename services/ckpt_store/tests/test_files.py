"""The file layer against real files, odd sizes, full disks and failing fsyncs."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.ckpt_store import files as files_module
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.config import StoreConfig
from headway.ckpt_store.disk import Disk, drop_parts
from headway.ckpt_store.events import FlushSlot, FolderSeen, JobDone, JobFailed, Slot
from headway.ckpt_store.files import Files, NewFile, is_no_space
from headway.ckpt_store.flush import write_manifest, write_shard
from headway.ckpt_store.folder import newest
from headway.ckpt_store.manifest import step_dir_name
from headway.ckpt_store.upkeep import remove_leftovers
from headway.testkit import snapshots
from hypothesis import given, settings
from hypothesis import strategies as st

from services.ckpt_store.tests.crash_points import Op, RecordingFiles, replay


@given(pieces=st.lists(st.tuples(st.integers(0, 20000), st.booleans()), max_size=6))
@settings(max_examples=60)
def test_what_is_written_is_what_was_given_whatever_sizes_and_alignments(
    pieces: list[tuple[int, bool]],
) -> None:
    expected, given_pieces = b"", []
    for number, (length, is_aligned) in enumerate(pieces):
        memory = mmap.mmap(-1, 3 * 4096 * 2)  # page aligned
        start = 0 if is_aligned else 1
        piece = memoryview(memory)[start : start + length]
        piece[:] = np.random.default_rng(number).bytes(length)
        given_pieces.append(piece)
        expected += bytes(piece)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f"
        file = Files().create(path, len(expected))
        for piece in given_pieces:
            file.write(piece)
        file.sync()
        file.close()
        assert path.read_bytes() == expected


def test_whole_pages_from_page_aligned_memory_go_past_the_page_cache(tmp_path: Path) -> None:
    file = Files().create(tmp_path / "f", 8192)
    try:
        file.write(memoryview(mmap.mmap(-1, 4096)))
        if not file._direct:
            pytest.skip("this file system has no O_DIRECT")
        file.write(b"tail")
        assert not file._direct
    finally:
        file.close()


def test_a_full_disk_strikes_before_any_byte_and_leaves_no_file(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files_module, "allocate", full)
    monkeypatch.setattr(os, "write", lambda *_: pytest.fail("a byte was written"))
    with pytest.raises(OSError, match="No space") as caught:
        write_shard(Files(), tmp_path, snapshots.small_snapshot(1))
    assert is_no_space(caught.value)
    assert list((tmp_path / step_dir_name(1, 0)).iterdir()) == []


def test_a_failed_fsync_is_final_the_file_goes_and_is_not_synced_again(
    tmp_path: Path, monkeypatch: Any
) -> None:
    synced = []

    def fail_on_files(fd: int) -> None:
        if os.path.isfile(f"/proc/self/fd/{fd}"):  # noqa: PTH113
            synced.append(fd)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail_on_files)
    with pytest.raises(OSError, match="Input/output"):
        write_shard(Files(), tmp_path, snapshots.small_snapshot(1))
    assert len(synced) == 1
    assert list((tmp_path / step_dir_name(1, 0)).iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: Any) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: max(1, len(data) // 2)]))
    write_shard(Files(), tmp_path, snapshots.small_snapshot(1))
    monkeypatch.undo()
    write_manifest(Files(), tmp_path / step_dir_name(1, 0))
    assert newest(tmp_path) is not None


def test_a_file_system_that_refuses_direct_writes_is_served_through_the_page_cache(
    tmp_path: Path, monkeypatch: Any
) -> None:
    real_open, real_write = os.open, os.write

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    write_shard(Files(), tmp_path / "open", snapshots.small_snapshot(1))
    monkeypatch.undo()
    refused = []

    def refuse_first(fd: int, data: Any) -> int:
        if not refused:
            refused.append(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", refuse_first)
    write_shard(Files(), tmp_path / "write", snapshots.small_snapshot(1))
    monkeypatch.undo()
    for name in ("open", "write"):
        write_manifest(Files(), tmp_path / name / step_dir_name(1, 0))
        info = newest(tmp_path / name)
        assert info is not None


def test_leftovers_of_the_same_owner_go_and_those_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / step_dir_name(1, 0)
    folder.mkdir()
    mine, theirs = folder / ".rank-0.json.n0.tmp", folder / ".rank-1.json.n1.tmp"
    for path in (mine, theirs):
        path.write_bytes(b"half")
    remove_leftovers(Files("n0"), tmp_path)
    assert not mine.exists()
    assert theirs.exists()


def test_parts_of_a_complete_or_completable_step_are_never_dropped(tmp_path: Path) -> None:
    write_shard(Files(), tmp_path, snapshots.small_snapshot(1, 0, 2))
    write_shard(Files(), tmp_path, snapshots.small_snapshot(2, 0, 1))
    write_shard(Files(), tmp_path, snapshots.small_snapshot(3, 0, 1))
    write_manifest(Files(), tmp_path / step_dir_name(3, 0))
    for step in (1, 2, 3):
        drop_parts(Files(), tmp_path, (step, 0), (0,))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        step_dir_name(2, 0),
        step_dir_name(3, 0),
    ]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_on_a_full_tmpfs_the_flush_fails_cleanly_and_the_disk_thread_goes_on(
    tiny_disk: Path, until: Any
) -> None:
    events: list[Any] = []
    disk = Disk(tiny_disk, Files(), StoreConfig(), events.append)

    def until_seen(condition: Callable[[], bool]) -> None:
        until(lambda: disk.thread.run_callbacks() or condition())

    def flush(num_floats: int, step: int) -> Any:
        job = FlushSlot(Slot(step, 0, 0, step))
        disk.submit(job, snapshots.small_snapshot(step, num_floats=num_floats))
        until_seen(lambda: any(getattr(e, "job", None) == job for e in events))
        return next(e for e in events if getattr(e, "job", None) == job)

    try:
        free = os.statvfs(tiny_disk).f_bfree
        failed = flush(200_000, 1)
        assert isinstance(failed, JobFailed)
        assert failed.is_no_space
        assert "free space" in failed.remedy
        until(lambda: os.statvfs(tiny_disk).f_bfree >= free - 1)  # the empty folder may take a page
        assert isinstance(flush(3000, 2), JobDone)
        until_seen(lambda: isinstance(events[-1], FolderSeen))
    finally:
        assert disk.close()


def test_a_file_system_without_fallocate_is_written_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoFallocate:
        @staticmethod
        def fallocate(*_: object) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    def emulated(*_: object) -> None:
        pytest.fail("glibc would write into every page")

    monkeypatch.setattr(files_module, "_libc", NoFallocate)
    monkeypatch.setattr(os, "posix_fallocate", emulated)
    write_shard(Files(), tmp_path, snapshots.small_snapshot(1))
    write_manifest(Files(), tmp_path / step_dir_name(1, 0))
    assert newest(tmp_path) is not None


def test_allocation_reserves_room_and_says_when_there_is_none(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        files_module.allocate(file.fileno(), 1 << 20)
        assert os.fstat(file.fileno()).st_blocks * 512 >= 1 << 20
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            files_module.allocate(fd, 1 << 20)
    finally:
        os.close(fd)


def test_the_names_above_a_folder_made_by_somebody_else_are_durable_once_it_is_used(
    tmp_path: Path,
) -> None:
    root = tmp_path / "real"
    root.mkdir()
    files = RecordingFiles(root)
    for name in ("runs", "runs/demo", "runs/demo/checkpoints"):  # a launcher made them, unsynced
        (root / name).mkdir()
        files.ops.append(Op("mkdir", name))
    checkpoints = root / "runs" / "demo" / "checkpoints"
    files.settle_dir(checkpoints)
    write_shard(files, checkpoints, snapshots.small_snapshot(1))
    write_manifest(files, checkpoints / step_dir_name(1, 0))
    (tmp_path / "crashed").mkdir()
    replay(files.ops, len(files.ops), tmp_path / "crashed", kept_names=0.0)
    assert newest(tmp_path / "crashed" / "runs" / "demo" / "checkpoints") is not None


@pytest.mark.parametrize("times", [1, 2])
def test_the_client_writes_past_the_page_cache_to_the_last_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    dropped: list[tuple[str, int]] = []
    real = NewFile._drop_direct

    def drop(file: NewFile) -> None:
        dropped.append((file.path.name, file.offset))
        real(file)

    client = CheckpointClient(tmp_path)
    for step in range(times):
        monkeypatch.setattr(NewFile, "_drop_direct", drop)
        client.save(step, {"w": np.zeros(24 << 18, np.float32)})  # 24 MiB
    assert [at for name, at in dropped if "safetensors" in name] == []


def test_removing_a_folder_that_goes_meanwhile_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000001.g0"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").touch()

    class Raced(Files):
        def remove(self, path: Path) -> None:
            super().remove(path)
            super().remove(path)  # another process was faster

    Raced().remove_tree(folder)
    Raced().remove_tree(folder)
    assert list(tmp_path.iterdir()) == []
