"""Measures the link between two peers over a TCP connection of their own.

The peer that connects leads: small messages there and back, then for each burst a stream to the
other peer, the rate at which that one received it, and a stream back. Nothing is encrypted, as the
blocks are no secret; the token that the connecting peer must show was agreed over CURVE.
"""

from __future__ import annotations

import math
import socket
import statistics
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.health.measure.streams import (
    BLOCK_BYTES,
    Received,
    accept,
    connect,
    read_exactly,
    receive,
    send,
)

NUM_PINGS = 20
PING = b"\0" * 64
MOST_BYTES = 1 << 40
"""More than any burst carries: its duration ends it."""
_RESULT = struct.Struct("!dI")  # bytes per second, damaged blocks


@dataclass(frozen=True)
class Bursts:
    """How a link is measured."""

    burst_s: float
    num_bursts: int
    limit_s: float
    """Time limit of the whole measurement: a connection that is not done by then is cut."""


@dataclass(frozen=True)
class LinkFigures:
    """What a link carries, as the connecting peer sees it."""

    sent_bytes_per_s: float
    received_bytes_per_s: float
    latency_s: float
    num_damaged: int


def serve_link(listener: socket.socket, token: bytes, bursts: Bursts) -> None:
    """The side that was asked to wait: answer one measurement, then close ``listener``.

    Raises:
        OSError: nobody has come with the token, or the connection broke.
    """
    with listener, accept(listener, token, bursts.limit_s) as stream, _limited(stream, bursts):
        ping = memoryview(bytearray(len(PING)))
        for _ in range(NUM_PINGS):
            read_exactly(stream, ping)
            stream.sendall(ping)
        for _ in range(bursts.num_bursts):
            received = receive(stream)
            stream.sendall(_RESULT.pack(received.bytes_per_s, received.num_damaged))
            send(stream, MOST_BYTES, bursts.burst_s)


def measure_link(address: str, port: int, token: bytes, source: str, bursts: Bursts) -> LinkFigures:
    """The side that connects, from its own address ``source``.

    Raises:
        OSError: nobody listens, the connection broke, or it was slower than ``limit_s`` allows.
    """
    with connect(address, port, token, source) as stream, _limited(stream, bursts):
        latency_s = statistics.median(_ping(stream) for _ in range(NUM_PINGS))
        sent: list[float] = []
        received: list[Received] = []
        num_damaged = 0
        for _ in range(bursts.num_bursts):
            send(stream, MOST_BYTES, bursts.burst_s)
            rate, damaged = _read_result(stream)
            sent.append(rate)
            received.append(receive(stream))
            num_damaged += damaged + received[-1].num_damaged
    return LinkFigures(
        sent_bytes_per_s=max(sent),
        received_bytes_per_s=max(one.bytes_per_s for one in received),
        latency_s=latency_s,
        num_damaged=num_damaged,
    )


def _ping(stream: socket.socket) -> float:
    began_s = time.perf_counter()
    stream.sendall(PING)
    read_exactly(stream, memoryview(bytearray(len(PING))))
    return time.perf_counter() - began_s


def _read_result(stream: socket.socket) -> tuple[float, int]:
    packed = bytearray(_RESULT.size)
    read_exactly(stream, memoryview(packed))
    rate, damaged = _RESULT.unpack(packed)
    if not (math.isfinite(rate) and rate >= 0):
        raise ConnectionError(f"the other peer reports a rate of {rate}")
    return rate, damaged


@contextmanager
def _limited(stream: socket.socket, bursts: Bursts) -> Iterator[None]:
    """Cut the connection when the time is over, and keep little unsent in the kernel.

    Otherwise a burst over a slow link would last until the kernel's buffers are empty.
    """
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, BLOCK_BYTES)
    cut = threading.Timer(bursts.limit_s, _shut, [stream])
    cut.daemon = True
    cut.start()
    try:
        yield
    finally:
        cut.cancel()


def _shut(stream: socket.socket) -> None:
    try:
        stream.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is closed already
        return
