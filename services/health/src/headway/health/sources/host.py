"""How does the node as a whole feel? Load, memory, pressure stalls and free space."""

from __future__ import annotations

import os
from pathlib import Path

from headway.common.wire.messages.health import HostSignals
from headway.health.sources.proc import PROC

RESOURCES = ("cpu", "memory", "io")


def read_host(disk: Path, shm: Path, root: Path = PROC) -> HostSignals:
    """One reading of the node; what the kernel does not offer keeps the field's default."""
    memory = _meminfo(root)
    return HostSignals(
        load_1m=_load(root),
        num_cpus=os.cpu_count() or 1,
        memory_total_bytes=memory.get("MemTotal", 0),
        memory_available_bytes=memory.get("MemAvailable", 0),
        pressure=read_pressure(root),
        disk_free_bytes=free_bytes(disk),
        shm_free_bytes=free_bytes(shm),
    )


def read_pressure(root: Path = PROC) -> dict[str, float]:
    """Pressure stall information: ``cpu.some`` ... -> fraction of the last 10 s in which tasks waited, 0..1.

    Empty on a kernel without PSI (Documentation/accounting/psi.rst).
    """
    pressure: dict[str, float] = {}
    for resource in RESOURCES:
        try:
            text = (root / "pressure" / resource).read_text()
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


def _load(root: Path) -> float:
    try:
        return float((root / "loadavg").read_text().split()[0])
    except OSError:
        return 0.0


def _meminfo(root: Path) -> dict[str, int]:
    try:
        text = (root / "meminfo").read_text()
    except OSError:
        return {}
    lines = (line.split() for line in text.splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines if len(fields) == 3}
