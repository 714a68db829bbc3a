"""Power fails after any change to the file system: recovery finds the newest
commit or the one before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.config import StoreConfig
from headway.ckpt_store.files import Files
from headway.ckpt_store.flush import write_manifest, write_shard
from headway.ckpt_store.folder import complete, newest
from headway.ckpt_store.manifest import step_dir_name
from headway.ckpt_store.server import ServeOptions, Store
from headway.ckpt_store.verify import read_shard, verify
from headway.common.errors import CorruptError
from headway.testkit import snapshots

from services.ckpt_store.tests.crash_points import Fate, Op, RecordingFiles, replay

WORLD_SIZE = 2


def save(files: Files, root: Path, step: int) -> None:
    for rank in range(WORLD_SIZE):
        write_shard(files, root, snapshots.small_snapshot(step, rank, WORLD_SIZE, num_floats=600))
    write_manifest(files, root / step_dir_name(step, 0))


def record(
    root: Path, files_type: type[RecordingFiles]
) -> tuple[RecordingFiles, list[tuple[int, int]]]:
    """Two saves and the removal of the first; returns [(operations when the
    commit returned, step)]."""
    root.mkdir()
    files = files_type(root)
    checkpoints = root / "checkpoints"
    files.make_dir(checkpoints)
    commits = []
    for step in (10, 20):
        save(files, checkpoints, step)
        commits.append((len(files.ops), step))
    files.remove_tree(checkpoints / step_dir_name(10, 0))
    return files, commits


def survivor(checkpoints: Path) -> int:
    """Step of what recovery takes, -1 for none; fails unless every byte of it is right."""
    info = newest(checkpoints)
    if info is None:
        return -1
    assert verify(info) == []
    for rank in range(WORLD_SIZE):
        expected = snapshots.small_snapshot(info.step, rank, WORLD_SIZE, num_floats=600)
        data, extra = read_shard(info, rank)
        assert data.tobytes() == expected.data.tobytes()
        assert extra == expected.extra
    return info.step


def check_every_crash(
    tmp_path: Path,
    files: RecordingFiles,
    commits: list[tuple[int, int]],
    fate: Fate,
    kept: float,
    seed: int,
) -> None:
    for num_ops in range(len(files.ops) + 1):
        into = tmp_path / "crashed"
        into.mkdir()
        replay(files.ops, num_ops, into, fate=fate, kept_names=kept, seed=seed * 1000 + num_ops)
        durable = max((step for at, step in commits if at <= num_ops), default=-1)
        assert survivor(into / "checkpoints") >= durable, (
            f"after {num_ops}: {files.ops[:num_ops][-3:]}"
        )
        shutil.rmtree(into)


@pytest.mark.parametrize("fate", ["keep", "drop", "tear"])
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_after_a_crash_at_any_point_recovery_sees_the_newest_commit_or_the_one_before(
    tmp_path: Path, fate: Fate, kept: float
) -> None:
    files, commits = record(tmp_path / "real", RecordingFiles)
    assert survivor(tmp_path / "real" / "checkpoints") == 20
    check_every_crash(tmp_path, files, commits, fate, kept, seed=0)


@pytest.mark.parametrize("seed", range(8))
def test_any_mixture_of_lost_names_and_data_leaves_a_sound_checkpoint(
    tmp_path: Path, seed: int
) -> None:
    files, commits = record(tmp_path / "real", RecordingFiles)
    for fate in ("keep", "drop", "tear"):
        check_every_crash(tmp_path, files, commits, fate, 0.5, seed)


class NoFileSync(RecordingFiles):
    """Forgets that files were synced."""

    def note(self, kind: str, path: Path, target: Path | None = None, data: bytes = b"") -> None:  # type: ignore[override]
        if kind != "sync":
            super().note(kind, path, target, data)  # type: ignore[arg-type]


class NoDirSync(RecordingFiles):
    """Forgets that folders were synced."""

    def note(self, kind: str, path: Path, target: Path | None = None, data: bytes = b"") -> None:  # type: ignore[override]
        if kind != "sync_dir":
            super().note(kind, path, target, data)  # type: ignore[arg-type]


class DirectRemoval(RecordingFiles):
    """Removes file by file, without taking the folder out of sight first."""

    def remove_tree(self, path: Path) -> None:
        self._delete_tree(path)


@pytest.mark.parametrize("broken", [NoFileSync, NoDirSync])
def test_this_test_sees_a_missing_fsync(tmp_path: Path, broken: type[RecordingFiles]) -> None:
    files, commits = record(tmp_path / "real", broken)
    with pytest.raises((AssertionError, CorruptError)):
        for fate in ("keep", "drop", "tear"):
            for kept in (0.0, 1.0):
                check_every_crash(tmp_path, files, commits, fate, kept, 0)


def check_no_half_removed_one_is_listed(tmp_path: Path, files: RecordingFiles) -> None:
    for num_ops in range(len(files.ops) + 1):
        for kept in (0.0, 0.5, 1.0):
            into = tmp_path / f"crashed-{num_ops}-{kept}"
            into.mkdir()
            replay(files.ops, num_ops, into, kept_names=kept)
            for info in complete(into / "checkpoints"):
                assert verify(info) == []


def test_no_half_removed_checkpoint_is_ever_listed(tmp_path: Path) -> None:
    files, _ = record(tmp_path / "real", RecordingFiles)
    check_no_half_removed_one_is_listed(tmp_path, files)


def test_a_removal_file_by_file_would_be_seen(tmp_path: Path) -> None:
    files, _ = record(tmp_path / "real", DirectRemoval)
    with pytest.raises(AssertionError):
        check_no_half_removed_one_is_listed(tmp_path, files)


class StalledNeighbour(RecordingFiles):
    """A daemon that stalls before it syncs a step's folder: its names are there, not durable."""

    def sync_dir(self, path: Path) -> None:
        if not path.name.startswith("step-"):
            super().sync_dir(path)


def test_a_manifest_makes_the_names_of_other_nodes_durable_before_its_own(tmp_path: Path) -> None:
    root = tmp_path / "real"
    root.mkdir()
    files, neighbour = RecordingFiles(root, "n0"), StalledNeighbour(root, "n1")
    neighbour.ops = files.ops
    write_shard(
        files, root / "checkpoints", snapshots.small_snapshot(10, 0, WORLD_SIZE, num_floats=600)
    )
    write_shard(
        neighbour, root / "checkpoints", snapshots.small_snapshot(10, 1, WORLD_SIZE, num_floats=600)
    )
    write_manifest(files, root / "checkpoints" / step_dir_name(10, 0))
    for seed in range(20):
        check_every_crash(tmp_path, files, [(len(files.ops), 10)], "drop", 0.5, seed)


def test_after_any_crash_the_same_work_can_be_done_again(tmp_path: Path) -> None:
    files, _ = record(tmp_path / "real", RecordingFiles)
    for num_ops in range(0, len(files.ops) + 1, 3):
        into = tmp_path / f"crashed-{num_ops}"
        into.mkdir()
        replay(files.ops, num_ops, into, fate="tear", kept_names=0.5, seed=num_ops)
        save(Files(), into / "checkpoints", 20)
        assert survivor(into / "checkpoints") == 20


class RecordingClient(CheckpointClient):
    """A client whose changes are written down."""

    def __init__(self, files: RecordingFiles, target: Path) -> None:
        self.recording = files
        super().__init__(target)

    def _open_files(self, owner: str) -> Files:
        del owner
        return self.recording


def test_a_client_makes_the_names_durable_that_a_launcher_made(tmp_path: Path) -> None:
    root = tmp_path / "real"
    root.mkdir()
    files = RecordingFiles(root)
    for name in ("runs", "runs/demo", "runs/demo/checkpoints"):
        (root / name).mkdir()
        files.ops.append(Op("mkdir", name))
    RecordingClient(files, root / "runs" / "demo" / "checkpoints").save(1, {"w": 1})
    (tmp_path / "crashed").mkdir()
    replay(files.ops, len(files.ops), tmp_path / "crashed", kept_names=0.0)
    found = newest(tmp_path / "crashed" / "runs" / "demo" / "checkpoints")
    assert found is not None
    assert found.step == 1


def test_a_daemon_makes_them_durable_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    real = Files.sync_dir
    monkeypatch.setattr(
        Files, "sync_dir", lambda self, path: (synced.append(path), real(self, path))
    )
    checkpoints = tmp_path / "runs" / "demo" / "checkpoints"
    checkpoints.mkdir(parents=True)
    store = Store(ServeOptions("inproc://unused", tmp_path, checkpoints), StoreConfig())
    store.close()
    assert {checkpoints, *checkpoints.parents[:3]} <= set(synced)
