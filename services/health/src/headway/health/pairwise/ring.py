"""Sums arrays over a ring of peers by plain sockets, and times what each member receives.

This is the ring all-reduce (Patarasuk and Yuan, Journal of Parallel and Distributed Computing
2009): each of K members passes a K-th of the array on 2 (K - 1) times. All members are as slow as
the slowest edge, so a member times its own edge from the first byte of a part to the last one: on
any edge but the slow one a part arrives as soon as it was sent.

Every member knows what every part must be, so it counts a damaged part where it arrives, and passes
on the right one: what one member damages is not counted on the edges behind it.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from headway.health.measure.streams import BLOCK_BYTES, accept, connect

Words = npt.NDArray[np.uint32]
_MIX = np.uint32(2654435761)
"""Knuth's multiplier: makes all bits of neighbouring words differ."""
LEAST_TIMED_S = 1e-6
FIRST_SHARE = 8
"""The time of a part counts from its first piece, which is an eighth of it at most."""


@dataclass(frozen=True)
class Place:
    """A member's place in its ring."""

    number: int
    size: int
    next_address: str
    next_port: int
    next_token: bytes
    num_words: int
    """Words in the array, a multiple of ``size``."""
    limit_s: float
    """Time limit of the whole sum: connections that are not done by then are cut."""


@dataclass
class Edge:
    """What a member has seen of the ring, also if it broke."""

    has_reached_next: bool = False
    duration_s: float = 0.0
    """Duration of the whole sum; 0.0 if it was not finished."""
    num_damaged: int = 0
    """Parts that were not what the member before had to send."""
    rates: list[float] = field(default_factory=list)
    """Bytes per second of each part, the last one perhaps incomplete."""
    trouble: str = ""
    """Why the sum was not finished; empty if it was."""

    @property
    def bytes_per_s(self) -> float:
        """Median of the parts' rates; 0.0 if nothing came."""
        return statistics.median(self.rates) if self.rates else 0.0


def all_reduce(listener: socket.socket, token: bytes, place: Place, own_address: str) -> Edge:
    """Take part in one sum, then close ``listener``; what goes wrong is part of the result."""
    edge = Edge()
    with listener, ThreadPoolExecutor(1) as sender:
        try:
            reaching = sender.submit(_reach, place, own_address)
            with accept(listener, token, place.limit_s) as before, reaching.result() as after:
                edge.has_reached_next = True
                with _limited(place.limit_s, before, after):
                    began_s = time.perf_counter()
                    _sum(before, after, place, sender, edge)
                    edge.duration_s = time.perf_counter() - began_s
        except OSError as error:
            edge.trouble = str(error) or type(error).__name__
            edge.has_reached_next = edge.has_reached_next or _has_succeeded(reaching)
    return edge


def content(number: int, num_words: int, first: int = 0) -> Words:
    """The words of one member; those of all members are summed modulo 2**32."""
    return np.arange(first, first + num_words, dtype=np.uint32) * _MIX + np.uint32(number)


def expected(numbers: range, size: int, num_words: int, first: int) -> Words:
    """The sum over members, whose numbers may go beyond ``size`` and begin again there."""
    words = np.arange(first, first + num_words, dtype=np.uint32) * _MIX
    return words * np.uint32(len(numbers)) + np.uint32(sum(one % size for one in numbers))


def _sum(
    before: socket.socket,
    after: socket.socket,
    place: Place,
    sender: ThreadPoolExecutor,
    edge: Edge,
) -> None:
    own, size = place.number, place.size
    part_words = place.num_words // size
    parts = [content(own, part_words, part * part_words) for part in range(size)]
    for step in range(2 * (size - 1)):
        is_gathering = step >= size - 1
        sent, came = (own - step) % size, (own - step - 1) % size
        sending = sender.submit(send_part, after, parts[sent].data.cast("B"))
        received = np.empty(part_words, np.uint32)
        _receive(before, received.data.cast("B"), edge)
        # a part begins at the member of its number, and each one adds its own words
        members = range(size) if is_gathering else range(came, came + step + 1)
        right = expected(members, size, part_words, came * part_words)
        edge.num_damaged += not np.array_equal(received, right)
        parts[came] = right if is_gathering else right + parts[came]
        sending.result()


def send_part(stream: socket.socket, part: memoryview) -> None:
    """Send in blocks, each as soon as the kernel takes it. Raises OSError."""
    for at in range(0, len(part), BLOCK_BYTES):
        stream.sendall(part[at : at + BLOCK_BYTES])


def _receive(stream: socket.socket, buffer: memoryview, edge: Edge) -> None:
    """Fill ``buffer``, and note the rate from the first piece on. Raises OSError."""
    # never all of it, or there would be nothing to time
    filled = first = stream.recv_into(buffer[: len(buffer) // FIRST_SHARE])
    began_s = time.perf_counter()
    try:
        while 0 < filled < len(buffer):
            count = stream.recv_into(buffer[filled:])
            if not count:
                break
            filled += count
    finally:
        elapsed_s = time.perf_counter() - began_s
        if first:
            edge.rates.append((filled - first) / max(elapsed_s, LEAST_TIMED_S))
    if filled < len(buffer):
        raise ConnectionResetError("the member before closed the connection early")


def _reach(place: Place, own_address: str) -> socket.socket:
    stream = connect(place.next_address, place.next_port, place.next_token, own_address)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, BLOCK_BYTES)
    return stream


def _has_succeeded(reaching: Future[socket.socket]) -> bool:
    """Whether the next member was reached; the connection is closed."""
    with suppress(OSError):
        reaching.result().close()
        return True
    return False


@contextmanager
def _limited(limit_s: float, *streams: socket.socket) -> Iterator[None]:
    """Cut the connections when the time is over, and on the way out those that still send."""
    cut = threading.Timer(limit_s, _shut, streams)
    cut.daemon = True
    cut.start()
    try:
        yield
    except OSError:
        _shut(*streams)
        raise
    finally:
        cut.cancel()


def _shut(*streams: socket.socket) -> None:
    for stream in streams:
        with suppress(OSError):  # it is closed already
            stream.shutdown(socket.SHUT_RDWR)
