"""The search for a checkpoint: another folder is never taken for the run's own."""

from __future__ import annotations

from pathlib import Path

from headway.ckpt_store import mark_generation
from headway.trainer.control.decisions.events import FindDurable, Memory
from headway.trainer.control.durable import search
from headway.trainer.control.journal import Journal


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
    journal.remember(Memory(bad_checkpoints=(4, 8), marked=3, lost=(1,)))
    journal.reopen()
    assert journal.memory() == Memory(marked=3, lost=(1,))
    journal.close()
