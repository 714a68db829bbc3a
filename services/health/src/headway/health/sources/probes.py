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
from dataclasses import dataclass

PORT = 1
"""tcpmux (RFC 1078), which no system serves any more."""
LIMIT_S = 2.0
"""A connection without an answer is closed, and tried anew."""
KEEP_S = 2.0
"""An answer counts for this long, and its absence until the next try has ended."""
MAX_PROBES = 64
"""Open at once; of more peers, those that were tried longest ago come first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What lately became of the tries."""

    num: int = 0
    """Addresses of which it is known whether they answer."""
    reached: tuple[str, ...] = ()
    """Those that do."""


class Probes:
    """Tried repeatedly as long as somebody asks; no call waits.

    Args:
        own: this node's address in that network, from which the connections come.
    """

    def __init__(self, own: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._own, self._clock_s = own, clock_s
        self._open: dict[str, tuple[socket.socket, float]] = {}
        self._begun_s: dict[str, float] = {}
        """When an address was last tried."""
        self._ended: dict[str, tuple[bool, float]] = {}
        """Whether the newest try that has ended was answered, and when it ended."""

    def ask(self, addresses: Collection[str], first: Collection[str] = ()) -> Asked:
        """Try the ``addresses``, ``first`` before others; the first call only begins to."""
        now_s, wanted = self._clock_s(), set(addresses)
        for address in sorted(self._open.keys() - wanted):
            self._end(address)
        self._begun_s = {one: at_s for one, at_s in self._begun_s.items() if one in wanted}
        self._ended = {one: result for one, result in self._ended.items() if one in wanted}
        for address in list(self._open):
            self._look(address, now_s)
        waiting = [(one not in first, self._begun_s.get(one, 0.0), one) for one in wanted]
        for _, _, address in sorted(waiting)[:MAX_PROBES]:
            if address not in self._open and len(self._open) < MAX_PROBES:
                self._begin(address, now_s)
        lately = {
            address: is_answered
            for address, (is_answered, at_s) in sorted(self._ended.items())
            if now_s - at_s <= (KEEP_S if is_answered else LIMIT_S + KEEP_S)
        }
        return Asked(len(lately), tuple(one for one, is_answered in lately.items() if is_answered))

    def close(self) -> None:
        """Close every connection, and forget the answers."""
        for address in list(self._open):
            self._end(address)
        self._begun_s.clear()
        self._ended.clear()

    def _begin(self, address: str, now_s: float) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        probe = socket.socket(family, socket.SOCK_STREAM)
        probe.setblocking(False)
        self._open[address] = (probe, now_s)
        self._begun_s[address] = now_s
        with contextlib.suppress(OSError):
            probe.bind((self._own, 0))
        self._note(address, probe.connect_ex((address, PORT)), now_s)

    def _look(self, address: str, now_s: float) -> None:
        probe, since_s = self._open[address]
        answer = select.poll()
        answer.register(probe, select.POLLOUT)
        if answer.poll(0):
            self._note(address, probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), now_s)
        elif now_s - since_s > LIMIT_S:
            self._note(address, errno.ETIMEDOUT, now_s)

    def _note(self, address: str, code: int, now_s: float) -> None:
        if code != errno.EINPROGRESS:
            self._ended[address] = (code in (0, errno.ECONNREFUSED), now_s)
            self._end(address)

    def _end(self, address: str) -> None:
        self._open.pop(address)[0].close()
