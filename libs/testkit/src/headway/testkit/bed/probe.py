"""Why a bed cannot run here."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from headway.common.node.testing import child_environment

_NAMESPACES = ("mnt", "uts", "ipc", "pid", "net")


@functools.cache
def missing() -> str:
    """One line, "" if nothing is missing."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "separate nodes need root on Linux"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"`{tool}` is not installed (Debian: apt-get install iproute2)"
    absent = [name for name in _NAMESPACES if not Path(f"/proc/self/ns/{name}").exists()]
    if absent:
        return f"the kernel has no namespaces of the kind {', '.join(absent)}"
    command = [sys.executable, "-m", "headway.testkit.bed.trial"]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True)
    return "" if not done.returncode else (done.stderr.splitlines() or ["the probe failed"])[-1]
