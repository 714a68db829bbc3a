"""What others import: resolve a configuration, reopen or fork an ended run, replay decisions."""

from __future__ import annotations

from pathlib import Path

import msgspec
from headway.ckpt_store.client import CheckpointInfo, read_part
from headway.common.errors import InputError
from headway.launch.lease import FileLease
from headway.trainer.control.inputs import Replayed, replay
from headway.trainer.control.journal import Journal, read_commands
from headway.trainer.exchange.checkpoint import check_first_weights
from headway.trainer.machine import resolve_auto

__all__ = ["Replayed", "check_first_weights", "inherit", "reopen", "replay", "resolve_auto"]


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


def inherit(database: Path, parent: Path, checkpoint: CheckpointInfo) -> None:
    """Make the journal of a run that begins at a checkpoint of another run.

    It takes over the commands that the checkpoint's state rests on, such as a learning rate that
    was set, and counts generations on from the one that wrote the checkpoint.
    """
    # the field of ``snapshot.Extra``, which needs torch
    applied = msgspec.msgpack.decode(read_part(checkpoint, 0).extra).get("command", 0)
    commands = read_commands(parent)[:applied]
    new = Journal(database)
    try:
        new.inherit(checkpoint.generation, commands)
    finally:
        new.close()
