"""The interface of a check: its settings and its finding."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class CheckSettings:
    """Folders and limits of the checks; each limit with its origin."""

    disk: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Folder in which the disk check writes."""
    shm: Path = Path("/dev/shm")
    min_disk_free_bytes: int = 1 * GIB
    """Room for a few checkpoints of a small model and the logs of a week."""
    min_shm_free_bytes: int = 256 * MIB
    """Containers come with 64 MiB, too little for arenas and rings of even a tiny run."""
    min_disk_bytes_per_s: int = 5 * MIB
    """Below a tenth of a worn hard disk's rate; a healthy cloud disk gives 100 MiB/s
    and more with fsync."""
    min_loopback_bytes_per_s: int = 50 * MIB
    """A tenth of what a 2-core machine reaches: 760 to 980 MiB/s, measured with checksums."""
    max_clock_skew: float = 0.01
    """Wall clock against monotonic clock; ntpd never slews faster than 0.0005 (ntp_adjtime(3))."""
    memory_bytes: int = 64 * MIB
    """Bytes that the memory check writes with each pattern."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a check that finished."""

    ok: bool
    message: str
    """One line: what was found, with the measured value."""
    remedy: str = ""
    """What to do about it if the check failed."""
    values: dict[str, float | str] = field(default_factory=dict)
