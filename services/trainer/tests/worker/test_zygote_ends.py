"""A zygote ends when it is asked to, whatever it does at that moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import child_environment, private_roots

ASKED_IN_A_FORK = """
import os, signal, sys
from pathlib import Path
from headway.trainer.worker import zygote

signal.signal(signal.SIGTERM, zygote._end)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
pid = {fork}()
if pid == 0:
    zygote._become_worker(Path("missing"), "n0w1")
    os._exit(1)
sys.exit(-os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

ASKED_IN_A_DESTRUCTOR = """
import os, signal, sys
from pathlib import Path
from headway.trainer.worker import zygote

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("asked", flush=True)

def recv(*_):
    Last()
    raise TimeoutError

zygote._Requests.recv = recv
sys.exit(zygote.serve(Path(sys.argv[1]), 0))
"""


@pytest.mark.parametrize(
    ("fork", "signal_number"),
    [("zygote.fork", 15), ("os.fork", 0)],
    ids=["zygote", "without_care"],
)
def test_a_child_that_is_asked_to_end_during_the_fork_ends_as_a_worker(
    fork: str, signal_number: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED_IN_A_FORK.format(fork=fork)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == signal_number, done.stdout + done.stderr


def test_a_request_to_end_that_comes_in_a_destructor_is_obeyed(tmp_path: Path) -> None:
    with private_roots():
        run = RunDir.create(tmp_path / "run", run_id=new_run_id())
        run.config.write_text("")
        NodePaths(run.run_id, 0).create()
        done = subprocess.run(
            [sys.executable, "-c", ASKED_IN_A_DESTRUCTOR, str(run.path)],
            capture_output=True,
            text=True,
            env=child_environment(),
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "it ended before the destructor's next line"
