"""A journal whose writer died in the middle of a write can be read."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.node.sqlite import open_to_read

WRITER = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")  # so that changed pages are in the file before the end
database.execute("BEGIN IMMEDIATE")
database.execute("UPDATE facts SET value = 'half'")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_dead_writer_left_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "run.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE facts (key TEXT, value TEXT)")
        rows = [(str(number), "whole" * 400) for number in range(1000)]
        database.executemany("INSERT INTO facts VALUES (?, ?)", rows)
        database.commit()
    subprocess.run([sys.executable, "-c", WRITER, str(file)], check=False)
    plain = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    with contextlib.closing(plain), pytest.raises(sqlite3.OperationalError, match="readonly"):
        plain.execute("SELECT * FROM facts").fetchall()
    with contextlib.closing(open_to_read(file)) as reader:
        values = {value for (value,) in reader.execute("SELECT value FROM facts")}
        assert values == {"whole" * 400}
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM facts")


def test_an_absent_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        open_to_read(tmp_path / "absent.sqlite")
    assert list(tmp_path.iterdir()) == []
