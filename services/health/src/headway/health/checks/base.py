"""The interface of a check: its settings and its finding."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from headway.health.judgement import Thresholds

MIB = 1 << 20
GIB = 1 << 30
WITHIN_MACHINE = Thresholds(num_deviations=3.0, least_difference=0.4)
"""Repeated streams on two busy cores differed by up to 30 %; half of a NIC's lanes are 50 %."""
WITHIN_FLEET = Thresholds(num_deviations=3.0, least_difference=0.2)
"""SuperBench calls 5 % below the baseline defective (USENIX ATC 2024); checks of a second vary more
than its benchmarks of minutes."""


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
    """Bytes that the memory checks write with each pattern, also on each GPU."""
    mounts: tuple[Path, ...] = ()
    """Folders of file systems that must be there, such as the shared one with the checkpoints."""
    mount_answer_s: float = 5.0
    """Longest time that such a folder may take; a healthy network file system needs milliseconds,
    and one whose server is gone none of the hard mount's retries ends (nfs(5))."""
    mesh: Thresholds = WITHIN_MACHINE
    """When a NIC, GPU or memory node counts as slow next to the others of this machine."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a check that finished."""

    ok: bool | None
    """None: it was not run, as it does not apply to this machine. Neither healthy nor failed."""
    message: str
    """One line: what was found, with the measured value; or why it was not run."""
    remedy: str = ""
    """What to do about it if the check failed."""
    values: dict[str, float | str] = field(default_factory=dict)
    """What was measured. Names that end in a rate, such as ``MiB/s``, are compared between
    machines."""

    @property
    def failed(self) -> bool:
        return self.ok is False


def not_run(reason: str) -> Finding:
    """What a check returns on a machine that it does not apply to."""
    return Finding(None, reason)
