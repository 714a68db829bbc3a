"""Only CURVE, and what ranks send each other in the fabric, passes as encrypted."""

from __future__ import annotations

import io
import json
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from headway.testkit.bed.capture import ETHERNET, MAGIC
from headway.testkit.machines.encrypted import pairs_by_curve

CONTROL = ("10.7.1.10", "10.7.1.11")
FABRIC = ("10.250.1.10", "10.250.1.11")
MIXED = (CONTROL[0], FABRIC[1])
SECRET = "5e" * 32
GLOO = b"\x00\x01\xffgloo" + bytes(range(256))
TCP, UDP, SYN, ACK = socket.IPPROTO_TCP, socket.IPPROTO_UDP, 2, 16


def greeting(mechanism: bytes) -> bytes:
    """What libzmq sends first for a socket whose routing id has 17 bytes."""
    return b"\xff\0\0\0\0\0\0\0\x12\x7f\3\1" + mechanism.ljust(20, b"\0") + bytes(32)


def array() -> bytes:
    """A file of numpy."""
    file = io.BytesIO()
    np.save(file, np.zeros(8))
    return file.getvalue()


def packet(ends: Sequence[str], protocol: int, content: bytes) -> bytes:
    """A frame on the bridge."""
    source, target = map(socket.inet_aton, ends)
    length = 20 + len(content)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, protocol, 0, source, target)
    return bytes(12) + b"\x08\x00" + head + content


def segment(sequence: int, flags: int, data: bytes = b"") -> bytes:
    """Of a connection from port 40000 to 20007."""
    return struct.pack("!HHIIBBHHH", 40000, 20007, sequence, 0, 5 << 4, flags, 0, 0, 0) + data


def connection(ends: Sequence[str], *parts: bytes) -> list[bytes]:
    """The frames of one direction, with a segment for each part."""
    frames, sequence = [packet(ends, TCP, segment(99, SYN))], 100
    for part in parts:
        frames.append(packet(ends, TCP, segment(sequence, ACK, part)))
        sequence += len(part)
    return frames


def pairs(folder: Path, *frames: bytes) -> set[tuple[str, str]]:
    """What the check says of a capture of them."""
    head = struct.pack("=IHHiIII", MAGIC, 2, 4, 0, 0, 1 << 18, ETHERNET)
    rows = [struct.pack("=IIII", 0, 0, len(frame), len(frame)) + frame for frame in frames]
    (folder / "wire.pcap").write_bytes(b"".join([head, *rows]))
    (folder / "bundle.json").write_text(json.dumps({"secret": SECRET}))
    return pairs_by_curve(folder / "wire.pcap", folder, fabric=FABRIC)


@pytest.mark.parametrize("ends", [CONTROL, FABRIC, MIXED])
def test_curve_passes_between_any_addresses(tmp_path: Path, ends: tuple[str, str]) -> None:
    whole = greeting(b"CURVE")
    frames = connection(ends, whole[:10], whole[10:11], whole[11:], bytes(range(256)))
    assert pairs(tmp_path, *frames) == {ends}


def test_a_greeting_that_was_cut_off_passes_and_proves_nothing(tmp_path: Path) -> None:
    for length in (1, 10, 11, 14, 31):
        frames = connection(CONTROL, greeting(b"CURVE")[:length])
        assert pairs(tmp_path, *frames) == set(), length


def test_a_connection_without_data_passes(tmp_path: Path) -> None:
    assert pairs(tmp_path, *connection(CONTROL)) == set()


def test_what_ranks_send_each_other_passes_in_the_fabric_only(tmp_path: Path) -> None:
    assert pairs(tmp_path, *connection(FABRIC, GLOO)) == set()
    for ends in (CONTROL, MIXED, MIXED[::-1]):
        with pytest.raises(AssertionError, match="1 in plain"):
            pairs(tmp_path, *connection(ends, GLOO))


PLAIN = {
    "NULL": greeting(b"NULL"),
    "PLAIN": greeting(b"PLAIN"),
    "longer": greeting(b"CURVES"),
    "no signature": b"\xfe" + greeting(b"CURVE")[1:],
    "ZMTP 2": b"\xff\0\0\0\0\0\0\0\1\x7f\1\5" + bytes(20),
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: node-0\r\n\r\n",
    "metrics": b"# TYPE headway_step gauge\nheadway_step 7\n",
    "JSON": json.dumps({"token": f"1790000000.1.{SECRET}"}).encode() + b"\n",
    "array": array(),
    "one byte": b"x",
    "late greeting": b"x" + greeting(b"CURVE"),
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_anything_else_fails_with_both_ends_and_the_first_bytes(
    tmp_path: Path, data: bytes
) -> None:
    with pytest.raises(AssertionError) as raised:
        pairs(tmp_path, *connection(CONTROL, data), *connection(FABRIC, GLOO))
    assert f"10.7.1.10:40000 -> 10.7.1.11:20007 {data[:32]!r}" in str(raised.value)
    assert FABRIC[0] not in str(raised.value)


@pytest.mark.parametrize("mechanism", [b"NULL", b"PLAIN", b"CURVES"])
def test_other_mechanisms_fail_in_the_fabric_too(tmp_path: Path, mechanism: bytes) -> None:
    with pytest.raises(AssertionError, match="1 in plain"):
        pairs(tmp_path, *connection(FABRIC, greeting(mechanism), GLOO))


@pytest.mark.parametrize(
    "text", [b"driver.join/1", b"grad_norm", SECRET.encode(), array(), PLAIN["HTTP"]]
)
@pytest.mark.parametrize("ends", [CONTROL, FABRIC])
def test_a_text_of_ours_fails_wherever_it_crosses(
    tmp_path: Path, ends: tuple[str, str], text: bytes
) -> None:
    parts = [greeting(b"CURVE"), b"..." + text[:5], text[5:]]
    with pytest.raises(AssertionError, match=r"1 in plain: .* has "):
        pairs(tmp_path, *connection(ends, *parts))


def datagram(ends: Sequence[str], port: int) -> bytes:
    return packet(ends, UDP, struct.pack("!HHHH", 40000, port, 8 + 5, 0) + b"hello")


@pytest.mark.parametrize("ends", [CONTROL, FABRIC])
def test_a_datagram_fails_unless_it_asks_for_a_name(tmp_path: Path, ends: tuple[str, str]) -> None:
    assert pairs(tmp_path, datagram(ends, 53)) == set()
    with pytest.raises(AssertionError, match=f"{ends[0]}:40000 -> {ends[1]}:5353 b'hello'"):
        pairs(tmp_path, datagram(ends, 5353))


def of_ipv6(protocol: int, content: bytes = b"") -> bytes:
    head = b"\x60" + bytes(5) + bytes([protocol]) + bytes(33)
    return bytes(12) + b"\x86\xdd" + head + content.ljust(60, b"\0")


ICMP6 = socket.IPPROTO_ICMPV6
OF_KERNELS = {
    "arp": bytes(12) + b"\x08\x06" + bytes(28),
    "icmp": packet(CONTROL, socket.IPPROTO_ICMP, bytes(8)),
    "icmp6": of_ipv6(ICMP6),
    "icmp6 behind options": of_ipv6(socket.IPPROTO_HOPOPTS, bytes([ICMP6, 0])),
}
UNKNOWN = {
    "sctp": packet(CONTROL, 132, bytes(12)),
    "tcp6": of_ipv6(TCP),
    "udp6 behind options": of_ipv6(socket.IPPROTO_HOPOPTS, bytes([UDP, 0])),
    "vlan": bytes(12) + b"\x81\x00" + bytes(46),
}


@pytest.mark.parametrize("frame", OF_KERNELS.values(), ids=OF_KERNELS)
def test_what_kernels_send_passes(tmp_path: Path, frame: bytes) -> None:
    assert pairs(tmp_path, frame) == set()


@pytest.mark.parametrize("frame", UNKNOWN.values(), ids=UNKNOWN)
def test_other_protocols_fail(tmp_path: Path, frame: bytes) -> None:
    with pytest.raises(AssertionError, match="1 in plain"):
        pairs(tmp_path, frame)
