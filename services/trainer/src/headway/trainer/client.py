"""What whoever launches runs needs of the trainer: a definite configuration, and an ended run made unfinished."""

from __future__ import annotations

from pathlib import Path

from headway.trainer.control.journal import Journal
from headway.trainer.machine import settled

__all__ = ["reopen", "settled"]


def reopen(database: Path) -> None:
    """Let a stopped or failed run go on at its next launch.

    Raises:
        LockedError: a driver holds the journal; the run is live.
    """
    journal = Journal(database)
    try:
        journal.reopen()
    finally:
        journal.close()
