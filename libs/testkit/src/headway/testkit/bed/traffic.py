"""What TCP connections carried, put together from a capture, and what crossed beside them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.testkit.bed.capture import MAGIC

_ETHERNET_BYTES = 14
_IPV4, _IPV6, _ARP = b"\x08\x00", b"\x86\xdd", b"\x08\x06"
_IPV6_BYTES = 40
_SYN = 2
_HALF = 1 << 31


@dataclass
class Stream:
    """One direction of a connection. Bytes that were not recorded are zero."""

    source: str
    source_port: int
    target: str
    target_port: int
    data: bytearray
    first: int
    """Sequence number of ``data[0]``."""


@dataclass(frozen=True)
class Datagram:
    """A frame that is neither of TCP nor of a kernel.

    It has no addresses if it is not of IPv4, and no ports if it is not of UDP.
    """

    source: str
    source_port: int
    target: str
    target_port: int
    data: bytes


def streams(path: Path) -> list[Stream]:
    """All of a pcap file, in the order of their first segment.

    A text that is split over segments, or sent again, is whole here:
    ``any(b"secret" in stream.data for stream in streams(path))``.
    """
    found: list[Stream] = []
    last: dict[tuple[str, int, str, int], Stream] = {}
    for frame in _frames(path):
        if frame[12:14] != _IPV4 or frame[23] != socket.IPPROTO_TCP:
            continue
        source, target, segment = _opened(frame)
        source_port, target_port, sequence = struct.unpack("!HHI", segment[:8])
        ends = (source, source_port, target, target_port)
        is_start = bool(segment[13] & _SYN)
        first = sequence + 1 if is_start else sequence
        if ends not in last or (is_start and last[ends].first != first % (1 << 32)):
            last[ends] = Stream(*ends, bytearray(), first % (1 << 32))
            found.append(last[ends])
        _place(last[ends], first, segment[4 * (segment[12] >> 4) :])
    return found


def datagrams(path: Path) -> list[Datagram]:
    """What a pcap file has beside TCP over IPv4 and what kernels send each other, in its order."""
    found: list[Datagram] = []
    for frame in _frames(path):
        if _is_of_kernel(frame):
            continue
        if frame[12:14] != _IPV4:
            found.append(Datagram("", 0, "", 0, frame))
            continue
        source, target, rest = _opened(frame)
        if frame[23] == socket.IPPROTO_TCP:
            continue
        if frame[23] == socket.IPPROTO_UDP:
            source_port, target_port = struct.unpack("!HH", rest[:4])
            found.append(Datagram(source, source_port, target, target_port, rest[8:]))
        else:
            found.append(Datagram(source, 0, target, 0, rest))
    return found


def _is_of_kernel(frame: bytes) -> bool:
    """Whether the frame is ARP, ICMP or IGMP.

    Each new device of Linux announces itself by ICMPv6, with options before it.
    """
    kind = frame[12:14]
    if kind == _IPV6:
        following = frame[_ETHERNET_BYTES + 6]
        if following == socket.IPPROTO_HOPOPTS:
            following = frame[_ETHERNET_BYTES + _IPV6_BYTES]
        return following == socket.IPPROTO_ICMPV6
    is_icmp = kind == _IPV4 and frame[23] in (socket.IPPROTO_ICMP, socket.IPPROTO_IGMP)
    return is_icmp or kind == _ARP


def _opened(frame: bytes) -> tuple[str, str, bytes]:
    """Addresses and content of a packet of IPv4."""
    packet = frame[_ETHERNET_BYTES:]
    packet = packet[: int.from_bytes(packet[2:4], "big")]  # without padding
    source, target = (socket.inet_ntoa(packet[at : at + 4]) for at in (12, 16))
    return source, target, packet[4 * (packet[0] & 15) :]


def _place(stream: Stream, sequence: int, payload: bytes) -> None:
    # Streams here are shorter than 2 GiB, so an offset above is a number before the first.
    at = (sequence - stream.first) % (1 << 32)
    if not payload or at >= _HALF:
        return
    missing = at + len(payload) - len(stream.data)
    if missing > 0:
        stream.data.extend(bytes(missing))
    stream.data[at : at + len(payload)] = payload


def _frames(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    (magic,) = struct.unpack_from("=I", data)
    if magic != MAGIC:
        raise ValueError(f"{path} is not a capture of this machine")
    at = 24
    while at < len(data):
        (length,) = struct.unpack_from("=I", data, at + 8)
        yield data[at + 16 : at + 16 + length]
        at += 16 + length
