"""Full disks and old checkpoints: they cost a checkpoint or room, never the job."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from headway.ckpt_store.client import CheckpointClient, apply_retention
from headway.ckpt_store.files import Files, NewFile
from headway.ckpt_store.folder import look
from headway.testkit.checkpoint_ranks import ranks, restored, save_all


def test_a_step_that_is_completed_while_it_is_taken_for_dead_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = ranks(tmp_path)
    save_all(clients, 10)
    clients[0].save(20, {"life": 1})
    real = Files.rename

    def completed_meanwhile(self: Files, source: Path, target: Path) -> None:
        if target.name == ".trash-step-00000020.g0":
            monkeypatch.undo()
            assert clients[1].save(20, {"life": 1}).is_complete
        real(self, source, target)

    (tmp_path / "step-00000020.g0" / "rank-1.gave-up").write_text(
        look(tmp_path).attempts[-1].incarnation
    )
    monkeypatch.setattr(Files, "rename", completed_meanwhile)
    clients[0].save(30, {"life": 1})
    assert restored(ranks(tmp_path, read_only=True)) == [(20, 1), (20, 1)]


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


def test_the_newest_stay_whichever_rank_was_the_last_to_save_them(tmp_path: Path) -> None:
    first, second = ranks(tmp_path, keep=2)
    for step, order in enumerate([(first, second), (second, first), (first, second)]):
        for client in order:
            client.save(step, {"step": step})
    assert [a.step for a in look(tmp_path).attempts] == [1, 2]


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

    real = Files.create

    def full(files: Files, path: Path, nbytes: int) -> NewFile:
        if "gave-up" not in path.name:  # an empty file still fits
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(files, path, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "create", full)
        saved = clients[1].save(20, {"life": 1})
    assert not saved.is_stored
    assert "no room for step 20" in saved.problem
    save_all(clients, 30)
    assert [(a.step, a.is_complete) for a in look(tmp_path).attempts] == [(10, True), (30, True)]


def test_a_manifest_that_met_a_full_disk_is_written_with_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = CheckpointClient(tmp_path, keep=1)
    client.save(1, {"life": 1})
    real = Files.write_whole

    def full(files: Files, path: Path, data: bytes) -> Path:
        if path.name == "MANIFEST.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(files, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "write_whole", full)
        saved = client.save(2, {"life": 1})
    assert saved.is_stored
    assert not saved.is_complete
    assert "its manifest could not be written" in saved.problem
    client.save(3, {"life": 1})
    assert [(a.step, a.is_complete) for a in look(tmp_path).attempts] == [(3, True)]


@pytest.mark.parametrize("name", ["rank-0.safetensors", "rank-0.json", "MANIFEST.json"])
def test_a_full_disk_at_any_file_leaves_room_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    CheckpointClient(tmp_path).save(1, {"life": 1})
    real = Files.create

    def full(files: Files, path: Path, nbytes: int) -> NewFile:
        if name in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(files, path, nbytes)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "create", full)
        assert not CheckpointClient(tmp_path).save(2, {"life": 1}).is_complete
    left = [p.name for p in tmp_path.glob("step-00000002.g0/*")]
    assert left == [] or name == "MANIFEST.json"
    CheckpointClient(tmp_path).save(3, {"life": 2})  # what the start before left goes
    assert [a.step for a in look(tmp_path).attempts] == [1, 3]


def test_a_job_starts_on_a_full_disk_and_saves_when_there_is_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_all(ranks(tmp_path), 10)
    save_all(ranks(tmp_path), 20)

    def full(_files: Files, _path: Path, _nbytes: int) -> NewFile:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Files, "create", full)
        clients = ranks(tmp_path)
        assert [client.restore(10) is not None for client in clients] == [True, True]
        assert not clients[0].save(20, {"life": 2}).is_stored
    for step in (20, 30):  # at the first of them the tokens are written
        save_all(clients, step, life=2)
    assert restored(ranks(tmp_path)) == [(30, 2), (30, 2)]
