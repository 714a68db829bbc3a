"""What a machine must allow for a drill, and why it does not."""

from __future__ import annotations

import os
import subprocess
import tempfile

from headway.controller.faults import cgroups

from benchmarks.drills import clock


def no_freezer() -> str:
    """Why nothing can be frozen here; empty if it can."""
    return "" if cgroups.root("freezer") is not None else "no freezer can be used here"


def no_mount() -> str:
    """Why no file system of its own can be filled here; empty if one can."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return "a tmpfs cannot be mounted here"
        subprocess.run(["umount", folder], check=True)
    return ""


def cannot() -> dict[str, str]:
    """Kinds of fault that cannot be done on this machine, and why."""
    freezing = dict.fromkeys(
        ("freeze", "slow", "slow_disk", "silent_node", "returning_node"), no_freezer()
    )
    spawning = os.getuid() == 0 and cgroups.root("pids") is None
    reasons = {
        **freezing,
        "spawn_failure": "no limit of processes holds for root here" if spawning else "",
        "full_disk": no_mount(),
        "clock_step": clock.why_not(),
    }
    return {kind: reason for kind, reason in reasons.items() if reason}
