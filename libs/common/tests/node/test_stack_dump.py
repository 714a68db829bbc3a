"""A process that hangs shows where, whatever it hangs in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headway.common.node.process import ProcessId
from headway.common.node.stack_dump import SIGNAL, ask, stack_file
from headway.common.node.testing import wait_until

PROGRAM = """
import ctypes, sys, time
from pathlib import Path
from headway.common.node.stack_dump import answer_in

def holds_the_lock():
    ctypes.PyDLL(None).sleep(600)

def sleeps():
    time.sleep(600)

if sys.argv[2] != "deaf":
    answer_in(Path(sys.argv[1]))
print("up", flush=True)
holds_the_lock() if sys.argv[2] == "gil" else sleeps()
"""


@contextmanager
def hanging(folder: Path, how: str) -> Iterator[ProcessId]:
    command = [sys.executable, "-c", PROGRAM, str(folder), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        try:
            yield ProcessId.of(process.pid)
        finally:
            process.kill()


@pytest.mark.parametrize(("how", "place"), [("gil", "holds_the_lock"), ("sleep", "sleeps")])
def test_a_process_that_hangs_shows_where(tmp_path: Path, how: str, place: str) -> None:
    with hanging(tmp_path, how) as process:
        path = stack_file(tmp_path, process.pid)
        wchan = Path(f"/proc/{process.pid}/wchan")
        wait_until(lambda: "nanosleep" in wchan.read_text(), what="its sleep", timeout_s=30)
        assert ask(process)
        wait_until(lambda: "<module>" in path.read_text(), what="its stack", timeout_s=30)
        assert f"in {place}" in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_process_that_would_be_ended_by_the_signal_is_not_asked(tmp_path: Path) -> None:
    with hanging(tmp_path, "deaf") as process:
        assert not ask(process)
        assert process.alive()


def test_who_has_ended_is_not_asked_and_its_file_is_removed(tmp_path: Path) -> None:
    with hanging(tmp_path, "sleep") as process:
        first = stack_file(tmp_path, process.pid)
        assert first.exists()
    assert not ask(process)
    with hanging(tmp_path, "sleep"):
        assert not first.exists()


def test_the_signal_is_nobody_elses() -> None:
    assert SIGNAL > 32, "a real-time signal"
