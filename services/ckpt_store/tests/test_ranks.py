"""Several ranks on one folder: parts of two starts of a job never make one checkpoint, and all go back together."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headway.ckpt_store.client import CheckpointClient, apply_retention
from headway.ckpt_store.files import Files
from headway.ckpt_store.folder import look
from headway.common.errors import CorruptError, DeadlineError, HeadwayError, InputError


def ranks(folder: Path, world_size: int = 2, **options: Any) -> list[CheckpointClient]:
    return [
        CheckpointClient(folder, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def save_all(clients: list[CheckpointClient], step: int, life: int = 1) -> None:
    for client in clients:
        client.save(step, {"w": np.full(4000, float(step)), "life": life})


def restored(clients: list[CheckpointClient]) -> list[tuple[int, int]]:
    found = [client.restore() for client in clients]
    return [(one[0], one[1]["life"]) for one in found if one is not None]


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


def test_a_process_that_came_and_went_does_not_stop_the_job(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    script = (
        "import sys; from headway.ckpt_store.client import CheckpointClient\n"
        "CheckpointClient(sys.argv[1], rank=1, world_size=2).restore()"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    save_all(clients, 20)  # may stay incomplete: rank 0 had seen the other's token
    save_all(clients, 30)
    assert restored(ranks(tmp_path)) == [(30, 1), (30, 1)]


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


def test_ranks_that_end_their_save_together_remove_old_steps_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ranks(tmp_path)
    for step in range(3):
        save_all(clients, step)
    barrier = threading.Barrier(2)
    real = Files.remove_tree

    def together(self: Files, path: Path) -> None:
        barrier.wait(30)
        real(self, path)

    monkeypatch.setattr(Files, "remove_tree", together)
    errors: list[BaseException] = []

    def retain() -> None:
        try:
            apply_retention(tmp_path, 1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=retain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [a.step for a in look(tmp_path).attempts] == [2]


def test_two_processes_on_one_folder_save_and_retain_for_a_while(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np\n"
        "from headway.ckpt_store.client import CheckpointClient\n"
        "c = CheckpointClient(sys.argv[1], rank=int(sys.argv[2]), world_size=2, keep=2)\n"
        "print('open', flush=True); sys.stdin.readline()\n"
        "for step in range(40):\n"
        "    c.save(step, {'w': np.full(1000, float(step))})\n"
        "    print(step, flush=True); sys.stdin.readline()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for _ in range(41):  # in step, as the collectives of a training job keep them
        assert all(process.stdout.readline() for process in processes)  # type: ignore[union-attr]
        for process in processes:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    assert [a.step for a in look(tmp_path).attempts] == [38, 39]


def test_a_failed_removal_of_old_checkpoints_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = CheckpointClient(tmp_path, keep=1)
    client.save(1, 1)

    def broken(_files: Files, _path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Files, "remove_tree", broken)
    saved = client.save(2, 2)
    assert saved.is_stored
    assert saved.is_complete
    assert "Input/output error" in saved.problem
    monkeypatch.undo()
    client.save(3, 3)
    assert [a.step for a in look(tmp_path).attempts] == [3]


def test_a_full_disk_costs_the_checkpoint_and_the_other_rank_gives_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    clients[0].save(20, {"life": 1})

    def full(_files: Files, _path: Path, _nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(clients[1]._files, "create", full.__get__(clients[1]._files))
        saved = clients[1].save(20, {"life": 1})
    assert not saved.is_stored
    assert "no room for step 20" in saved.problem
    (tmp_path / "step-00000020.g0" / "rank-1.gave-up").touch()  # this disk took no note either
    save_all(clients, 30)
    assert [(a.step, a.is_complete) for a in look(tmp_path).attempts] == [(10, True), (30, True)]


def test_wait_is_for_all_ranks(tmp_path: Path) -> None:
    clients = ranks(tmp_path)
    clients[0].save(10, {"life": 1})
    with pytest.raises(DeadlineError, match="step 10 is not complete"):
        clients[0].wait(10, timeout_s=0.2)
    clients[1].save(10, {"life": 1})
    clients[0].wait(10, timeout_s=30)
