"""Peers that do not acknowledge what the ranks of this node send them, by the kernel's tables.

What waits in an unacknowledged connection was sent and got lost, or its answer was: a network
that carries nothing, or a machine without power. A peer that merely hangs is another matter, since
its kernel still acknowledges. Nothing of a rank is touched (proc_net_tcp.txt of the kernel's
documentation, RFC 6298 for the intervals).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from headway.common.wire.messages.health import SilentPeer
from headway.health.sources.probes import Probes

TABLES = ("tcp", "tcp6")
_RETRANSMITS = "01"
"""Of the column ``tr``: the timer for segments that are not acknowledged runs."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One to another machine."""

    address: str
    """Of the peer, without port."""
    num_repeats: int
    """How often the oldest segment was sent again; 0 if nothing waits for an acknowledgement."""
    inode: int


class ConnectionSource:
    """What the ranks of this node, which share one network namespace, know of their peers.

    Args:
        own: this node's address in the ranks' network.
    """

    def __init__(self, own: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._own, self._probes = own, Probes(own, clock_s)
        self._since_s: dict[str, float] = {}

    def read(self, pids: Collection[int]) -> tuple[tuple[SilentPeer, ...], tuple[str, ...]]:
        """The silent peers, each with the most repetitions of any connection to it, and the
        addresses of peers that answer; the first reading only begins to ask them."""
        now_s, own = self._clock_s(), _sockets_of(pids)
        repeats: dict[str, int] = {}
        for one in _connections(pids):
            if one.inode in own:
                repeats[one.address] = max(one.num_repeats, repeats.get(one.address, 0))
        silent = {address: count for address, count in repeats.items() if count}
        self._since_s = {address: self._since_s.get(address, now_s) for address in silent}
        peers = tuple(
            SilentPeer(address=address, num_repeats=count, age_s=now_s - self._since_s[address])
            for address, count in sorted(silent.items())
        )
        return peers, self._probes.reached(repeats.keys() - {self._own})

    def close(self) -> None:
        """Ask nobody any more; it may be read again."""
        self._since_s.clear()
        self._probes.close()


def _connections(pids: Collection[int]) -> Iterator[Connection]:
    """Of the network namespace of the first of the processes that lives."""
    for pid in pids:
        folder = Path(psutil.PROCFS_PATH, str(pid), "net")
        with contextlib.suppress(OSError):
            for table in TABLES:
                yield from _parse((folder / table).read_text())
            return


def _parse(table: str) -> Iterator[Connection]:
    """Those of one table that lead to other machines."""
    for line in table.splitlines()[1:]:
        columns = line.split()
        waits = columns[5].partition(":")[0] == _RETRANSMITS
        num_repeats = int(columns[6], 16) if waits else 0
        address = _address(columns[2].partition(":")[0])
        if not address.is_loopback and not address.is_unspecified:  # as of a listening socket
            yield Connection(str(address), num_repeats, int(columns[9]))


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """From words of 32 bits, each printed as a number of this machine's byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return getattr(found, "ipv4_mapped", None) or found


def _sockets_of(pids: Collection[int]) -> frozenset[int]:
    """Inodes of the sockets that the processes have open."""
    found: set[int] = set()
    for pid in pids:
        folder = Path(psutil.PROCFS_PATH, str(pid), "fd")
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError):
                    target = str((folder / name).readlink())
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return frozenset(found)
