"""State of the node as a whole: load, memory, pressure stalls and free space."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
from headway.common.wire.messages.health import HostSignals

RESOURCES = ("cpu", "memory", "io")


def read_host(disk: Path, shm: Path) -> HostSignals:
    """One reading of the node."""
    memory = psutil.virtual_memory()
    return HostSignals(
        load_1m=psutil.getloadavg()[0],
        num_cpus=os.cpu_count() or 1,
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        pressure=read_pressure(),
        disk_free_bytes=free_bytes(disk),
        shm_free_bytes=free_bytes(shm),
    )


def read_pressure() -> dict[str, float]:
    """Pressure stall information: ``cpu.some`` ... -> fraction of the last 10 s spent waiting, 0..1.

    Empty on a kernel without PSI (Documentation/accounting/psi.rst). psutil does not offer it.
    """
    pressure: dict[str, float] = {}
    for resource in RESOURCES:
        try:
            text = Path(psutil.PROCFS_PATH, "pressure", resource).read_text()
        except OSError:
            continue
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
