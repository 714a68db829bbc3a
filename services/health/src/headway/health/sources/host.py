"""State of the node as a whole: load, memory, pressure stalls and free space."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from headway.common.wire.messages.health import HostSignals
from headway.common.wire.side_thread import SideThread
from headway.health.sources.changes import read_text

RESOURCES = ("cpu", "memory", "io")
DISK_PERIOD_S = 1.0
DISK_STALE_S = 10.0
"""Older values are dropped, as the file system has not answered since."""


class FreeSpace:
    """Free bytes of a file system that may hang, queried on a separate thread."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock_s = path, clock_s
        self._newest = (float("-inf"), -1)
        self._thread = SideThread("disk", self._ask)

    def newest(self) -> int:
        """Bytes from the newest answer; -1 if it is older than ``DISK_STALE_S``. Never blocks."""
        asked_s, nbytes = self._newest
        return nbytes if self._clock_s() - asked_s <= DISK_STALE_S else -1

    def close(self) -> None:
        self._thread.close()

    def _ask(self) -> float:
        nbytes = free_bytes(self._path)
        self._newest = (self._clock_s(), nbytes)
        return DISK_PERIOD_S


def read_host(disk_free_bytes: int, shm: Path) -> HostSignals:
    """One reading of the node; none of it touches a disk."""
    memory = psutil.virtual_memory()
    return HostSignals(
        load_1m=psutil.getloadavg()[0],
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        pressure=read_pressure(),
        disk_free_bytes=disk_free_bytes,
        shm_free_bytes=free_bytes(shm),
    )


def read_pressure(resources: Iterable[str] = RESOURCES) -> dict[str, float]:
    """Pressure stall information: fractions of the last 10 s spent waiting, 0..1.

    The keys are ``cpu.some`` and the like.

    Empty on a kernel without PSI (Documentation/accounting/psi.rst). psutil does not provide it.
    """
    pressure: dict[str, float] = {}
    for resource in resources:
        text = read_text(Path(psutil.PROCFS_PATH, "pressure", resource)) or ""
        for line in text.splitlines():
            kind, *fields = line.split()
            averages = dict(part.split("=", 1) for part in fields)
            pressure[f"{resource}.{kind}"] = float(averages["avg10"]) / 100
    return pressure


def free_bytes(path: Path) -> int:
    """Bytes an unprivileged process may still write below ``path``, -1 when it does not exist."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return -1
    return stat.f_bavail * stat.f_frsize
