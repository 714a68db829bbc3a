"""The network interfaces of this machine that can carry a job's traffic, with their addresses."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import psutil

SYSFS = Path("/sys/class/net")


def nics(sysfs: Path = SYSFS) -> dict[str, str]:
    """Name -> address of each interface that is up, without loopback and link-local addresses.

    Interfaces with a device behind them are preferred; only where there is none, as inside a
    container, the others count too. So bridges of container engines are not NICs of the machine.
    """
    stats = psutil.net_if_stats()
    found = {
        name: address
        for name, entries in sorted(psutil.net_if_addrs().items())
        if name in stats and stats[name].isup and (address := _usable(entries))
    }
    with_device = {name: found[name] for name in found if (sysfs / name / "device").exists()}
    return with_device or found


def _usable(entries: list[Any]) -> str:
    """The first address that other machines could reach, IPv4 before IPv6; empty if none."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in entries:
            address = str(entry.address)
            is_local = address.startswith(("127.", "169.254.", "fe80:")) or address == "::1"
            if entry.family == family and not is_local and "%" not in address:
                return address
    return ""
