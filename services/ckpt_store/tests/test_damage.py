"""Flipped bytes, cut files, missing parts: found, named, and never handed to a trainer."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient, apply_retention
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import write_manifest, write_shard
from headway.ckpt_store.folder import CheckpointInfo, look, mark_generation, newest, open_checkpoint
from headway.ckpt_store.manifest import CHUNK_BYTES, step_dir_name
from headway.ckpt_store.retention import removable
from headway.ckpt_store.verify import read_shard, read_shard_into, verify
from headway.common.errors import CorruptError, HeadwayError
from headway.testkit import snapshots
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def save(
    root: Path, step: int, world_size: int = 1, generation: int = 0, num_floats: int = 500
) -> CheckpointInfo:
    for rank in range(world_size):
        write_shard(
            Files(), root, snapshots.small_snapshot(step, rank, world_size, generation, num_floats)
        )
    write_manifest(Files(), root / step_dir_name(step, generation))
    return open_checkpoint(root, step, generation)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x10
    path.write_bytes(raw)


def test_a_flipped_byte_names_file_and_chunk(tmp_path: Path) -> None:
    info = save(tmp_path, 5, num_floats=CHUNK_BYTES // 4 + 1000)
    flip(info.path / "rank-0.safetensors", 4096 + CHUNK_BYTES + 17)
    buffer = np.zeros(2 * CHUNK_BYTES + 30000, np.uint8)
    with pytest.raises(CorruptError, match=r"rank-0\.safetensors: chunk 1 "):
        read_shard_into(info, 0, buffer)
    assert "chunk 1" in verify(info)[0].message


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_bit_in_any_file_goes_unnoticed(tmp_path: Path, data: st.DataObject) -> None:
    info = save(tmp_path, 5, world_size=2)
    name = data.draw(st.sampled_from(sorted(path.name for path in info.path.iterdir())))
    raw = (info.path / name).read_bytes()
    at, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
    try:
        (info.path / name).write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
        with contextlib.suppress(CorruptError):
            assert verify(open_checkpoint(tmp_path, 5, 0)) != []
    finally:
        (info.path / name).write_bytes(raw)


def test_a_sound_shard_of_another_checkpoint_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    info, other = save(tmp_path, 5), save(tmp_path, 6)
    for name in ("rank-0.safetensors", "rank-0.json"):
        (info.path / name).write_bytes((other.path / name).read_bytes())
    with pytest.raises(CorruptError, match=r"rank-0\.json: its digest differs from the manifest"):
        read_shard(open_checkpoint(tmp_path, 5, 0), 0)


@pytest.mark.parametrize("name", ["rank-1.safetensors", "rank-1.json", "MANIFEST.json"])
def test_a_truncated_file_is_corrupt(tmp_path: Path, name: str) -> None:
    info = save(tmp_path, 5, world_size=2)
    raw = (info.path / name).read_bytes()
    (info.path / name).write_bytes(raw[:-20])
    with pytest.raises(CorruptError, match=name):
        read_shard(open_checkpoint(tmp_path, 5, 0), 1)


@pytest.mark.parametrize("name", ["rank-1.safetensors", "rank-1.json"])
def test_a_missing_file_is_corrupt_and_other_ranks_still_read(tmp_path: Path, name: str) -> None:
    info = save(tmp_path, 5, world_size=2)
    (info.path / name).unlink()
    with pytest.raises(CorruptError, match=f"{name}: it is missing"):
        read_shard(info, 1)
    assert [problem.path.name for problem in verify(info)] == ["rank-1.safetensors"]
    read_shard(info, 0)


def test_without_its_manifest_a_step_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (save(tmp_path, 9).path / "MANIFEST.json").unlink()
    info = newest(tmp_path)
    assert info is not None
    assert info.step == 5


def test_an_unreadable_manifest_falls_back_and_alone_it_is_an_error_never_a_fresh_start(
    tmp_path: Path,
) -> None:
    save(tmp_path, 5)
    (save(tmp_path, 9).path / "MANIFEST.json").write_bytes(b"{")
    info = newest(tmp_path)
    assert info is not None
    assert info.step == 5
    (info.path / "MANIFEST.json").write_bytes(b"{")
    with pytest.raises(CorruptError, match=r"MANIFEST\.json"):
        newest(tmp_path)


def test_an_empty_or_absent_folder_holds_nothing(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "absent") is None


def test_the_newest_step_wins_and_of_one_step_the_newest_generation(tmp_path: Path) -> None:
    for step, generation in ((10, 0), (20, 0), (20, 1), (15, 1)):
        save(tmp_path, step, generation=generation)
    info = newest(tmp_path)
    assert info is not None
    assert (info.step, info.generation) == (20, 1)
    older = newest(tmp_path, max_step=19)
    assert older is not None
    assert (older.step, older.generation) == (15, 1)
    assert newest(tmp_path, world_size=2) is None


def test_what_a_newer_generation_left_behind_does_not_count(tmp_path: Path) -> None:
    for step, generation in ((50, 0), (100, 0), (60, 1)):
        save(tmp_path, step, generation=generation)
    mark_generation(tmp_path, 1, 50)
    info = newest(tmp_path)
    assert info is not None
    assert (info.step, info.generation) == (60, 1)
    older = newest(tmp_path, max_step=59)
    assert older is not None
    assert (older.step, older.generation) == (50, 0)


def test_a_generation_number_used_twice_is_refused(tmp_path: Path) -> None:
    mark_generation(tmp_path, 1, 50)
    mark_generation(tmp_path, 1, 50)
    with pytest.raises(HeadwayError, match="restart from step 50, not 60"):
        mark_generation(tmp_path, 1, 60)


def test_retention_removes_nothing_while_the_newest_is_corrupt(tmp_path: Path) -> None:
    for step in range(1, 6):
        info = save(tmp_path, step)
    flip(info.path / "rank-0.safetensors", 5000)
    with pytest.raises(CorruptError, match="nothing was removed"):
        apply_retention(tmp_path, 2, deep=True)
    assert len(list(tmp_path.iterdir())) == 5


def test_retention_keeps_the_newest_and_the_marked(tmp_path: Path) -> None:
    for step in range(1, 7):
        info = save(tmp_path, step)
        if step == 2:
            (info.path / "KEEP").touch()
    removed = apply_retention(tmp_path, 2, deep=True)
    assert [path.name for path in removed] == [step_dir_name(step, 0) for step in (1, 3, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        step_dir_name(step, 0) for step in (2, 5, 6)
    ]


def fail_reads(monkeypatch: pytest.MonkeyPatch, part_of_path: str, code: int) -> None:
    """Reads of such files answer ``code``, as a disk with a bad sector or a
    stale NFS handle does."""
    real_preadv, real_read = os.preadv, Path.read_bytes

    def preadv(fd: int, *rest: Any) -> int:
        if part_of_path in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(code, os.strerror(code))
        return real_preadv(fd, *rest)

    def read_bytes(path: Path) -> bytes:
        if part_of_path in str(path):
            raise OSError(code, os.strerror(code))
        return real_read(path)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EBADMSG])
@pytest.mark.parametrize("name", ["rank-0.safetensors", "rank-0.json", "MANIFEST.json"])
def test_what_the_disk_cannot_read_counts_as_damaged_and_an_older_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    client = CheckpointClient(tmp_path)
    for step in (1, 2):
        client.save(step, {"step": step})
    fail_reads(monkeypatch, f"step-00000002.g0/{name}", code)
    assert CheckpointClient(tmp_path).restore() == (1, {"step": 1})
    with pytest.raises(CorruptError, match=rf"{name}.* cannot be read"):
        fail_reads(monkeypatch, name, code)
        CheckpointClient(tmp_path).restore()


def test_no_permission_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = CheckpointClient(tmp_path)
    for step in (1, 2):
        client.save(step, {"step": step})
    fail_reads(monkeypatch, "step-00000002.g0/rank-0.safetensors", errno.EACCES)
    with pytest.raises(PermissionError):
        CheckpointClient(tmp_path).restore()


def test_a_checkpoint_that_reads_well_again_counts_again_after_verify(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-00000002.g0" / "rank-0.damaged").write_text("it cannot be read")
    assert newest(tmp_path).step == 1  # type: ignore[union-attr]
    done = subprocess.run(
        [sys.executable, "-m", "headway.ckpt_store", "verify", str(tmp_path), "--all"],
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout
    assert newest(tmp_path).step == 2  # type: ignore[union-attr]


def test_a_damaged_checkpoint_is_neither_counted_nor_kept_for_good(tmp_path: Path) -> None:
    for step in range(1, 4):
        save(tmp_path, step)
    (tmp_path / "step-00000002.g0" / "rank-0.damaged").touch()
    assert removable(look(tmp_path), keep=2) == []
    save(tmp_path, 4)
    assert removable(look(tmp_path), keep=2) == [(1, 0), (2, 0)]
