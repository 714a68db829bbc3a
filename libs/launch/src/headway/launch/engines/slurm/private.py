"""What must not cross the network in plain: files in the folder that all machines share.

srun sends the standard input and output of a step as they are. A ticket contains secrets, and logs
are nobody else's business, so they pass through files that only the user can read.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headway.common.errors import HeadwayError

ANSWERS = ("log", "records")
"""Verbs whose output is written to a file."""
TICKET, ANSWER = "ticket-", "answer-"
"""How the names of these files begin."""


@contextlib.contextmanager
def ticket_file(folder: Path, ticket: str) -> Iterator[list[str]]:
    """Yield the words that make a verb read its ticket from a new file.

    The file exists until the end of the block.

    Raises:
        HeadwayError: it cannot be written.
    """
    with new_file(folder, TICKET) as path:
        try:
            path.write_text(ticket)  # closed before the machine opens it, as NFS demands
        except OSError as error:
            raise _refused(folder, error) from error
        yield ["--ticket", str(path)]


def remove_left(folder: Path) -> None:
    """The run is over: remove the files of commands that were killed."""
    with contextlib.suppress(OSError):
        for prefix in (TICKET, ANSWER):
            for path in folder.glob(f"{prefix}*"):
                path.unlink(missing_ok=True)


def read(path: Path) -> str:
    """What a verb has written.

    Raises:
        HeadwayError: it cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HeadwayError(f"cannot read {path}: {error}", remedy="try again") from error


@contextlib.contextmanager
def new_file(folder: Path, prefix: str) -> Iterator[Path]:
    """A new file, as for the output of a verb, which exists until the end of the block.

    Raises:
        HeadwayError: it cannot be made.
    """
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=prefix)
    except OSError as error:
        raise _refused(folder, error) from error
    os.close(handle)
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()


def _refused(folder: Path, error: OSError) -> HeadwayError:
    return HeadwayError(
        f"cannot write in {folder}: {error.strerror}",
        remedy="all machines and this one need this folder",
    )
