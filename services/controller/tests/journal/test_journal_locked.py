"""Another process that is stopped while it has a lock of the journal is named, with the remedy."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from headway.common.polling import wait_until
from headway.controller.journal import locks
from headway.controller.journal.journal import Journal
from headway.controller.journal.writer import JournalWriter

LIMIT_S = 30.0
WRITER = """
import os, signal, sys
from pathlib import Path
from headway.controller.journal.journal import Journal
with Journal(Path(sys.argv[1]), epoch=1, is_shared=True)._transaction() as database:
    database.execute("INSERT INTO facts VALUES ('a', 'b')")
    print("writing", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A shared journal with more events than fit a page."""
    path = tmp_path / "run.sqlite"
    journal = Journal(path, epoch=1, is_shared=True)
    journal.append([journal.event_record("x", {"text": "y" * 100}, 0.0)] * 500)
    journal.close()
    return path


@contextlib.contextmanager
def stopped(program: str, path: Path) -> Iterator[int]:
    """The pid of a process that has stopped with its lock."""
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            yield child.pid
        finally:
            child.kill()


def test_a_stopped_process_that_has_the_lock_is_named_until_it_ends(path: Path) -> None:
    journal = Journal(path, epoch=2, is_shared=True)
    writer = JournalWriter(journal, lambda: None)
    errors: list[str] = []

    def has_failed() -> bool:
        writer.run_callbacks()
        return bool(errors and writer.trouble)

    with stopped(WRITER, path) as pid:
        writer.submit(lambda j: j.begin_generation(1, {}), lambda _, error: errors.append(error))
        writer.append(journal.event_record("z", {}, 0.0))
        assert wait_until(has_failed, LIMIT_S)
        for text in (errors[0], writer.trouble):
            assert f"database is locked; process {pid} (" in text
            assert f"and is stopped: `kill -CONT {pid}`, or end it" in text
    assert wait_until(lambda: not writer.trouble, LIMIT_S)
    assert writer.close(LIMIT_S)


def test_a_process_of_another_machine_can_only_be_guessed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks = tmp_path / "locks"
    no_locks.touch()
    monkeypatch.setattr(locks, "KERNEL_LOCKS", no_locks)
    journal = Journal(path, epoch=2, is_shared=True)
    with contextlib.closing(journal), stopped(WRITER, path):
        with pytest.raises(Exception, match="locked") as caught:
            journal.begin_generation(1, {})
        why = locks.why_locked(caught.value, path, is_shared=True)
        assert "a process of another machine" in why and "end it" in why
        assert locks.why_locked(caught.value, path, is_shared=False) == ""


def test_other_errors_have_no_holder(path: Path) -> None:
    assert locks.why_locked(OSError("disk"), path, is_shared=True) == ""
