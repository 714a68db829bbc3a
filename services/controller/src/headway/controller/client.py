"""What other packages import from the controller.

Reopen or fork an ended run, replay its decisions, read its commands, and read what a damaged
journal has left.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from headway.ckpt_store.client import CheckpointInfo, read_part
from headway.common.errors import CorruptError, InputError
from headway.common.node.run_dir import RunDir
from headway.common.wire.messages.worker import Steer
from headway.controller.driver import memory
from headway.controller.driver.inputs import Replayed, replay
from headway.controller.journal.commands import commands_of
from headway.controller.journal.essentials import damaged_of, kept_facts
from headway.controller.journal.file import JournalFile, UnreadableJournalError
from headway.controller.journal.journal import Journal
from headway.controller.journal.reader import JournalEvent, RunJournal, Sampled, Step
from headway.launch.lease.base import is_led
from headway.launch.lease.choose import lease_of

__all__ = [
    "JournalEvent",
    "JournalFile",
    "Replayed",
    "RunJournal",
    "Sampled",
    "Step",
    "UnreadableJournalError",
    "damaged_of",
    "inherit",
    "kept_facts",
    "reopen",
    "replay",
]


def reopen(run: RunDir) -> None:
    """Reopen a stopped or failed run, so that its next launch resumes it.

    Raises:
        InputError: a driver leads the run: it is live.
    """
    if is_led(lease_of(run.control)):
        raise InputError(
            f"{run.database} is in use by the run's driver",
            remedy="wait for it or stop that run",
        )
    journal = Journal(run.database, is_shared=run.bundle.exists())
    try:
        memory.reopen(journal)
    finally:
        journal.close()


def inherit(database: Path, parent: Path, checkpoint: CheckpointInfo) -> None:
    """Make the journal of a run that begins at a checkpoint of another run.

    It takes over the commands that the checkpoint's state rests on, such as a learning rate that
    was set, and counts generations on from the one that wrote the checkpoint.

    Raises:
        CorruptError: the checkpoint is damaged, or the commands of ``parent`` cannot be read.
    """
    number = _recorded_of(checkpoint).command
    commands = _commands_of(parent)[:number]
    if len(commands) < number:
        raise CorruptError(
            f"{parent} holds {len(commands)} of the {number} commands that the checkpoint rests on",
            remedy="put the journal back from a copy, and fork again",
        )
    new = Journal(database)
    try:
        new.inherit(checkpoint.generation, commands)
    finally:
        new.close()


def _commands_of(parent: Path) -> list[Steer]:
    file = JournalFile(parent)
    try:
        rows, facts = file.rows("commands"), RunJournal(file.rows).facts()
        if file.damage:
            raise ValueError(file.damage)
        return commands_of(rows, int(facts.get("spent_commands", "0")))
    except (UnreadableJournalError, ValueError, TypeError) as error:
        raise CorruptError(
            f"the commands in {parent} cannot be read: {error}",
            remedy="resume its run with `headway run`, which begins a new journal, and fork again",
        ) from error


class _Recorded(msgspec.Struct, frozen=True):
    """A field of ``train_state.TrainState``, which needs torch."""

    command: int = 0


def _recorded_of(checkpoint: CheckpointInfo) -> _Recorded:
    try:
        return msgspec.msgpack.decode(read_part(checkpoint, 0).extra, type=_Recorded)
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"{checkpoint.path} does not hold the state of a run: {error}",
            remedy="use the checkpoint of another step",
        ) from error
