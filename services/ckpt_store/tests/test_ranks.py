"""Several ranks on one folder: parts of two starts of a job never make one checkpoint, and
all go back together."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store import incarnation, reading
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.files import Files, NewFile
from headway.ckpt_store.flush import write_manifest, write_shard
from headway.ckpt_store.folder import look
from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError
from headway.testkit import snapshots
from headway.testkit.checkpoint_ranks import ranks, restored, save_all


def flip(path: Path, at: int = 5000) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("first", [0, 1])
def test_a_part_of_an_earlier_start_never_completes_a_step_of_this_one(
    tmp_path: Path, first: int
) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    clients[1 - first].save(20, {"life": 1})  # killed before the other rank saved
    clients = ranks(tmp_path)
    assert restored(clients) == [(10, 1), (10, 1)]
    assert not clients[first].save(20, {"life": 2}).is_complete
    assert restored(ranks(tmp_path, read_only=True)) == [(10, 1), (10, 1)]
    assert clients[1 - first].save(20, {"life": 2}).is_complete
    assert restored(ranks(tmp_path)) == [(20, 2), (20, 2)]


def test_a_rank_that_saves_before_the_others_have_come_back_completes_nothing(
    tmp_path: Path,
) -> None:
    one, two = ranks(tmp_path)
    save_all([one, two], 10)
    one.save(20, {"life": 1})
    two = CheckpointClient(tmp_path, rank=1, world_size=2)  # rank 0 of this start is not there yet
    assert not two.save(20, {"life": 2}).is_complete
    one = CheckpointClient(tmp_path, rank=0, world_size=2)
    assert not one.save(20, {"life": 2}).is_complete
    assert restored(ranks(tmp_path, read_only=True)) == [(10, 1), (10, 1)]
    one.save(30, {"life": 2})
    assert two.save(30, {"life": 2}).is_complete


def test_a_process_of_an_earlier_start_that_still_lives_is_refused(tmp_path: Path) -> None:
    before = ranks(tmp_path)
    save_all(before, 10)
    save_all(ranks(tmp_path), 20)
    with pytest.raises(
        HeadwayError, match=rf"rank 1 of .* opened by another process .*{os.getpid()}"
    ):
        before[1].save(30, {"life": 1})


def second_process(folder: Path, *, and_then: str = "") -> subprocess.CompletedProcess[str]:
    script = (
        "import sys; from headway.ckpt_store.client import CheckpointClient\n"
        "CheckpointClient(sys.argv[1], rank=1, world_size=2).restore()\n" + and_then
    )
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_a_second_process_for_a_rank_that_lives_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    done = second_process(tmp_path)
    assert done.returncode != 0
    assert f"process {os.getpid()} saves rank 1" in done.stderr
    assert "read_only=True" in done.stderr
    save_all(clients, 20)
    assert restored(clients) == [(20, 1), (20, 1)]
    clients[1].close()
    assert second_process(tmp_path).returncode == 0  # its place is free


def on_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnation, "_host", lambda: "elsewhere another-boot pid:[1]")


def test_a_process_on_another_host_that_leaves_gives_the_place_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    with monkeypatch.context() as patch:
        on_another_host(patch)
        other = CheckpointClient(tmp_path, rank=1, world_size=2)
    with pytest.raises(HeadwayError, match=r"rank 1 of .* opened by another process .*elsewhere"):
        clients[1].save(20, {"life": 1})
    other.close()
    for step in (20, 30):  # the first may stay incomplete: the tokens changed between its parts
        save_all(clients, step)
    assert restored(clients) == [(30, 1), (30, 1)]


def test_a_stamp_never_vouches_for_tokens_that_came_after_the_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ranks(tmp_path)
    save_all(old, 10)
    real = incarnation.Incarnation._token
    new: list[CheckpointClient] = []

    def and_the_next_start_comes(self: incarnation.Incarnation, rank: int) -> str:
        if not new:
            new.extend(ranks(tmp_path))
        return real(self, rank)

    with monkeypatch.context() as patch:
        patch.setattr(incarnation.Incarnation, "_token", and_the_next_start_comes)
        patch.setattr(incarnation, "_SETTLED_NS", 1 << 62)
        old[1].save(20, {"life": 1})
    assert not new[0].save(20, {"life": 2}).is_complete
    assert new[1].save(20, {"life": 2}).is_complete
    assert restored(ranks(tmp_path, read_only=True)) == [(20, 2), (20, 2)]


def test_a_process_that_was_slow_does_not_replace_what_another_start_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = ranks(tmp_path)
    save_all(old, 10)
    real = NewFile.sync

    def slow(self: NewFile) -> None:
        real(self)
        if "safetensors" in self.path.name:
            monkeypatch.undo()
            new = ranks(tmp_path)
            save_all(new, 20, life=2)

    monkeypatch.setattr(NewFile, "sync", slow)
    assert not old[1].save(20, {"life": 1}).is_stored
    assert restored(ranks(tmp_path, read_only=True)) == [(20, 2), (20, 2)]


def test_a_step_done_again_with_equal_bits_is_completed_by_the_new_start_alone(
    tmp_path: Path,
) -> None:
    one, two = ranks(tmp_path)
    save_all([one, two], 10)
    two.save(20, {"same": 1})
    one, two = ranks(tmp_path)
    assert not one.save(20, {"same": 1}).is_complete
    assert two.save(20, {"same": 1}).is_complete


def test_a_reader_changes_nothing(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    for step in (10, 20):
        save_all(clients, step)
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    reader = CheckpointClient(tmp_path, rank=1, world_size=2, read_only=True)
    assert reader.restore(10) is not None
    with pytest.raises(InputError, match="only reads"):
        reader.save(30, {})
    assert sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before
    save_all(clients, 30)
    assert look(tmp_path).attempts[-1].is_complete


def test_with_a_damaged_shard_no_two_ranks_restore_different_steps(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    for step in (10, 20):
        save_all(clients, step)
    flip(tmp_path / "step-00000020.g0" / "rank-1.safetensors")
    clients = ranks(tmp_path)
    assert clients[0].restore()[0] == 20  # type: ignore[index]
    with pytest.raises(CorruptError, match=r"rank-1\.safetensors: chunk 0.*restart all ranks"):
        clients[1].restore()
    assert restored(ranks(tmp_path)) == [(10, 1), (10, 1)]


@pytest.mark.parametrize("name", ["rank-1.json", "rank-0.json", "MANIFEST.json"])
def test_damage_that_every_rank_can_see_is_passed_over_by_all_at_once(
    tmp_path: Path, name: str
) -> None:
    clients = ranks(tmp_path)
    for step in (10, 20):
        save_all(clients, step)
    flip(tmp_path / "step-00000020.g0" / name, at=5)
    assert restored(ranks(tmp_path)) == [(10, 1), (10, 1)]


def all_at_once(clients: list[CheckpointClient]) -> list[Any]:
    """Restore on threads that agree by a barrier."""
    found: list[Any] = [None] * len(clients)
    numbers = [0] * len(clients)
    barrier = threading.Barrier(len(clients))

    def agree_as(rank: int) -> Callable[[int], int]:
        def agree(value: int) -> int:
            numbers[rank] = value
            barrier.wait(30)
            lowest = min(numbers)
            barrier.wait(30)
            return lowest

        return agree

    def restore(rank: int) -> None:
        try:
            found[rank] = clients[rank].restore(agree=agree_as(rank))
        except HeadwayError as error:
            found[rank] = error

    threads = [threading.Thread(target=restore, args=(rank,)) for rank in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_ranks_that_agree_go_back_together_past_damage_of_any_of_them(tmp_path: Path) -> None:
    clients = ranks(tmp_path, 3)
    for step in (10, 20, 30):
        save_all(clients, step)
    flip(tmp_path / "step-00000030.g0" / "rank-1.safetensors")
    flip(tmp_path / "step-00000020.g0" / "rank-2.safetensors")
    assert [one[0] for one in all_at_once(ranks(tmp_path, 3))] == [10, 10, 10]
    flip(tmp_path / "step-00000010.g0" / "rank-0.safetensors")
    assert all(isinstance(one, CorruptError) for one in all_at_once(ranks(tmp_path, 3)))
    assert all_at_once(ranks(tmp_path / "empty", 3)) == [None, None, None]


def test_ranks_that_went_back_save_into_one_new_generation(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    for step in (10, 20):
        save_all(clients, step)
    clients = ranks(tmp_path)
    for client in clients:
        client.restore(10)
    save_all(clients, 20, life=2)
    assert restored(ranks(tmp_path)) == [(20, 2), (20, 2)]


def test_a_checkpoint_of_another_program_is_not_noted_as_damaged(tmp_path: Path) -> None:
    for rank in range(2):
        write_shard(Files(), tmp_path, snapshots.small_snapshot(5, rank, 2))
    write_manifest(Files(), tmp_path / "step-00000005.g0")
    for client in ranks(tmp_path):
        with pytest.raises(InputError, match="saved by CheckpointClient"):
            client.restore()
    assert list(tmp_path.glob("*/*.damaged")) == []


def test_a_checkpoint_that_one_rank_could_not_read_for_a_while_is_taken_again_if_it_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_all(ranks(tmp_path), 10)
    monkeypatch.setattr(reading, "PAUSES_S", ())

    def bad(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    clients = ranks(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", bad)
        with pytest.raises(CorruptError, match="cannot be read"):
            clients[1].restore()
    for client in ranks(tmp_path):
        with pytest.raises(CorruptError, match=r"verify --all|reads well again"):
            client.restore()
    assert restored(ranks(tmp_path)) == [(10, 1), (10, 1)]


def test_a_read_that_fails_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        CheckpointClient(tmp_path).save(step, {"life": 1})
    monkeypatch.setattr(reading, "PAUSES_S", (0.0,))
    real, failures = os.preadv, [errno.ESTALE]

    def once(fd: int, *rest: Any) -> int:
        if failures:
            raise OSError(failures.pop(), "Stale file handle")
        return real(fd, *rest)

    monkeypatch.setattr(os, "preadv", once)
    assert CheckpointClient(tmp_path).restore() == (2, {"life": 1})


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE])
def test_trouble_that_says_nothing_about_the_bytes_passes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    clients = ranks(tmp_path)
    for step in (10, 20):
        save_all(clients, step)
    real = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "rank-0.json" and "20" in path.parent.name:
            raise OSError(code, os.strerror(code))
        return real(path)

    clients = ranks(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(OSError, match=os.strerror(code)):
        clients[1].restore()


def test_wait_is_for_all_ranks(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    clients[0].save(10, {"life": 1})
    with pytest.raises(DeadlineError, match="step 10 is not complete"):
        clients[0].wait(10, timeout_s=0.2)
    clients[1].save(10, {"life": 1})
    clients[0].wait(10, timeout_s=30)


@pytest.mark.parametrize("name", ["rank-0.json", "MANIFEST.json"])
def test_what_only_one_rank_cannot_read_is_refused_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    clients = ranks(tmp_path)
    for step in (10, 20):
        save_all(clients, step)
    real = Path.read_bytes

    def bad(path: Path) -> bytes:
        if path.name == name and "20" in path.parent.name:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    clients = ranks(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", bad)
        with pytest.raises(CorruptError, match=rf"{name}.* cannot be read.*restart all ranks"):
            clients[1].restore()
    assert restored(ranks(tmp_path)) == [(10, 1), (10, 1)]  # all of them, after a restart
