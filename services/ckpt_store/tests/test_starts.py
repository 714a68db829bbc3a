"""A start that has not restored keeps its own saves, whatever earlier starts left in the folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from headway.ckpt_store.attempts import Attempt
from headway.ckpt_store.client import CheckpointClient
from headway.ckpt_store.folder import FolderView, look
from headway.ckpt_store.retention import removable
from headway.common.errors import InputError
from headway.testkit.checkpoint_ranks import ranks, restored, save_all


def complete_steps(folder: Path) -> list[tuple[int, int]]:
    return [a.key for a in look(folder).attempts if a.is_complete]


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_start_from_scratch_keeps_its_lower_steps(
    tmp_path: Path, keep: int, num_ranks: int
) -> None:
    for step in (900, 1000):
        save_all(ranks(tmp_path, num_ranks, keep=keep), step)
    fresh = ranks(tmp_path, num_ranks, keep=keep)
    for step in (10, 20):
        saved = [client.save(step, {"life": 2}) for client in fresh]
        assert saved[-1].is_complete
        assert (step, saved[-1].generation) in complete_steps(tmp_path)
        assert len(complete_steps(tmp_path)) <= keep
    for client in fresh:
        client.close()
    assert restored(ranks(tmp_path, num_ranks)) == [(20, 2)] * num_ranks


def test_until_its_first_checkpoint_is_complete_the_earlier_start_counts(tmp_path: Path) -> None:
    save_all(ranks(tmp_path), 1000)
    ranks(tmp_path)[0].save(10, {"life": 2})  # killed before rank 1 saves
    clients = ranks(tmp_path)
    assert restored(clients) == [(1000, 1), (1000, 1)]
    save_all(clients, 1010)  # it continues the history of step 1000, which still counts
    assert restored(ranks(tmp_path)) == [(1010, 1), (1010, 1)]
    assert ranks(tmp_path, read_only=True)[0].restore(1000) is not None
    assert not look(tmp_path).pending


def test_a_start_from_scratch_that_died_leaves_its_number_to_the_next(tmp_path: Path) -> None:
    save_all(ranks(tmp_path), 1000)
    ranks(tmp_path)[0].save(10, {"life": 2})
    save_all(ranks(tmp_path), 20, life=3)
    assert restored(ranks(tmp_path)) == [(20, 3), (20, 3)]


def test_what_an_earlier_start_left_can_be_restored_by_its_number(tmp_path: Path) -> None:
    CheckpointClient(tmp_path).save(1000, "old")
    CheckpointClient(tmp_path).save(10, "new")
    client = CheckpointClient(tmp_path)
    assert client.restore(1000) == (1000, "old")
    with pytest.raises(InputError, match="step 500"):
        client.restore(500)


def test_a_second_client_of_a_process_saves_in_the_history_of_the_first(tmp_path: Path) -> None:
    CheckpointClient(tmp_path).save(30, "old")
    first = CheckpointClient(tmp_path)
    first.restore()
    first.save(40, "first")
    second = CheckpointClient(tmp_path)
    assert second.save(41, "second").is_complete
    assert first.save(50, "first").is_complete
    assert CheckpointClient(tmp_path, read_only=True).restore() == (50, "first")


def test_a_save_behind_a_later_start_is_reported_and_never_complete(tmp_path: Path) -> None:
    first = CheckpointClient(tmp_path)
    assert first.save(40, "first").is_complete
    script = "import sys; from headway.ckpt_store.client import CheckpointClient as C; "
    script += "from pathlib import Path; "
    script += "(Path(sys.argv[1]) / '.ranks/rank-0').unlink(); C(sys.argv[1]).save(41, 'second')"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    for step in (50, 60):
        saved = first.save(step, "first")
        assert not saved.is_complete
        assert f"step {step} would be obsolete: a later start saves in" in saved.problem
    assert CheckpointClient(tmp_path, read_only=True).restore() == (41, "second")


def test_wait_is_for_the_steps_of_this_start(tmp_path: Path) -> None:
    save_all(ranks(tmp_path), 1000)
    clients = ranks(tmp_path)
    clients[0].save(10, {"life": 2})
    waiting = threading.Thread(target=clients[0].wait, args=(10,))
    waiting.start()
    assert waiting.is_alive()
    clients[1].save(10, {"life": 2})
    waiting.join(30)
    assert not waiting.is_alive()


def test_with_a_number_of_its_own_a_save_outlives_higher_steps(tmp_path: Path) -> None:
    CheckpointClient(tmp_path, keep=1).save(1000, "old")
    saved = CheckpointClient(tmp_path, keep=1).save(10, "new", generation=0)
    assert saved.is_complete
    assert (10, 0) in complete_steps(tmp_path)


def test_old_steps_fill_the_room_that_the_new_start_leaves() -> None:
    old = [Attempt(step, 0, frozenset({0}), 1, True) for step in (800, 900, 1000)]
    new = [Attempt(step, 1, frozenset({0}), 1, True) for step in (10, 20, 30)]
    for count in (1, 2, 3):
        attempts = sorted([*old, *new[:count]], key=lambda a: a.key)
        view = FolderView(tuple(attempts), {1: -1})
        assert removable(view, 3) == [a.key for a in old[:count]]


def test_through_a_daemon_a_start_from_scratch_keeps_its_lower_steps(cluster: Any) -> None:
    daemon = cluster.start(0, "--keep", "1")
    daemon.status()  # it is up
    for life, steps in ((1, (1000,)), (2, (10, 20))):
        with CheckpointClient(daemon.endpoint) as client:
            for step in steps:
                client.save(step, {"life": life})
                client.wait(step)
    with CheckpointClient(daemon.endpoint, read_only=True) as client:
        assert client.restore() == (20, {"life": 2})
