"""Retention for a folder without a daemon: removes old checkpoints and dead attempts."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from headway.ckpt_store.attempts import Attempt, Key, part_facts
from headway.ckpt_store.files import Files
from headway.ckpt_store.folder import has_vanished, look, open_checkpoint
from headway.ckpt_store.manifest import MANIFEST_NAME, blob_name, part_name, step_dir_name
from headway.ckpt_store.retention import dead_attempts, newest_complete, removable
from headway.ckpt_store.verify import verify
from headway.common.errors import CorruptError

LATER_WITHOUT_LOCKSTEP = 8
"""Like ``retention.LATER_ATTEMPTS``; ranks without a daemon may be several steps apart."""


def apply_retention(
    checkpoints: Path,
    keep: int,
    *,
    deep: bool = False,
    files: Files | None = None,
    own: Collection[Key] = (),
) -> list[Path]:
    """Remove complete checkpoints beyond the newest ``keep``, and return their folders.

    Pinned ones and ``own`` stay. The newest is checked first, byte by byte with ``deep``; nothing
    is removed if it is damaged. Several processes may do this at once.

    Raises:
        CorruptError: the newest checkpoint is damaged. OSError: from the disk.
    """
    files = files or Files("gc")
    view = look(checkpoints)
    surplus, newest_key = removable(view, keep, own=own), newest_complete(view)
    if not surplus or newest_key is None:
        return []
    try:
        info = open_checkpoint(checkpoints, *newest_key)
    except FileNotFoundError:  # another process is at it
        return []
    if (problems := verify(info, deep=deep)) and has_vanished(info):
        return []
    if problems:
        raise CorruptError(
            f"{problems[0].message}: nothing was removed",
            remedy="inspect it with `headway ckpt verify`",
        )
    removed = []
    for key in surplus:
        folder = checkpoints / step_dir_name(*key)
        files.remove_tree(folder)
        removed.append(folder)
    return removed


def clear_killed(files: Files, checkpoints: Path, rank: int) -> None:
    """Free what a killed process left in the middle of saving as ``rank``.

    It is called before the process that replaces it begins to save, if the other one has certainly
    ended. It works on a full disk. Rank 0 also removes attempts that are empty. A file that cannot
    be removed stays.
    """
    remove_leftovers(files, checkpoints)
    for attempt in look(checkpoints).attempts:
        folder = checkpoints / step_dir_name(*attempt.key)
        if not attempt.is_complete and rank not in attempt.ranks:
            _discard_drafts(files, folder, rank)
        if rank == 0:
            files.remove_empty_dir(folder)


def clear_beyond(files: Files, checkpoints: Path, world_size: int) -> None:
    """Free what was left in the middle of saving by ranks of an earlier, larger job.

    Rank 0 calls it at its first save, since a client that never saves may only be looking at the
    folder of a job that is running.
    """
    for attempt in look(checkpoints).attempts:
        folder = checkpoints / step_dir_name(*attempt.key)
        gone = set() if attempt.is_complete else _ranks_beyond(folder, world_size) - attempt.ranks
        for rank in gone:
            _discard_drafts(files, folder, rank)
        if gone:
            files.remove_empty_dir(folder)


def _discard_drafts(files: Files, folder: Path, rank: int) -> None:
    for path in (folder / blob_name(rank), *folder.glob(f".*.r{rank}.tmp")):
        files.discard(path)


def remove_leftovers(files: Files, checkpoints: Path) -> list[Path]:
    """Remove the temporary files of an earlier process of this owner; called once at start."""
    found = list(checkpoints.glob(f".*.{files.owner}.tmp"))
    found += checkpoints.glob(f"*/.*.{files.owner}.tmp")
    for path in found:
        files.discard(path)
    return found


def clear_dead(files: Files, checkpoints: Path, rank: int, saving: Key, incarnation: str) -> None:
    """Free the space of dead attempts: rank 0 removes them, other ranks remove their own part.

    Attempts that another start of the job left unfinished are dead. The step that is being saved
    now never is, whatever was left there; only this rank's own part of it is replaced.

    Raises:
        OSError: from the disk.
    """
    view = look(checkpoints)
    dead = set(dead_attempts(view, later=LATER_WITHOUT_LOCKSTEP))
    dead |= {a.key for a in view.attempts if _is_left_behind(a, incarnation)}
    for attempt in view.attempts:
        folder = checkpoints / step_dir_name(*attempt.key)
        is_begun = attempt.key == saving and not attempt.is_complete and rank in attempt.ranks
        if is_begun and part_facts(folder / part_name(rank))[1] != incarnation:
            files.discard_part(folder, rank)
        if attempt.key not in dead or attempt.key == saving:
            continue
        if rank == 0:
            files.remove_tree(folder, unless=MANIFEST_NAME)  # it may have been completed meanwhile
        elif rank in attempt.ranks and not attempt.has_all_parts:
            files.discard_part(folder, rank)
    if rank == 0:
        for name in view.trash:
            files.remove_tree(checkpoints / name)


def _is_left_behind(attempt: Attempt, incarnation: str) -> bool:
    is_open = not attempt.is_complete and not attempt.is_marked
    return is_open and bool(attempt.ranks) and attempt.incarnation != incarnation


def _ranks_beyond(folder: Path, world_size: int) -> set[int]:
    """Ranks of a larger job that have files in ``folder``."""
    names = "\n".join(path.name for path in folder.glob("*rank-*"))
    return {int(found) for found in re.findall(r"rank-(\d+)\.", names) if int(found) >= world_size}
