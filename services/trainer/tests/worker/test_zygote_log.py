"""A forked worker starts without its log while the log's disk is full, and the
zygote's log says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from headway.common.node.run_dir import RunDir, new_run_id
from headway.common.node.testing import child_environment

SCRIPT = """
import os, subprocess, sys
from pathlib import Path
from headway.common.log import setup
from headway.common.node.run_dir import RunDir
from headway.trainer.worker.zygote import _become_worker
run_dir = Path(sys.argv[1])
logs = RunDir(run_dir).logs
subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "none", logs], check=True)  # itself
setup("zygote", node=0)
child = os.fork()
if child == 0:
    _become_worker(run_dir, "n0w0")
    (run_dir / "out").write_text(os.readlink("/proc/self/fd/2"))
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_worker_is_forked_without_a_log_while_the_disk_is_full(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    run = RunDir.create(tmp_path / "run", run_id=new_run_id())
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", SCRIPT, run.path],
        capture_output=True,
        text=True,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (run.path / "out").read_text() == "/dev/null"
    assert "no log can be opened" in done.stderr and "n0w0.log" in done.stderr
