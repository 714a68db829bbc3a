"""What is removed while it is read is listed again; what is missing for a moment is read again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store import choice, folder, reading, verify
from headway.ckpt_store.client import CheckpointClient, apply_retention, complete
from headway.ckpt_store.manifest import step_dir_name
from headway.common.errors import CorruptError, HeadwayError, InputError


def saved(checkpoints: Path, step: int) -> Path:
    with CheckpointClient(checkpoints) as client:
        client.restore()
        client.save(step, {"step": step})
    return checkpoints / step_dir_name(step, 0)


def before_each(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Act once, before ``os``, ``Path`` or a reader of files does ``name``."""
    module, _, attribute = name.rpartition(".")
    owner: Any = {"Path": Path, "os": os, "reading": reading, "verify": verify}[module]
    real = getattr(owner, attribute)
    todo = [act]

    def acting(*arguments: Any, **options: Any) -> Any:
        if todo:
            todo.pop()()
        return real(*arguments, **options)

    monkeypatch.setattr(owner, attribute, acting)


@pytest.mark.parametrize("name", ["Path.read_bytes", "verify.read_file", "os.preadv"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_checkpoint_that_is_removed_while_it_is_read_gives_way_to_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, num_ranks: int
) -> None:
    def save(step: int) -> Path:
        for rank in range(num_ranks):
            client = CheckpointClient(tmp_path, rank=rank, world_size=num_ranks)
            client.restore()
            client.save(step, {"step": step})
        return tmp_path / step_dir_name(step, 0)

    clients = [CheckpointClient(tmp_path, rank=r, world_size=num_ranks) for r in range(num_ranks)]
    for client in clients:
        client.save(1, {"step": 1})

    def replace() -> None:
        for client in clients:
            client.save(2, {"step": 2})
        shutil.rmtree(tmp_path / step_dir_name(1, 0))

    before_each(monkeypatch, name, replace)
    reader = CheckpointClient(tmp_path, world_size=num_ranks, read_only=True)
    found = reader.restore()
    if name != "os.preadv" or found != (1, {"step": 1}):  # an open file is read to its end
        assert found == (2, {"step": 2})


def test_a_listing_that_lost_a_step_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = saved(tmp_path, 1)
    real = folder.read_attempt

    def removed_first(entry: Path, *key: int) -> Any:
        if entry == old and old.exists():
            saved(tmp_path / "other", 2).rename(tmp_path / step_dir_name(2, 0))
            shutil.rmtree(old)
        return real(entry, *key)

    monkeypatch.setattr(folder, "read_attempt", removed_first)
    assert [info.step for info in complete(tmp_path)] == [2]


def test_a_checkpoint_that_vanishes_at_every_listing_is_an_error_and_never_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)
    monkeypatch.setattr(choice, "has_vanished", lambda _info: True)
    next(tmp_path.glob("*/rank-0.json")).unlink()
    with pytest.raises(HeadwayError, match="removed faster than they can be read"):
        CheckpointClient(tmp_path, read_only=True).restore()


def test_a_step_asked_for_by_number_that_is_removed_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, 1)
    before_each(monkeypatch, "verify.read_file", lambda: shutil.rmtree(path))
    with pytest.raises(InputError, match="was removed while it was read"):
        CheckpointClient(tmp_path, read_only=True).restore(1)


def test_retention_does_not_call_a_newest_checkpoint_damaged_that_another_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        path = saved(tmp_path, step)
    before_each(monkeypatch, "verify.read_file", lambda: shutil.rmtree(path))
    assert apply_retention(tmp_path, 1) == []


def test_a_part_that_is_missing_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path, 1)
    for name in ("rank-0.json", "rank-0.safetensors"):
        (path / name).rename(path / "hidden")
        pauses: list[float] = []

        def show(pause_s: float, name: str = name, pauses: list[float] = pauses) -> None:
            pauses.append(pause_s)
            (path / "hidden").rename(path / name)

        with monkeypatch.context() as patch:
            patch.setattr("headway.ckpt_store.reading.time.sleep", show)
            assert CheckpointClient(tmp_path, read_only=True).restore() == (1, {"step": 1})
        assert len(pauses) == 1


def test_a_part_that_stays_missing_is_damage(tmp_path: Path) -> None:
    (saved(tmp_path, 1) / "rank-0.safetensors").unlink()
    with pytest.raises(CorruptError, match=r"rank-0\.safetensors: it is missing"):
        CheckpointClient(tmp_path, read_only=True).restore()


def test_a_client_stays_with_its_folder_when_the_working_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home := tmp_path / "home").mkdir()
    (other := tmp_path / "other").mkdir()
    monkeypatch.chdir(home)
    client = CheckpointClient("checkpoints")
    client.save(1, "one")
    info = complete(Path("checkpoints"))[0]
    monkeypatch.chdir(other)
    client.save(2, "two")
    assert client.restore() == (2, "two")
    assert info.path == home / "checkpoints" / step_dir_name(1, 0)
    assert list(other.iterdir()) == []
    assert [info.step for info in complete(home / "checkpoints")] == [2, 1]
