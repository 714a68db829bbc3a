"""Which machine this is: its identity, this boot of it, and whether a process id means anything."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_uid() -> str:
    """The machine's id, the same at each boot.

    It is ``/etc/machine-id`` (machine-id(5)), else the host name.
    """
    try:
        return _MACHINE_ID.read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()


def boot_id() -> str:
    """New at each boot of the kernel, random(4); empty where it cannot be read."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


@functools.cache
def process_space() -> str:
    """Processes with the same one can look each other up by pid: this boot and pid namespace.

    Containers on one machine share its boot id, but not their pids.
    """
    return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - not a path
