"""Reads SQLite files that another process writes, without keeping it from writing.

A reader of a file in WAL mode delays no writer. In the other mode, which machines that share a file
need, a reader that is stopped in the middle of a query would keep every writer out for as long. So
such a file is copied, without a lock, and the copy is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

BUSY_S = 5.0
"""How long a reader waits for a writer."""
PAUSE_S = 0.005
SETTLED_S = 0.25
"""A rollback journal that has not changed for this long belongs to a writer that is gone or
stopped, and what it holds is taken back in the copy."""
_HEADER_BYTES = 100
_WAL = 2
_UNDECODABLE = "Could not decode to UTF-8"
"""How Python's error for text that is not UTF-8 begins. SQLite does not look at what a text cell
holds, so that the error has no code of it."""
State = tuple[object, ...]


def open_to_read(file: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    Raises:
        sqlite3.OperationalError: the file cannot be opened, or changes all the time.
        sqlite3.DatabaseError: it is not a database.
    """
    if not _is_shared(file):
        connection = _connect(file, "ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except sqlite3.Error:
            connection.close()
            raise
        return connection
    with tempfile.TemporaryDirectory(prefix="headway-read-") as folder:
        copy = Path(folder) / file.name
        try:
            _copy_whole(file, copy)
        except OSError as error:
            raise sqlite3.OperationalError(f"cannot copy {file}: {error.strerror}") from error
        with contextlib.closing(_connect(copy, "rw")) as writer:  # takes back half a write
            writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        connection = _connect(copy, "ro")  # it keeps the file, whose name goes
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        return connection


def is_damage(error: BaseException) -> bool:
    """Whether an error means that the file itself is bad, and will be the next time, too."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without what SQLite adds to it
    return is_undecodable(error) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_undecodable(error: BaseException) -> bool:
    """Whether an error means that a text is not UTF-8; ``replaced`` reads it all the same."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith(_UNDECODABLE)


def replaced(text: bytes) -> str:
    """A ``text_factory``: what is not UTF-8 becomes replacement characters, the rest is kept."""
    return text.decode(errors="replace")


def damage(what: str) -> sqlite3.DatabaseError:
    """The error for a bad file that SQLite has not noticed; ``is_damage`` is true for it."""
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_shared(file: Path) -> bool:
    """Whether the file is in the mode in which readers keep writers out.

    The mode is the version in byte 18 (SQLite file format, 1.3). A file whose WAL is there is not
    opened: closing it would drop the locks that this process may have of it (POSIX).
    """
    if file.with_name(f"{file.name}-wal").exists():
        return False
    try:
        with file.open("rb") as opened:
            header = opened.read(_HEADER_BYTES)
    except OSError:
        return False  # SQLite says why
    return len(header) == _HEADER_BYTES and header[18] != _WAL


def _copy_whole(file: Path, copy: Path) -> None:
    """Copy the file as it is between two writes, or with the journal of one that has not ended."""
    journal, copied = (path.with_name(f"{path.name}-journal") for path in (file, copy))
    until, seen, since = time.monotonic() + BUSY_S, _state(file, journal), time.monotonic()
    while time.monotonic() < until:
        is_writing = seen[-1] is not None
        if not is_writing or time.monotonic() - since > SETTLED_S:
            copied.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(journal, copied)
            shutil.copyfile(file, copy)
            if _state(file, journal) == seen:
                return
        time.sleep(PAUSE_S)
        if (now := _state(file, journal)) != seen:
            seen, since = now, time.monotonic()
    _copy_locked(file, copy)


def _copy_locked(file: Path, copy: Path) -> None:
    """Copy under a lock, the last resort for a large file that is written all the time.

    For as long as the copying takes, no write can end.
    """
    with contextlib.closing(_connect(file, "ro")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        shutil.copyfile(file, copy)


def _state(file: Path, journal: Path) -> State:
    """What changes with every write.

    It consists of the files, the counter of changes in the header (SQLite file format, 1.3.7), and
    the rollback journal, None without one.
    """
    os.listdir(file.parent)  # has a network file system ask again what the folder holds
    with file.open("rb") as opened:
        header, found = opened.read(_HEADER_BYTES), os.fstat(opened.fileno())
    try:
        half = journal.stat()
    except FileNotFoundError:
        half = None
    written = (half.st_ino, half.st_size, half.st_mtime_ns) if half is not None else None
    return (found.st_ino, found.st_size, found.st_mtime_ns, header[24:28], written)


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{file}?mode={mode}", uri=True, timeout=BUSY_S)
