"""A zygote ends when it is asked to, whatever it does at that moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKED_IN_A_FORK = """
import os, signal, sys
from headway.trainer import zygote

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
if {fork}() == 0:
    os._exit(0)
print("the request was lost")
"""


@pytest.mark.parametrize(
    ("fork", "code"), [("zygote.fork", 3), ("os.fork", 0)], ids=["zygote", "without_care"]
)
def test_a_request_to_end_that_comes_during_a_fork_is_not_lost(fork: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED_IN_A_FORK.format(fork=fork)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
