"""What the kernel knows of each TCP connection: round trips, losses, bytes and what limits them.

Asked by a netlink socket of NETLINK_SOCK_DIAG (sock_diag(7)), which needs no privilege and touches
no process. The structures are those of linux/inet_diag.h and linux/tcp.h; a kernel only ever
appends to ``tcp_info``, and one before 4.19 lacks what is needed here.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

LIMIT_S: Final = 2.0
"""Longest wait for one part of the kernel's answer, which takes a fraction of a millisecond."""
_PROTOCOL, _BY_FAMILY = 4, 20
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_INFO = 2
"""INET_DIAG_INFO, the attribute with ``tcp_info``."""
_ESTABLISHED: Final = 1 << 1
_BUFFER_BYTES = 1 << 18
_HEADER: Final = struct.Struct("=IHHII")
_ASKED: Final = struct.Struct("=BBBxI48x")
_ROW: Final = struct.Struct("=BBBBHH16s16sIQIIIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_COUNTS: Final = struct.Struct("=2xB21xI40xII24xI16xQ12xI12xI8xQQ16xQ8xI")
"""Fields of ``tcp_info``: retransmits, unacked, rtt, rttvar, total_retrans, bytes_acked, segs_in,
data_segs_out, busy_time, rwnd_limited, bytes_sent, dsack_dups; times in microseconds."""


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """One established connection at one moment. Counts are since it was opened."""

    cookie: int
    """Identifies the socket until the next boot."""
    inode: int
    """0 of a connection that nobody has accepted yet."""
    own: Address
    peer: Address
    num_repeats: int
    """How often the oldest segment was sent again without an answer."""
    num_unacked: int
    """Segments on their way, or lost."""
    rtt_s: float
    """Smoothed round trip, which includes the time for which the peer delays an acknowledgement."""
    rtt_spread_s: float
    """Mean deviation of single round trips from it."""
    num_resent: int
    """Segments that were sent again."""
    num_needless: int
    """Segments of which the peer said that it had them already."""
    num_data_segments: int
    """Segments with data that were sent, repetitions included."""
    num_received: int
    """Segments that came, acknowledgements included."""
    acked_bytes: int
    busy_s: float
    """Time in which something was to be sent or to be acknowledged."""
    held_s: float
    """Part of that time in which the peer had no room, since it did not read."""
    sent_bytes: int
    """Repetitions included."""


def connections() -> list[TcpInfo]:
    """All established connections of the calling thread's network namespace.

    Raises:
        OSError: the kernel does not answer such questions, or not in time.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _PROTOCOL) as kernel:
        kernel.settimeout(LIMIT_S)
        return [
            found for family in (socket.AF_INET, socket.AF_INET6) for found in _ask(kernel, family)
        ]


def _ask(kernel: socket.socket, family: int) -> Iterator[TcpInfo]:
    asked = _ASKED.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _ESTABLISHED)
    size = _HEADER.size + len(asked)
    kernel.send(_HEADER.pack(size, _BY_FAMILY, _REQUEST | _DUMP, family, 0) + asked)
    while True:
        answer = memoryview(kernel.recv(_BUFFER_BYTES))
        for kind, body in _messages(answer):
            if kind == _DONE:
                return
            if kind == _ERROR:
                (code,) = struct.unpack_from("=i", body)
                raise OSError(-code, f"the kernel lists no TCP connections: {os.strerror(-code)}")
            if kind == _BY_FAMILY and (found := parse(body)) is not None:
                yield found


def _messages(answer: memoryview) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at + _HEADER.size <= len(answer):
        size, kind, *_ = _HEADER.unpack_from(answer, at)
        if size < _HEADER.size or at + size > len(answer):
            raise OSError(f"the kernel's list of connections is cut off at byte {at}")
        yield kind, answer[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def parse(body: memoryview) -> TcpInfo | None:
    """One message about a connection; None if it lacks what is needed."""
    if len(body) < _ROW.size:
        return None
    family, _, _, _, _, _, own, peer, _, cookie, _, _, _, _, inode = _ROW.unpack_from(body)
    info = _attribute(body[_ROW.size :])
    if info is None or len(info) < _COUNTS.size:
        return None
    (
        num_repeats, num_unacked, rtt_us, spread_us, num_resent, acked_bytes,
        num_received, num_data, busy_us, held_us, sent_bytes, num_needless,
    ) = _COUNTS.unpack_from(info)  # fmt: skip
    return TcpInfo(
        cookie, inode, _address(own, family), _address(peer, family), num_repeats, num_unacked,
        rtt_us / 1e6, spread_us / 1e6, num_resent, num_needless, num_data, num_received,
        acked_bytes, busy_us / 1e6, held_us / 1e6, sent_bytes,
    )  # fmt: skip


def _attribute(rest: memoryview) -> memoryview | None:
    """The value of ``_INFO`` among the attributes of a message."""
    at = 0
    while at + _ATTRIBUTE.size <= len(rest):
        size, kind = _ATTRIBUTE.unpack_from(rest, at)
        if size < _ATTRIBUTE.size:
            return None
        if kind == _INFO:
            return rest[at + _ATTRIBUTE.size : at + size]
        at += (size + 3) & ~3
    return None


def _address(packed: bytes, family: int) -> Address:
    found = ipaddress.ip_address(packed[:4] if family == socket.AF_INET else packed)
    return getattr(found, "ipv4_mapped", None) or found
