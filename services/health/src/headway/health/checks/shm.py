"""Checks that shared memory has space for arenas, rings and flight records."""

from __future__ import annotations

import os
import tempfile

from headway.health.checks.base import MIB, CheckSettings, Finding
from headway.health.sources.host import free_bytes


def check(settings: CheckSettings) -> Finding:
    """Compare free space with the minimum, and allocate a megabyte."""
    free = free_bytes(settings.shm)
    values: dict[str, float | str] = {"free MiB": round(free / MIB, 1)}
    remedy = f"enlarge it: mount -o remount,size=8G {settings.shm}, or docker run --shm-size=8g"
    if free < settings.min_shm_free_bytes:
        wanted = settings.min_shm_free_bytes / MIB
        message = f"{settings.shm} has {max(free, 0) / MIB:.0f} MiB free, below {wanted:.0f}"
        return Finding(False, message, remedy, values)
    try:
        with tempfile.TemporaryFile(dir=settings.shm) as file:
            os.posix_fallocate(file.fileno(), 0, MIB)
    except OSError as error:
        return Finding(
            False, f"cannot allocate in {settings.shm}: {error.strerror}", remedy, values
        )
    return Finding(True, f"{settings.shm} has {free / MIB:.0f} MiB free", values=values)
