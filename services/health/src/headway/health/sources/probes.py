"""Which addresses of the ranks' network can be reached, found out without a service there.

A connection is tried to a port on which nobody listens: the refusal comes from the other kernel,
and not a byte of ours is sent. Only an answer counts. Silence may be a firewall's.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Callable, Collection

PORT = 1
"""tcpmux (RFC 1078), which no system serves any more."""
KEEP_S = 2.0
"""An address counts as reached for this long after its answer."""
LIMIT_S = 2.0
"""A connection without an answer is closed, and tried anew."""
MAX_PROBES = 64
"""Open at once; a rank has a few peers in each of its groups."""


class Probes:
    """Tried repeatedly as long as somebody asks; no call waits.

    Args:
        own: this node's address in that network, from which the connections come.
    """

    def __init__(self, own: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._own, self._clock_s = own, clock_s
        self._open: dict[str, tuple[socket.socket, float]] = {}
        self._answered_s: dict[str, float] = {}

    def reached(self, addresses: Collection[str]) -> tuple[str, ...]:
        """Those of ``addresses`` that answered lately; the first call only begins to ask."""
        now_s = self._clock_s()
        for address in sorted(self._open.keys() - set(addresses)):
            self._end(address)
        for address in sorted(addresses):
            if address in self._open:
                self._look(address, now_s)
            if address not in self._open and len(self._open) < MAX_PROBES:
                self._begin(address, now_s)
        return tuple(
            address
            for address in sorted(addresses)
            if now_s - self._answered_s.get(address, float("-inf")) <= KEEP_S
        )

    def close(self) -> None:
        """Close every connection, and forget the answers."""
        for address in list(self._open):
            self._end(address)
        self._answered_s.clear()

    def _begin(self, address: str, now_s: float) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        probe = socket.socket(family, socket.SOCK_STREAM)
        probe.setblocking(False)
        self._open[address] = (probe, now_s)
        with contextlib.suppress(OSError):
            probe.bind((self._own, 0))
        self._note(address, probe.connect_ex((address, PORT)), now_s)

    def _look(self, address: str, now_s: float) -> None:
        probe, since_s = self._open[address]
        if select.select([], [probe], [], 0)[1]:
            self._note(address, probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), now_s)
        elif now_s - since_s > LIMIT_S:
            self._end(address)

    def _note(self, address: str, code: int, now_s: float) -> None:
        if code == errno.EINPROGRESS:
            return
        if code in (0, errno.ECONNREFUSED):
            self._answered_s[address] = now_s
        self._end(address)

    def _end(self, address: str) -> None:
        self._open.pop(address)[0].close()
