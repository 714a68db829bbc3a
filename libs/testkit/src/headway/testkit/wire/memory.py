"""How much memory a process holds, for tests that nothing grows."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(pid: int | None = None) -> int:
    """Resident set of a process, default this one, in bytes: field 2 of /proc/<pid>/statm (proc(5))."""
    text = Path(f"/proc/{pid or os.getpid()}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGESIZE")
