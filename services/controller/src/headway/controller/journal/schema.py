"""The tables of the journal, and what turns those of an older version into them."""

from __future__ import annotations

import contextlib
import sqlite3

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,
    monotonic_s REAL NOT NULL, unix_s REAL NOT NULL, name TEXT NOT NULL, fields TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS clocks (id INTEGER PRIMARY KEY, node INTEGER NOT NULL,
    boot_id TEXT NOT NULL, offset_ns INTEGER NOT NULL, uncertainty_ns INTEGER NOT NULL,
    monotonic_s REAL NOT NULL, unix_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS inputs (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL,
    clock_s REAL NOT NULL, event BLOB NOT NULL, decided TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS generations (generation INTEGER PRIMARY KEY, unix_s REAL NOT NULL,
    rank_nodes TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS commands (sequence INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL,
    unix_s REAL NOT NULL, operation TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL,
    count INTEGER NOT NULL DEFAULT 0, tokens TEXT NOT NULL DEFAULT '[]');
CREATE TABLE IF NOT EXISTS metrics (generation INTEGER, step INTEGER, loss REAL, grad_norm REAL,
    lr REAL, tokens INTEGER, duration_s REAL, unix_s REAL, skipped INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (generation, step));
CREATE TABLE IF NOT EXISTS evaluations (generation INTEGER, step INTEGER, loss REAL, tokens INTEGER,
    sequence INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (generation, step, sequence));
CREATE TABLE IF NOT EXISTS samples (generation INTEGER, sequence INTEGER, step INTEGER, tokens TEXT,
    num_prompt_tokens INTEGER, PRIMARY KEY (generation, sequence));
"""
_ADDED = (
    ("metrics", "skipped", "INTEGER NOT NULL DEFAULT 0"),
    ("commands", "count", "INTEGER NOT NULL DEFAULT 0"),
    ("commands", "tokens", "TEXT NOT NULL DEFAULT '[]'"),
)
_NEW_KEY = "ALTER TABLE evaluations RENAME TO old_evaluations;"
_OLD_ROWS = "INSERT INTO evaluations SELECT *, 0 FROM old_evaluations; DROP TABLE old_evaluations;"
_SKIPPED_INDEX = "CREATE INDEX IF NOT EXISTS metrics_skipped ON metrics (step) WHERE skipped"


def upgrade(database: sqlite3.Connection) -> None:
    """Make the tables and columns that the file lacks.

    Raises:
        sqlite3.Error: the file cannot be read or written.
    """
    if not _tables(database) >= {"facts", "inputs", "metrics", "samples", "clocks"}:
        database.executescript(_SCHEMA)
    if "sequence" not in _columns(database, "evaluations"):
        database.executescript(_NEW_KEY + _SCHEMA + _OLD_ROWS)
    for table, column, kind in _ADDED:  # to a run that an older version began
        if column not in _columns(database, table):
            database.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
    with contextlib.suppress(sqlite3.OperationalError):  # a full disk: readers are slower then
        database.execute(_SKIPPED_INDEX)


def _tables(database: sqlite3.Connection) -> set[str]:
    return {row[0] for row in database.execute("SELECT name FROM sqlite_master")}


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}
