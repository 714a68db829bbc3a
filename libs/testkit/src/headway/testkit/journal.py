"""SQL over a run's journal, for what tests and benchmarks ask that no product code does."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from headway.common.node.sqlite import open_to_read
from headway.console.folder.records import RunRecords


def query(run: RunRecords, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The rows; none while the journal or its tables are absent. Raises sqlite3.Error."""
    if not run.folder.database.exists():
        return []
    with contextlib.closing(open_to_read(run.folder.database)) as database:
        try:
            return database.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
