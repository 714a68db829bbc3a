"""The search for the checkpoint that the next generation restores."""

from __future__ import annotations

from pathlib import Path

from headway.ckpt_store import complete, has_mark, newest
from headway.ckpt_store.client import verify
from headway.common.errors import CorruptError
from headway.trainer.control.decisions.events import DurableFound, FindDurable


def search(checkpoints: Path, world_size: int, action: FindDurable) -> DurableFound:
    """The newest complete checkpoint, or the one asked for, or what is wrong with the folder.

    A folder that holds neither a checkpoint nor the mark of the run's generation is another one: a
    mount that is missing, or one that somebody emptied. A run that took it for its own would start
    over.

    Raises:
        HeadwayError: none of the checkpoints can be read.
        OSError: the folder cannot be read.
    """
    if action.only >= 0:
        return DurableFound(_of_step(checkpoints, world_size, action), only=action.only)
    found = newest(checkpoints, world_size=world_size, without=action.bad)
    if found is not None:
        return DurableFound((found.step, str(found.path)))
    if action.marked >= 0 and not has_mark(checkpoints, action.marked):
        trouble = (
            f"{checkpoints} does not hold the record of generation {action.marked}: it is another "
            "folder, or it was emptied"
        )
        return DurableFound(None, trouble=trouble)
    return DurableFound(None)


def _of_step(checkpoints: Path, world_size: int, action: FindDurable) -> tuple[int, str] | None:
    """The complete checkpoint of ``action.only``, None without one or where it proved bad."""
    for info in complete(checkpoints):
        if (info.step, info.world_size) == (action.only, world_size):
            return None if info.step in action.bad else (info.step, str(info.path))
    return None


def problem_of(checkpoints: Path, world_size: int, step: int) -> str:
    """Why the checkpoint of ``step`` cannot be restored, empty if every byte of it is sound.

    Raises:
        OSError: the folder cannot be read now.
    """
    try:
        found = [info for info in complete(checkpoints) if info.step == step]
    except CorruptError as error:
        return error.message
    for info in found:
        if info.world_size != world_size:
            return f"checkpoint {info.path} is of {info.world_size} ranks, not {world_size}"
        problems = verify(info)
        return f"{problems[0].path} is damaged: {problems[0].message}" if problems else ""
    return f"there is no complete checkpoint of step {step}"


def lack_after(checkpoints: Path, world_size: int, step: int) -> str:
    """Why there is no complete checkpoint of a later step than ``step``; empty when there is one.

    Raises:
        HeadwayError, OSError: the folder cannot be read now.
    """
    found = newest(checkpoints, world_size=world_size)
    if found is None:
        return "there is no complete checkpoint yet"
    return "" if found.step > step else f"the newest complete checkpoint is of step {found.step}"
