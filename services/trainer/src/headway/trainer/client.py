"""What others import: resolve a configuration, reopen or fork an ended run, replay decisions,
move models from and to Hugging Face, and write texts with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from headway.ckpt_store.client import CheckpointInfo, read_part
from headway.common.errors import InputError
from headway.launch.lease import FileLease
from headway.trainer.control.inputs import Replayed, replay
from headway.trainer.control.journal import Journal, read_commands
from headway.trainer.exchange.checkpoint import check_first_weights
from headway.trainer.machine import resolve_auto

if TYPE_CHECKING:
    from headway.trainer.exchange.report import Moved
    from headway.trainer.inference.stored import Texts

__all__ = [
    "Replayed",
    "Request",
    "check_first_weights",
    "export_model",
    "import_model",
    "inherit",
    "reopen",
    "replay",
    "resolve_auto",
    "write_texts",
]


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


@dataclass(frozen=True)
class Request:
    """Texts to be written without a run."""

    prompt: str = ""
    """Empty begins a new text."""
    tokens: int = 64
    """At most, of each text."""
    temperature: float = 0.8
    top_p: float = 1.0
    count: int = 1
    seed: int = 0
    """Of the first text; the next one has the next number."""
    dtype: str = "fp32"
    """Type of the computation, bf16 or fp32."""
    step: int | None = None
    """Of the run's checkpoint; None means the newest."""


def write_texts(model: Path, request: Request) -> Texts:
    """See ``inference.stored.write_texts``."""
    from headway.trainer.inference.stored import write_texts

    return write_texts(model, request)
