"""Whatever happens to a job and its disks: all ranks restore one step of one start of
it, or a named refusal."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.ckpt_store.tests.checkpoint_histories import Disk, History

BLOCKS, SEEDS = 20, 25
LEAST = {"restored": 15, "complete": 15, "refused": 3, "no_room": 5, "killed": 5}


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> list[Disk]:
    """Reads fail where the disk of the rank that reads is unreadable; fsync is
    left to the crash tests."""
    current = [Disk()]
    real, real_read = os.preadv, Path.read_bytes

    def preadv(fd: int, *rest: Any) -> int:
        if current[0].is_unreadable:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, *rest)

    def read_bytes(path: Path) -> bytes:
        if current[0].is_unreadable and path.suffix == ".json":
            raise OSError(errno.ESTALE, "Stale file handle")
        return real_read(path)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr("headway.ckpt_store.reading.PAUSES_S", ())
    return current


@pytest.mark.parametrize("block", range(BLOCKS))
def test_all_ranks_restore_one_step_of_one_start_whatever_happened(
    tmp_path: Path, reading: list[Disk], block: int
) -> None:
    happened: Counter[str] = Counter()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        folder = tmp_path / str(seed)
        try:
            happened.update(History(folder, seed, reading).run())
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(folder, ignore_errors=True)
    few = {what: count for what, count in happened.items() if count < LEAST[what]}
    assert not few, f"these {SEEDS} histories show too little: {happened}"
