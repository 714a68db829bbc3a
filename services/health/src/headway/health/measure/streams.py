"""Sends blocks of known content over a TCP connection, and measures and compares what arrives.

One Python thread sends a stream and one receives it, so a stream is limited by what one core
carries (some 10 to 30 Gbit/s). That is enough to compare machines of one type with each other, and
too little to show the full rate of a 400 Gbit/s NIC.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

from headway.common.node.memory_nodes import bound_to

BLOCK_BYTES = 1 << 18
"""Large enough that Python's own work per block is small, and at 1 MiB/s still four a second."""
SOCKET_LIMIT_S = 10.0
TOKEN_BYTES = 16
ROUNDS = 3
_PATTERN = bytes(range(256)) * (BLOCK_BYTES // 256)
MORE, LAST = b"\0" + _PATTERN[1:], b"\1" + _PATTERN[1:]
"""The two blocks: their first byte says whether another one follows."""
Via = Callable[[bytes | bytearray], bytes | bytearray]
"""Passes a block through some other memory, such as a GPU's, and returns what comes back."""


@dataclass(frozen=True)
class Received:
    """What arrived of one stream."""

    num_bytes: int
    duration_s: float
    num_damaged: int
    """Blocks that differ from what was sent."""

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / max(self.duration_s, 1e-9)


def same(block: bytes | bytearray) -> bytes | bytearray:
    """A block that passes through no other memory."""
    return block


def send(stream: socket.socket, num_bytes: int, duration_s: float = 60.0, via: Via = same) -> None:
    """Send about ``num_bytes``, or fewer when ``duration_s`` is over.

    Raises:
        OSError: the connection broke, or its other end has not read for the socket's timeout.
    """
    until_s = time.monotonic() + duration_s
    for _ in range(num_bytes // BLOCK_BYTES):
        if time.monotonic() >= until_s:
            break
        stream.sendall(via(MORE))
    stream.sendall(via(LAST))


def receive(stream: socket.socket, via: Via = same) -> Received:
    """Receive a stream to its end.

    The time counts from the end of the first block, which includes waiting for the sender.

    Raises:
        OSError: the connection broke or ended early, or nothing came for the socket's timeout.
    """
    buffer = bytearray(BLOCK_BYTES)
    num_blocks = num_damaged = 0
    called_s = began_s = time.perf_counter()
    is_last = False
    while not is_last:
        read_exactly(stream, memoryview(buffer))
        if not num_blocks:
            began_s = time.perf_counter()
        num_blocks += 1
        block = via(buffer)
        num_damaged += block not in (MORE, LAST)
        is_last = block[0] == LAST[0]
    counted, since_s = (num_blocks - 1, began_s) if num_blocks > 1 else (1, called_s)
    return Received(counted * BLOCK_BYTES, time.perf_counter() - since_s, num_damaged)


def read_exactly(stream: socket.socket, buffer: memoryview) -> None:
    """Fill ``buffer``. Raises OSError, also if the stream ends before."""
    filled = 0
    while filled < len(buffer):
        count = stream.recv_into(buffer[filled:])
        if not count:
            raise ConnectionResetError("the other end closed the connection early")
        filled += count


def accept(listener: socket.socket, token: bytes, limit_s: float) -> socket.socket:
    """The connection that begins with ``token``; others, such as port scans, are closed.

    Raises:
        OSError: it has not come within ``limit_s`` seconds.
    """
    until_s = time.monotonic() + limit_s
    while (left_s := until_s - time.monotonic()) > 0:
        listener.settimeout(left_s)
        stream, _ = listener.accept()
        shown = bytearray(len(token))
        stream.settimeout(min(1.0, left_s))  # a stranger that is silent does not use up the time
        try:
            read_exactly(stream, memoryview(shown))
        except OSError:
            shown = bytearray()
        if hmac.compare_digest(bytes(shown), token):
            stream.settimeout(SOCKET_LIMIT_S)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return stream
        stream.close()
    raise TimeoutError(f"nobody connected within {limit_s:g} s")


def connect(address: str, port: int, token: bytes, source: str = "") -> socket.socket:
    """Connect and show the token; from the address ``source`` of this machine if one is given.

    Raises:
        OSError: nobody listens there, or the way there is cut.
    """
    own = (source, 0) if source else None
    stream = socket.create_connection((address, port), SOCKET_LIMIT_S, source_address=own)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.sendall(token)
    return stream


def listen(address: str) -> socket.socket:
    """A listener on a free port of ``address``. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family)


def transfer(
    num_bytes: int,
    source: str = "127.0.0.1",
    target: str = "127.0.0.1",
    cpus: Collection[int] = (),
    via: Via = same,
) -> Received:
    """Send from one address of this machine to another, both ends on ``cpus`` if there are any.

    The sender is a plain thread, no ``SideThread``: a check has no loop, and waits for it.

    Raises:
        OSError: the addresses cannot be used, or the stream broke.
    """
    token = secrets.token_bytes(TOKEN_BYTES)
    with listen(target) as listener:
        port = listener.getsockname()[1]

        def sender() -> None:
            with suppress(OSError), _bound(cpus), connect(target, port, token, source) as stream:
                send(stream, num_bytes, via=via)  # the receiver reports a broken stream

        thread = threading.Thread(target=sender, daemon=True)
        thread.start()
        with _bound(cpus), accept(listener, token, SOCKET_LIMIT_S) as stream:
            received = receive(stream, via)
        thread.join(SOCKET_LIMIT_S)
    return received


def best_transfer(
    num_bytes: int, source: str, target: str, cpus: Collection[int] = (), via: Via = same
) -> Received:
    """The fastest of three transfers, with the damaged blocks of all: other work only slows one."""
    rounds = [transfer(num_bytes, source, target, cpus, via) for _ in range(ROUNDS)]
    best = max(rounds, key=lambda one: one.bytes_per_s)
    return replace(best, num_damaged=sum(one.num_damaged for one in rounds))


def _bound(cpus: Collection[int]) -> AbstractContextManager[None]:
    return bound_to(cpus) if cpus else nullcontext()
