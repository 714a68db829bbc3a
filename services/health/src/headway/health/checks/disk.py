"""Checks that the node can write a file durably, as a checkpoint does, and read it back."""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from headway.health.checks.base import GIB, MIB, CheckSettings, Finding
from headway.health.sources.host import free_bytes

NUM_BYTES = 16 * MIB


@dataclass(frozen=True)
class Written:
    """What the folder's file system did."""

    free_bytes: int
    """Negative if it could not be asked."""
    bytes_per_s: float = 0.0
    is_whole: bool = True
    """Whether the bytes that were read are those that were written."""
    trouble: str = ""
    """Why nothing could be written; empty if it could."""


def check(settings: CheckSettings) -> Finding:
    """Write 16 MiB into the folder, sync, read back and remove; nothing if it is nearly full."""
    free = free_bytes(settings.disk)
    if free < settings.min_disk_free_bytes:
        return judge(Written(free), settings)
    try:
        rate, is_whole = write_and_read(settings.disk)
    except OSError as error:
        return judge(Written(free, trouble=os.strerror(error.errno or 0)), settings)
    return judge(Written(free, rate, is_whole), settings)


def judge(measured: Written, settings: CheckSettings) -> Finding:
    """The finding about what was written."""
    free, rate = measured.free_bytes, measured.bytes_per_s
    values: dict[str, float | str] = {"free GiB": round(free / GIB, 2)}
    if free < settings.min_disk_free_bytes:
        wanted = settings.min_disk_free_bytes / GIB
        message = f"{settings.disk} has {max(free, 0) / GIB:.2f} GiB free, below {wanted:.2f}"
        return Finding(
            False, message, "free space there, or choose another folder with --disk", values
        )
    if measured.trouble:
        message = f"cannot write to {settings.disk}: {measured.trouble}"
        return Finding(False, message, "check mount and permissions", values)
    values["MiB/s"] = round(rate / MIB, 1)
    if not measured.is_whole:
        return Finding(
            False,
            f"{settings.disk} returned other bytes than were written",
            "drain the node",
            values,
        )
    if rate < settings.min_disk_bytes_per_s:
        wanted = settings.min_disk_bytes_per_s / MIB
        message = f"{settings.disk} writes {rate / MIB:.1f} MiB/s with fsync, below {wanted:.1f}"
        return Finding(
            False, message, "check what else writes there (iostat), or use a local disk", values
        )
    return Finding(True, f"{settings.disk} writes {rate / MIB:.0f} MiB/s with fsync", values=values)


def write_and_read(folder: Path) -> tuple[float, bool]:
    """(bytes per second of write and fsync, whether the bytes came back). Raises OSError."""
    block = os.urandom(NUM_BYTES)
    began_s = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:  # nameless: nothing is left if we are killed
        file.write(block)
        file.flush()
        os.fsync(file.fileno())
        elapsed_s = time.perf_counter() - began_s
        # Drop the pages, so that the read goes to the disk if the system allows it.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        read = file.read()
    return NUM_BYTES / elapsed_s, zlib.crc32(read) == zlib.crc32(block)
