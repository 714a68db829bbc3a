"""How far an export is, on disk beside what it has written; and who exports now.

The position and what the sink needs to continue are one file, which is replaced as a whole once the
sink has committed. So an exporter that is killed repeats what came after its newest commit, and the
sink cuts off what was written of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from headway.common.errors import CorruptError, InputError
from headway.common.node.files import make_private_folder, replace_file

NAME, LOCK = "headway-position.json", "headway.lock"


@dataclass
class History:
    """The exported history of a run: each step as the newest generation did it."""

    generation: int = -1
    """The newest one with an exported step."""
    top: int = -1
    """The highest number of completed steps that is exported and holds, -1 before the first."""
    evaluated: int = -1
    """Completed steps of the newest validation loss that is exported and holds, -1 without one."""
    starts: dict[int, int] = field(default_factory=dict)
    """Generation -> completed steps that it began with."""
    highest: dict[int, int] = field(default_factory=dict)
    """Generation -> the highest number of completed steps exported of it."""
    skipped: list[int] = field(default_factory=list)
    """Skipped steps of the history, as numbers of completed steps, in order."""


@dataclass
class Position:
    """What has been exported of one run."""

    run_id: str
    to: str = ""
    """The sink's name."""
    metrics_row: int = 0
    metrics_key: tuple[int, int] = (-1, -1)
    """Generation and step of that row: another one there means that rows were renumbered."""
    evaluations_row: int = 0
    events_row: int = 0
    settings: str = ""
    """The exported configuration, as TOML."""
    history: History = field(default_factory=History)
    sink: dict[str, Any] = field(default_factory=dict)
    """What the sink needs to continue."""

    @property
    def rows(self) -> tuple[object, ...]:
        """How far each table has been read."""
        return self.metrics_row, self.evaluations_row, self.events_row, self.settings


def load(out: Path, run_id: str, to: str) -> Position:
    """The position of an export in ``out``; the beginning without one.

    Raises:
        InputError: the folder holds the export of another run, or to another sink.
        CorruptError: the file cannot be read.
    """
    path = out / NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Position)
    except FileNotFoundError:
        return Position(run_id, to)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptError(
            f"{path} is not readable", remedy=f"remove {out} to export from the beginning"
        ) from error
    if found.run_id != run_id:
        raise InputError(
            f"{out} holds the export of another run ({found.run_id})",
            remedy="choose another --out",
        )
    if found.to not in ("", to):
        raise InputError(f"{out} holds an export to {found.to}", remedy="choose another --out")
    return found


def save(out: Path, position: Position) -> None:
    """Replace the position. Raises OSError when it cannot be written."""
    replace_file(out / NAME, msgspec.json.encode(position))


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Be the only process that exports into ``out``, which is made; the kernel frees the lock.

    Raises:
        InputError: another process exports there, or the folder cannot be made.
    """
    try:
        for folder in (out.parent, out):
            if not folder.exists():
                make_private_folder(folder)
        lock = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(
            f"cannot export to {out}: {error.strerror}", remedy="choose another --out"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 20).decode(errors="replace") or "unknown"
            raise InputError(
                f"process {holder} exports to {out} already",
                remedy="look there, or choose another --out",
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the number is only for people
            os.truncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)
