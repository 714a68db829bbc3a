"""Journals of other processes are read whole, and reading them keeps nobody from writing."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from headway.common.node import sqlite
from headway.common.node.sqlite import is_damage, open_to_read

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


READER = """
import os, signal, sys
from pathlib import Path
from headway.common.node.sqlite import open_to_read
rows = open_to_read(Path(sys.argv[1])).execute("SELECT * FROM facts")
rows.fetchone()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def _made(file: Path, mode: str = "DELETE") -> sqlite3.Connection:
    database = sqlite3.connect(file, isolation_level=None, timeout=0.0)
    database.execute(f"PRAGMA journal_mode={mode}")
    database.execute("CREATE TABLE facts (number INTEGER, value TEXT)")
    rows = [(0, "x" * 400)] * 1000
    database.execute("BEGIN")
    database.executemany("INSERT INTO facts VALUES (?, ?)", rows)
    database.execute("COMMIT")
    return database


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_a_reader_that_is_stopped_in_a_query_keeps_nobody_from_writing(
    tmp_path: Path, mode: str
) -> None:
    file = tmp_path / "run.sqlite"
    with contextlib.closing(_made(file, mode)) as database:
        command = [sys.executable, "-c", READER, str(file)]
        with subprocess.Popen(command) as child:
            try:
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
                database.execute("UPDATE facts SET number = 1")
            finally:
                child.kill()
        with contextlib.closing(open_to_read(file)) as reader:
            assert reader.execute("SELECT DISTINCT number FROM facts").fetchall() == [(1,)]
    assert [path.name for path in tmp_path.iterdir()] == ["run.sqlite"]


def test_what_is_read_beside_a_writer_is_of_one_moment(tmp_path: Path) -> None:
    file = tmp_path / "run.sqlite"
    is_over = threading.Event()

    def write() -> None:
        with contextlib.closing(_made(file)) as database:
            for number in itertools.count():
                database.execute("UPDATE facts SET number = ?", (number,))
                is_ready.set()
                if is_over.wait(0.01):
                    return

    is_ready = threading.Event()
    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert is_ready.wait(30.0)
        seen = []
        for _ in range(30):
            with contextlib.closing(open_to_read(file)) as reader:
                seen += reader.execute("SELECT MIN(number), MAX(number) FROM facts").fetchall()
    finally:
        is_over.set()
        writer.join()
    assert all(least == most for least, most in seen) and seen == sorted(seen)


def test_a_file_that_never_rests_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_S", 0.0)
    file = tmp_path / "run.sqlite"
    _made(file).close()
    with contextlib.closing(open_to_read(file)) as reader:
        assert reader.execute("SELECT COUNT(*) FROM facts").fetchall() == [(1000,)]


@pytest.mark.parametrize("content", [b"\xa5" * 4096, b"\0" * 4096, b"short"])
def test_what_is_not_a_database_is_said_to_be_damaged(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run.sqlite"
    file.write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        open_to_read(file)
    assert is_damage(caught.value)
    assert not is_damage(sqlite3.OperationalError("disk"))


def test_an_absent_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        open_to_read(tmp_path / "absent.sqlite")
    assert list(tmp_path.iterdir()) == []
