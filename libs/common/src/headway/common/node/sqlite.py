"""SQLite files that another process writes, and may have died while it did so."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

BUSY_S = 5.0
"""How long a reader waits for a writer's lock."""


def open_to_read(file: Path) -> sqlite3.Connection:
    """A connection that cannot write.

    A machine that lost its power in the middle of a write leaves a journal that a reader may not
    take back, so every read would fail. Then SQLite takes it back first, under its usual locks.

    Raises:
        sqlite3.OperationalError: the file cannot be opened.
    """
    connection = _connect(file, "ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            connection.close()
            raise
        with contextlib.closing(_connect(file, "rw")) as writer:
            writer.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    return connection


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{file}?mode={mode}", uri=True, timeout=BUSY_S)
