"""Processes that are looked at, frozen, or started while the log's disk is full."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headway.common.node.process import GONE, ProcessId
from headway.common.node.testing import (
    child_environment,
    doomed,
    frozen,
    identity,
    python_child,
    read_line,
    wait_until,
)

SLEEP = "import signal; print('up', flush=True); signal.pause()"
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
NOBODY = ctypes.c_void_p()


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """As a debugger does it: the process is stopped until the block ends."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    if ptrace(PTRACE_ATTACH, pid, NOBODY, NOBODY):
        pytest.skip(f"ptrace is not permitted here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(pid, 0)
    yield
    assert ptrace(PTRACE_DETACH, pid, NOBODY, NOBODY) == 0


def test_a_process_under_a_debugger_is_not_stopped() -> None:
    with python_child(SLEEP) as child:
        assert read_line(child) == "up"
        process = identity(child)
        with traced(child.pid):
            wait_until(lambda: process.state() == "t", what="ptrace stop")
            assert process.alive() and not process.is_terminating()
        wait_until(lambda: process.state() == "S", what="sleep")


def test_a_frozen_process_is_doomed_once_sigkill_waits_for_it() -> None:
    with python_child(SLEEP) as child:
        assert read_line(child) == "up"
        process = identity(child)
        assert not process.is_terminating()
        try:
            with frozen(child.pid):
                assert process.alive() and not process.is_terminating()
            with doomed(child.pid):
                assert process.state() not in (GONE, "Z")
        except PermissionError as error:
            pytest.skip(str(error))
        wait_until(lambda: not process.alive(), what="its end once it runs again")


def test_a_stopped_process_is_not_doomed_and_a_dead_one_is() -> None:
    with python_child(SLEEP) as child:
        assert read_line(child) == "up"
        process = identity(child)
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process.state() == "T", what="stop")
        assert not process.is_terminating()
        process.kill()
        wait_until(process.is_terminating, what="its end")
        assert ProcessId(0, 0).is_terminating()


SPAWN_ON_FULL_DISK = """
import os, subprocess, sys
from pathlib import Path
from headway.common.log import setup
from headway.common.node.process import spawn
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "none", folder], check=True)  # itself
setup("parent")
code = "import os; print(os.readlink('/proc/self/fd/1'), file=open(os.environ['TO'], 'w'))"
child = spawn([sys.executable, "-c", code], folder / "child.log", dict(os.environ, TO=sys.argv[2]))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))
"""


def test_a_program_starts_without_a_log_while_the_disk_is_full(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        [
            "unshare",
            "-m",
            sys.executable,
            "-c",
            SPAWN_ON_FULL_DISK,
            tmp_path / "disk",
            tmp_path / "out",
        ],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == "/dev/null\n"
    assert "no log can be opened" in done.stderr and "No space left" in done.stderr
