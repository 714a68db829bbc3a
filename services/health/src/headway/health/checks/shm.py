"""Checks that shared memory has space for arenas, rings and flight records."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass

from headway.health.checks.base import MIB, CheckSettings, Finding
from headway.health.sources.host import free_bytes


@dataclass(frozen=True)
class Space:
    """What shared memory has."""

    free_bytes: int
    """Negative if it could not be asked."""
    trouble: str = ""
    """Why a megabyte could not be allocated; empty if it could."""


def check(settings: CheckSettings) -> Finding:
    """Compare free space with the minimum, and allocate a megabyte."""
    free, trouble = free_bytes(settings.shm), ""
    try:
        with tempfile.TemporaryFile(dir=settings.shm) as file:
            os.posix_fallocate(file.fileno(), 0, MIB)
    except OSError as error:
        trouble = os.strerror(error.errno or 0)
    return judge(Space(free, trouble), settings)


def judge(measured: Space, settings: CheckSettings) -> Finding:
    """The finding about the space in shared memory."""
    free = measured.free_bytes
    values: dict[str, float | str] = {"free MiB": round(free / MIB, 1)}
    remedy = f"enlarge it: mount -o remount,size=8G {settings.shm}, or docker run --shm-size=8g"
    if free < settings.min_shm_free_bytes:
        wanted = settings.min_shm_free_bytes / MIB
        message = f"{settings.shm} has {max(free, 0) / MIB:.0f} MiB free, below {wanted:.0f}"
        return Finding(False, message, remedy, values)
    if measured.trouble:
        message = f"cannot allocate in {settings.shm}: {measured.trouble}"
        return Finding(False, message, remedy, values)
    return Finding(True, f"{settings.shm} has {free / MIB:.0f} MiB free", values=values)
