"""Retention for a folder without a daemon: removes old checkpoints and dead attempts."""

from __future__ import annotations

from pathlib import Path

from headway.ckpt_store.files import Files
from headway.ckpt_store.folder import Attempt, look, open_checkpoint
from headway.ckpt_store.manifest import MANIFEST_NAME, blob_name, part_name, step_dir_name
from headway.ckpt_store.retention import Key, dead_attempts, newest_complete, removable
from headway.ckpt_store.verify import verify
from headway.common.errors import CorruptError

LATER_WITHOUT_LOCKSTEP = 8
"""Like ``retention.LATER_ATTEMPTS``; ranks without a daemon may be several steps apart."""


def apply_retention(
    checkpoints: Path, keep: int, *, deep: bool = False, files: Files | None = None
) -> list[Path]:
    """Remove complete checkpoints beyond the newest ``keep``, except pinned ones;
    returns their folders.

    The newest is checked first, byte by byte with ``deep``; nothing is removed if it is damaged.
    Several processes may do this at once.

    Raises:
        CorruptError: the newest checkpoint is damaged. OSError: from the disk.
    """
    files = files or Files("gc")
    view = look(checkpoints)
    surplus, newest_key = removable(view, keep), newest_complete(view)
    if not surplus or newest_key is None:
        return []
    if problems := verify(open_checkpoint(checkpoints, *newest_key), deep=deep):
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


def clear_dead(files: Files, checkpoints: Path, rank: int, saving: Key, incarnation: str) -> None:
    """Free the space of dead attempts: rank 0 removes them, other ranks remove their own part.

    Attempts that another start of the job left unfinished are dead. The step that is being saved
    now never is, whatever was left there.

    Raises:
        OSError: from the disk.
    """
    view = look(checkpoints)
    dead = set(dead_attempts(view, later=LATER_WITHOUT_LOCKSTEP))
    dead |= {a.key for a in view.attempts if _is_left_behind(a, incarnation)}
    for attempt in view.attempts:
        folder = checkpoints / step_dir_name(*attempt.key)
        if attempt.key not in dead or attempt.key == saving:
            continue
        if rank == 0:
            files.remove_tree(folder, unless=MANIFEST_NAME)  # it may have been completed meanwhile
        elif rank in attempt.ranks and not attempt.has_all_parts:
            files.discard(folder / part_name(rank))
            files.discard(folder / blob_name(rank))
    if rank == 0:
        for name in view.trash:
            files.remove_tree(checkpoints / name)


def _is_left_behind(attempt: Attempt, incarnation: str) -> bool:
    is_open = not attempt.is_complete and not attempt.is_marked
    return is_open and bool(attempt.ranks) and attempt.incarnation != incarnation
