"""What other packages import: resolve a configuration, reopen an ended run,
replay its decisions."""

from __future__ import annotations

from pathlib import Path

from headway.common.errors import InputError
from headway.launch.lease import FileLease
from headway.trainer.control.inputs import Replayed, replay
from headway.trainer.control.journal import Journal
from headway.trainer.machine import settled

__all__ = ["Replayed", "reopen", "replay", "settled"]


def reopen(database: Path) -> None:
    """Reopen a stopped or failed run, so that its next launch resumes it.

    Raises:
        InputError: a driver leads the run: it is live.
    """
    holder = FileLease(database.parent).look().holder
    if holder is not None and not holder.process.is_doomed():
        raise InputError(
            f"{database} is in use by the driver {holder.pid}",
            remedy="wait for it or stop that run",
        )
    journal = Journal(database)
    try:
        journal.reopen()
    finally:
        journal.close()
