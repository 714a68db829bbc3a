"""Reads the commands that a run has been given."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

from headway.common.node.sqlite import open_to_read
from headway.common.wire.messages.worker import Steer

STEER = "operation, name, value, count, tokens"
SPENT_ON_RESUME = ("stop", "pause", "checkpoint", "rollback")
"""Commands that have had their effect when an ended run is resumed;
a rate that was set still holds."""


def steer_of(
    sequence: int, operation: str, name: str, value: float, count: int, tokens: str
) -> Steer:
    """A command from the columns ``sequence`` and ``STEER``."""
    return Steer(
        sequence=sequence,
        operation=operation,
        name=name,
        value=value,
        count=count,
        tokens=tuple(json.loads(tokens)),
    )


def read_commands(path: Path) -> list[Steer]:
    """As ``Journal.commands``, but nothing of the file is changed: its run may be live, and of an
    older version."""
    with contextlib.closing(open_to_read(path)) as database:
        sql = "SELECT value FROM facts WHERE key = 'spent_commands'"
        row = database.execute(sql).fetchone()
        return commands_of(database, int(row[0]) if row else 0)


def commands_of(database: sqlite3.Connection, spent: int) -> list[Steer]:
    """Every command in order; those up to ``spent`` are ``retired`` if they had their effect."""
    known = {row[1] for row in database.execute("PRAGMA table_info(commands)")}
    columns = STEER if "count" in known else "operation, name, value, 0, '[]'"
    sql = f"SELECT sequence, {columns} FROM commands ORDER BY sequence"
    rows = database.execute(sql).fetchall()  # at once: a reader keeps writers out until its end
    return [
        steer_of(
            sequence,
            "retired" if sequence <= spent and operation in SPENT_ON_RESUME else operation,
            *rest,
        )
        for sequence, operation, *rest in rows
    ]
