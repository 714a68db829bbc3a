"""A disk with room for one checkpoint more than are kept: after a kill at any point of a save, the
next start saves every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.files import Files, NewFile
from headway.ckpt_store.folder import look
from headway.ckpt_store.incarnation import Holder

from services.ckpt_store.tests.checkpoint_histories import Disk, DiskClient, DiskFiles, KilledError

KEEP = 1
STATE_BYTES = 1 << 16
ROOM = (KEEP + 1) * (STATE_BYTES + 3 * 4096)


class SmallDiskFiles(DiskFiles):
    """Files on a disk with ``ROOM`` bytes for blobs."""

    def __init__(self, owner: str, disk: Disk, root: Path) -> None:
        super().__init__(owner, disk)
        self._root = root

    def create(self, path: Path, nbytes: int) -> NewFile:
        used = sum(file.stat().st_size for file in self._root.rglob("*safetensors*"))
        self.disk.is_full = used + nbytes > ROOM
        return super().create(path, nbytes)


class SmallDiskClient(DiskClient):
    def _open_files(self, owner: str) -> Files:
        return SmallDiskFiles(owner, self.disk, self.checkpoints)


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(STATE_BYTES, step, np.uint8)}


def killed_after(folder: Path, changes: int, num_ranks: int) -> bool:
    """Save a step, then be killed in the next after so many changes; False if it came through."""
    disks = [Disk() for _ in range(num_ranks)]
    clients = opened(folder, disks)
    for client in clients:
        assert client.save(10, state(10)).is_stored
    disks[-1].dies_after = changes
    try:
        for client in clients:
            client.save(20, state(20))
    except KilledError:
        return True
    return False


def opened(folder: Path, disks: list[Disk]) -> list[SmallDiskClient]:
    size = len(disks)
    return [
        SmallDiskClient(disk, folder, rank=rank, world_size=size, keep=KEEP)
        for rank, disk in enumerate(disks)
    ]


@pytest.mark.parametrize("next_step", [20, 23])
@pytest.mark.parametrize("restores", [True, False])
def test_the_next_start_saves_whatever_the_kill_point(
    tmp_path: Path, next_step: int, restores: bool
) -> None:
    changes = 0
    while killed_after(folder := tmp_path / str(changes), changes, 1):
        for claim in folder.glob(".ranks/*"):
            claim.unlink()  # its process is dead
        client = opened(folder, [Disk()])[0]
        if restores:
            found = client.restore()
            assert found is not None
            assert found[0] in (10, 20)
        for step in (next_step, next_step + 10, next_step + 20):
            # step 20 may have become complete; then it is as it was
            saved = client.save(step, state(step))
            assert saved.is_complete, f"killed after {changes} changes: {saved.problem}"
        left = [a.step for a in look(folder).attempts]
        assert left == [next_step + 20], f"killed after {changes} changes: {left}"
        assert not list(folder.rglob(".*.tmp"))
        changes += 1
    assert changes > 8  # every change of a save and of the removal after it


def test_a_rank_clears_its_own_draft_and_leaves_that_of_another_alone(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000020.g0"
    folder.mkdir()
    drafts = [folder / f".rank-{rank}.safetensors.r{rank}.tmp" for rank in range(3)]
    for draft in drafts:
        draft.write_bytes(b"x")
    CheckpointClient(tmp_path, rank=1, world_size=2)
    assert [draft.exists() for draft in drafts] == [True, False, True]
    client = CheckpointClient(tmp_path, rank=0, world_size=2)
    assert [draft.exists() for draft in drafts] == [False, False, True]
    client.save(30, {"w": 1})  # clears also for the ranks of a larger job
    assert not folder.exists()


def test_a_client_on_another_host_leaves_the_parts_of_a_live_job_alone(tmp_path: Path) -> None:
    writer = CheckpointClient(tmp_path)
    claim = tmp_path / ".ranks" / "rank-0"
    holder = msgspec.json.decode(claim.read_bytes(), type=Holder)
    claim.write_bytes(msgspec.json.encode(msgspec.structs.replace(holder, host="elsewhere")))
    folder = tmp_path / "step-00000020.g0"
    folder.mkdir()
    drafts = [folder / f".rank-{rank}.safetensors.r{rank}.tmp" for rank in range(2)]
    drafts.append(folder / "rank-0.safetensors")
    for draft in drafts:
        draft.write_bytes(b"x")
    CheckpointClient(tmp_path)
    assert all(draft.exists() for draft in drafts)
    writer.close()


def test_a_second_client_of_a_process_leaves_the_draft_of_the_first_alone(tmp_path: Path) -> None:
    first = CheckpointClient(tmp_path)
    folder = tmp_path / "step-00000020.g0"
    folder.mkdir()
    draft = folder / ".rank-0.safetensors.r0.tmp"
    draft.write_bytes(b"x")
    CheckpointClient(tmp_path)
    assert draft.exists()
    first.close()
