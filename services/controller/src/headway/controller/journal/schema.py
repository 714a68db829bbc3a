"""The tables of the journal, and the view ``course``: the steps that count.

A recovery repeats steps. A generation supersedes what older ones measured from its first step on,
whether it has come so far again or not; the writer marks those rows as they are superseded
(``measured.py``), so that no reader has to work it out.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3

from headway.common.errors import InputError

VERSION = 1
"""SQLite's ``user_version``; another number is another version of Headway."""
_TABLES = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,
    monotonic_s REAL NOT NULL, unix_s REAL NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE clocks (id INTEGER PRIMARY KEY, node INTEGER NOT NULL,
    boot_id TEXT NOT NULL, offset_ns INTEGER NOT NULL, uncertainty_ns INTEGER NOT NULL,
    monotonic_s REAL NOT NULL, unix_s REAL NOT NULL);
CREATE TABLE inputs (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,
    clock_s REAL NOT NULL, event BLOB NOT NULL, decided TEXT NOT NULL);
CREATE TABLE generations (generation INTEGER PRIMARY KEY, unix_s REAL NOT NULL,
    rank_nodes TEXT NOT NULL);
CREATE TABLE commands (sequence INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL,
    unix_s REAL NOT NULL, operation TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,
    count INTEGER NOT NULL, tokens TEXT NOT NULL);
CREATE TABLE metrics (generation INTEGER, step INTEGER, loss REAL, grad_norm REAL, lr REAL,
    tokens INTEGER, duration_s REAL, unix_s REAL, skipped INTEGER NOT NULL,
    superseded INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (generation, step));
CREATE TABLE evaluations (generation INTEGER, step INTEGER, loss REAL, tokens INTEGER,
    sequence INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (generation, step, sequence));
CREATE TABLE samples (generation INTEGER, sequence INTEGER, step INTEGER, tokens TEXT,
    num_prompt_tokens INTEGER, PRIMARY KEY (generation, sequence));
CREATE VIEW course AS SELECT rowid AS row, * FROM metrics WHERE superseded = 0;
CREATE INDEX course_steps ON metrics (step) WHERE superseded = 0;
CREATE INDEX course_skipped ON metrics (step) WHERE skipped = 1 AND superseded = 0;
CREATE INDEX course_evaluations ON evaluations (step) WHERE superseded = 0;
"""


def make(database: sqlite3.Connection) -> None:
    """Make the tables of an empty file, all or none.

    Raises:
        InputError: the file is of another version of Headway.
        sqlite3.Error: it cannot be read or written.
    """
    if not _version(database) and not _sql(database):
        mark = f"PRAGMA user_version = {VERSION};"
        try:
            database.executescript(f"BEGIN IMMEDIATE; {_TABLES} {mark} COMMIT;")
        except sqlite3.Error:
            if database.in_transaction:
                database.execute("ROLLBACK")
            if not _sql(database):  # otherwise another process has just made them
                raise
    check(database)


def check(database: sqlite3.Connection) -> None:
    """Raises InputError: the file is of another version of Headway.

    A number that differs although the tables are these has a flipped bit, and is passed over.
    """
    found = _version(database)
    if found == VERSION or not (tables := _sql(database)) or tables == _own_sql():
        return
    raise InputError(
        f"the journal has schema {found}, and this version of Headway reads schema {VERSION}",
        remedy="use the version of Headway that began the run, or begin a new run",
    )


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


def _sql(database: sqlite3.Connection) -> list[str]:
    """What made the tables, the view and the indices of a file."""
    rows = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return [str(sql) for (sql,) in rows]


@functools.cache
def _own_sql() -> list[str]:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_TABLES)
        return _sql(database)
