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
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from headway.common.wire.messages.health import SilentPeer
from headway.health.sources.probes import Asked, Probes

TABLES = ("tcp", "tcp6")
_REPEATED, _PROBED = "01", "04"
"""Values of the column ``tr``: the timer that repeats, and the timer that probes.

The one runs for segments that are not acknowledged, the other for questions to a peer whose buffer
is full, which its kernel answers too.
"""


@dataclass(frozen=True, slots=True)
class Connection:
    """One to another machine."""

    address: str
    """The peer's address, without port."""
    num_repeats: int
    """How often the oldest segment was sent again, or the peer was asked for room without an
    answer; 0 if nothing waits for an acknowledgement."""
    inode: int


@dataclass(frozen=True, slots=True)
class Peers:
    """What one reading shows."""

    silent: tuple[SilentPeer, ...] = ()
    """Each with the connection to it that repeats most."""
    asked: Asked = field(default_factory=Asked)


class ConnectionSource:
    """What the ranks of this node, which share one network namespace, know of their peers.

    Args:
        own: this node's address in the ranks' network.
    """

    def __init__(self, own: str) -> None:
        self._own, self._probes = own, Probes(own)
        self._since_s: dict[int, float] = {}
        """By inode: since when a connection repeats."""

    def read(self, pids: Collection[int]) -> Peers:
        """The peers of the ranks' connections; the first reading only begins to ask them."""
        now_s, all_peers = time.monotonic(), set[str]()
        worst: dict[str, Connection] = {}
        for one in _connections(pids, sockets_of(pids)):
            all_peers.add(one.address)
            known = worst.get(one.address)
            if one.num_repeats > (known.num_repeats if known is not None else 0):
                worst[one.address] = one
        silent = {one.inode for one in worst.values()}
        self._since_s = {inode: self._since_s.get(inode, now_s) for inode in silent}
        return Peers(
            tuple(
                SilentPeer(
                    address=address,
                    num_repeats=one.num_repeats,
                    age_s=now_s - self._since_s[one.inode],
                )
                for address, one in sorted(worst.items())
            ),
            self._probes.ask(all_peers - {self._own}, first=worst.keys()),
        )

    def close(self) -> None:
        """Ask nobody any more; it may be read again."""
        self._since_s.clear()
        self._probes.close()


def _connections(pids: Collection[int], inodes: Collection[int]) -> Iterator[Connection]:
    """The connections in the network namespace of the first of the processes that lives."""
    for pid in pids:
        folder = Path(psutil.PROCFS_PATH, str(pid), "net")
        tables = []
        for name in TABLES:
            with contextlib.suppress(OSError):  # such as tcp6 of a kernel without IPv6
                tables.append((folder / name).read_text())
        if tables:
            for table in tables:
                yield from _parse(table, inodes)
            return


def _parse(table: str, inodes: Collection[int]) -> Iterator[Connection]:
    """Those of one table that lead to other machines, by sockets of ``inodes``."""
    for line in table.splitlines()[1:]:
        columns = line.split()
        inode = int(columns[9])
        if inode not in inodes:
            continue
        address = _address(columns[2].partition(":")[0])
        if not address.is_loopback and not address.is_unspecified:  # as of a listening socket
            yield Connection(str(address), _num_repeats(columns), inode)


def _num_repeats(columns: list[str]) -> int:
    timer = columns[5].partition(":")[0]
    if timer == _REPEATED:
        return int(columns[6], 16)
    return int(columns[8]) if timer == _PROBED else 0


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """From words of 32 bits, each printed as a number of this machine's byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return getattr(found, "ipv4_mapped", None) or found


def sockets_of(pids: Collection[int]) -> frozenset[int]:
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
