"""Gives a rank its arena: the file of its earlier process, or a new one if that is unusable."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from headway.common.errors import CorruptError
from headway.common.log import get_logger
from headway.common.node.arena import Arena

log = get_logger("arena")


def open_or_replace(
    path: Path,
    *,
    run_id: str,
    rank: int,
    slot_bytes: int,
    layout: bytes,
    claim: Callable[[Arena], None] = Arena.claim,
    difference: Callable[[bytes, bytes], str] | None = None,
) -> Arena:
    """Open and claim the arena at ``path``; make one if there is none.

    A file that is damaged, or was made for another run, rank, size or layout, is removed first:
    ``Arena.replaced`` of the new one says why, naming the file.

    Args:
        claim: called with the existing arena; raises while another process has it.
        difference: (expected layout, found layout) -> what differs, "" if nothing does. By
            default every byte counts.

    Raises:
        InputError: shared memory is full. HeadwayError: another process has the arena.
    """
    reason = ""
    try:
        arena = Arena.open(path)
    except FileNotFoundError:
        pass
    except CorruptError as error:
        reason = error.message
    else:
        try:
            claim(
                arena
            )  # first, so that an arena that another process still writes is never replaced
        except BaseException:
            arena.close()
            raise
        reason = _mismatch(arena, run_id, rank, slot_bytes)
        if not reason and arena.layout != layout:
            found = difference(layout, arena.layout) if difference else "another layout"
            reason = found and f"{path} holds another model's state: {found}"
        if not reason:
            return arena
        arena.close()
    if reason:
        log.error("the arena cannot be used and is replaced by a new one", reason=reason)
        remove(path)
    made = Arena.create(path, run_id=run_id, rank=rank, slot_bytes=slot_bytes, layout=layout)
    made.replaced = reason
    return made


def remove(path: Path) -> None:
    """Move away whatever has this name; it may be something other than a file."""
    # Not ``.bin``, so that a search for arenas by pattern does not find it again.
    aside = path.with_name(f".{path.name}.{time.monotonic_ns()}.damaged")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    with contextlib.suppress(OSError):  # a folder stays until the run's memory is removed
        aside.unlink()


def _mismatch(arena: Arena, run_id: str, rank: int, slot_bytes: int) -> str:
    for name, found, wanted in (
        ("run", arena.run_id, run_id),
        ("rank", arena.rank, rank),
        ("size of a slot in bytes", arena.slot_bytes, slot_bytes),
    ):
        if found != wanted:
            return f"{arena.path} was made for another {name}: {found} instead of {wanted}"
    return ""
