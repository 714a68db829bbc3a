"""The name that a worker shows in ``ps``."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from pathlib import Path
from headway.trainer.worker.title import set_title
set_title("tiny", "rank 2 (pp 1 dp 0), node 1")
print(Path("/proc/self/cmdline").read_text().strip(chr(0)))
print(b"HEADWAY_RUN_ID=abc" in Path("/proc/self/environ").read_bytes())
"""


def test_a_worker_shows_its_run_rank_and_place_and_keeps_its_environment() -> None:
    """By which the processes of a run are found and ended."""
    command = [sys.executable, "-c", PROGRAM, "x" * 40]
    env = {"HEADWAY_RUN_ID": "abc"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["headway tiny: rank 2 (pp 1 dp 0), node 1", "True"]
