"""The search for a checkpoint: another folder is never taken for the run's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from headway.ckpt_store import mark_generation
from headway.ckpt_store.client import CheckpointClient
from headway.controller.decisions.events import FindDurable, Memory
from headway.controller.driver.durable import lack_after, problem_of, search
from headway.controller.driver.memory import recall, remember, reopen
from headway.controller.journal.journal import Journal


def test_a_new_run_has_no_checkpoint_and_no_trouble(tmp_path: Path) -> None:
    answer = search(tmp_path / "checkpoints", 2, FindDurable())
    assert (answer.checkpoint, answer.trouble) == (None, "")


def test_a_folder_without_the_mark_of_the_generation_is_another_one(tmp_path: Path) -> None:
    folder, moved = tmp_path / "checkpoints", tmp_path / "moved"
    mark_generation(folder, 0, -1)
    assert search(folder, 2, FindDurable(marked=0)).trouble == ""
    folder.rename(moved)
    for make in (lambda: None, folder.mkdir):  # gone, then empty as a folder without its mount
        make()
        answer = search(folder, 2, FindDurable(marked=0))
        assert answer.checkpoint is None
        assert answer.trouble == (
            f"{folder} does not hold the record of generation 0: "
            "it is another folder, or it was emptied"
        )
    folder.rmdir()
    moved.rename(folder)
    assert search(folder, 2, FindDurable(marked=0)).trouble == ""


def test_a_run_that_is_resumed_tries_checkpoints_again_that_were_damaged(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    remember(journal, Memory(bad_checkpoints=(4, 8), marked=3, lost=(1,)))
    reopen(journal)
    assert recall(journal) == Memory(marked=3, lost=(1,))
    journal.close()


def test_a_run_that_is_resumed_begins_a_new_count_of_spikes_and_drains_no_node(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "run.sqlite", epoch=1)
    remember(journal, Memory(spike=310, passes=((20, 310, 4),), drains=((1, 30, 300.0),)))
    reopen(journal)
    assert recall(journal) == Memory(spike=310, passes=((20, 310, 0),))
    journal.close()


def test_a_drain_waits_for_a_checkpoint_of_a_later_step(tmp_path: Path) -> None:
    assert lack_after(tmp_path, 1, 10) == "there is no complete checkpoint yet"
    CheckpointClient(tmp_path).save(10, {"w": np.arange(8.0)})
    assert lack_after(tmp_path, 1, 10) == "the newest complete checkpoint is of step 10"
    assert lack_after(tmp_path, 1, 9) == ""


def test_a_rollback_wants_a_checkpoint_whose_every_byte_is_sound(tmp_path: Path) -> None:
    client = CheckpointClient(tmp_path)
    for step in (10, 20):
        client.save(step, {"w": np.arange(4096.0)})
    assert problem_of(tmp_path, 1, 10) == ""
    assert problem_of(tmp_path, 1, 15) == "there is no complete checkpoint of step 15"
    assert "is of 1 ranks, not 2" in problem_of(tmp_path, 2, 10)
    (blob,) = tmp_path.glob("step-00000010.*/*.safetensors")
    raw = bytearray(blob.read_bytes())
    raw[-100] ^= 1
    blob.write_bytes(raw)
    assert "is damaged" in problem_of(tmp_path, 1, 10)
    assert problem_of(tmp_path, 1, 20) == ""
