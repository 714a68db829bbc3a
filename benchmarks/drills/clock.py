"""A wall clock that belongs to one run:
a small C library, preloaded, and the file with its offset."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from headway.controller.faults.fault_effects import CLOCK_ENV

SOURCE = Path(__file__).with_name("clock_shim.c")


def why_not() -> str:
    """Why no run can have a clock of its own here; empty if it can."""
    return "" if shutil.which("gcc") else "gcc, which builds the preloaded clock, is not installed"


def environment(folder: Path) -> dict[str, str]:
    """Build the clock in ``folder``; returns what processes need
    in their environment to have it."""
    library, file = folder / "clock.so", folder / "clock"
    words = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(words, check=True, capture_output=True)
    file.write_bytes(struct.pack("=q", 0))
    return {"LD_PRELOAD": str(library), CLOCK_ENV: str(file)}
