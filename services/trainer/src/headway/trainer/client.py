"""What others import: resolve a configuration, reopen or fork an ended run, replay decisions,
move models from and to Hugging Face, and write texts with them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
from headway.ckpt_store.client import CheckpointInfo, read_part
from headway.common.errors import CorruptError, InputError
from headway.common.node.run_dir import RunDir
from headway.common.wire.messages.worker import Steer
from headway.launch.lease import is_led
from headway.launch.leases import lease_of
from headway.trainer.control.commands import read_commands
from headway.trainer.control.essentials import damaged_of, kept_facts
from headway.trainer.control.inputs import Replayed, replay
from headway.trainer.control.journal import Journal
from headway.trainer.exchange.checkpoint import check_first_weights
from headway.trainer.exchange.report import Moved
from headway.trainer.inference.request import Request, Texts
from headway.trainer.machine import resolve_auto

__all__ = [
    "Moved",
    "Replayed",
    "Request",
    "Texts",
    "check_first_weights",
    "damaged_of",
    "export_model",
    "import_model",
    "inherit",
    "kept_facts",
    "reopen",
    "replay",
    "resolve_auto",
    "write_texts",
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
        journal.reopen()
    finally:
        journal.close()


def inherit(database: Path, parent: Path, checkpoint: CheckpointInfo) -> None:
    """Make the journal of a run that begins at a checkpoint of another run.

    It takes over the commands that the checkpoint's state rests on, such as a learning rate that
    was set, and counts generations on from the one that wrote the checkpoint.

    Raises:
        CorruptError: the checkpoint is damaged, or the commands of ``parent`` cannot be read.
    """
    commands = _commands_of(parent)[: _recorded_of(checkpoint).command]
    new = Journal(database)
    try:
        new.inherit(checkpoint.generation, commands)
    finally:
        new.close()


def _commands_of(parent: Path) -> list[Steer]:
    try:
        return read_commands(parent)
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise CorruptError(
            f"the commands in {parent} cannot be read: {error}",
            remedy="resume its run with `headway run`, which begins a new journal, and fork again",
        ) from error


def data_of_run(checkpoint: CheckpointInfo) -> str:
    """The fingerprint of the training data that a checkpoint records, "" without one.

    Raises:
        CorruptError: the checkpoint is damaged.
    """
    return _recorded_of(checkpoint).fingerprint


class _Recorded(msgspec.Struct, frozen=True):
    """Fields of ``snapshot.Extra``, which needs torch."""

    command: int = 0
    fingerprint: str = ""


def _recorded_of(checkpoint: CheckpointInfo) -> _Recorded:
    try:
        return msgspec.msgpack.decode(read_part(checkpoint, 0).extra, type=_Recorded)
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"{checkpoint.path} does not hold the state of a run: {error}",
            remedy="use the checkpoint of another step",
        ) from error


# ---- models; torch is loaded when one is called -------------------------------------------------
def import_model(source: Path, target: Path) -> Moved:
    """See ``exchange.importing.import_model``."""
    from headway.trainer.exchange.importing import import_model

    return import_model(source, target)


def export_model(source: Path, target: Path, *, step: int | None = None, dtype: str) -> Moved:
    """Export the folder ``source`` of a run or an imported model; see ``exchange.exporting``."""
    from headway.trainer.exchange.exporting import export_model
    from headway.trainer.exchange.source import open_model

    return export_model(open_model(source, step), target, dtype=dtype)


def write_texts(model: Path, request: Request) -> Texts:
    """See ``inference.stored.write_texts``."""
    from headway.trainer.inference.stored import write_texts

    return write_texts(model, request)
