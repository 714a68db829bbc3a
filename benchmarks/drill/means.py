"""What a machine must allow for a fault, and why it does not; and a wall clock of a run's own."""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from headway.controller.faults import cgroups
from headway.controller.faults.fault_effects import CLOCK_ENV

CLOCK = Path(__file__).with_name("clock_shim.c")
IMAGE_TOOLS = ("mkfs.ext4", "fsfreeze")


@functools.cache
def why_not(need: str) -> str:
    """Why this machine does not have it; empty if it does.

    Args:
        need: ``freezer`` of processes, ``forks`` that can be made to fail, ``mount`` of a small
            file system, ``frozen disk`` or a preloaded ``clock``; empty for nothing.
    """
    match need:
        case "freezer":
            return "" if cgroups.root("freezer") is not None else "no freezer can be used here"
        case "forks":
            is_unlimited = os.getuid() == 0 and cgroups.root("pids") is None
            return "no limit of processes holds for root here" if is_unlimited else ""
        case "mount":
            return _no_mount()
        case "frozen disk":
            return _no_frozen_disk()
        case "clock":
            has_gcc = shutil.which("gcc") is not None
            return "" if has_gcc else "gcc, which builds the preloaded clock, is not installed"
        case _:
            return ""


def _no_mount() -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return "a tmpfs cannot be mounted here"
        subprocess.run(["umount", folder], check=True)
    return ""


def _no_frozen_disk() -> str:
    missing = [tool for tool in IMAGE_TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    found = subprocess.run(["losetup", "-f"], capture_output=True, check=False)
    return "" if found.returncode == 0 else "no loop device can be used here"


def own_clock(folder: Path) -> dict[str, str]:
    """Build a clock that belongs to one run in ``folder``: a small C library, preloaded, and the
    file with its offset. Returns what processes need in their environment to have it."""
    library, file = folder / "clock.so", folder / "clock"
    words = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(CLOCK), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    file.write_bytes(struct.pack("=q", 0))
    return {"LD_PRELOAD": str(library), CLOCK_ENV: str(file)}
