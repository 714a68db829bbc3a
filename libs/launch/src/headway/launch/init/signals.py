"""Signals as bytes on a socket, which a loop can wait for together with other things."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def on_socket(*numbers: signal.Signals) -> Iterator[socket.socket]:
    """A socket that never blocks, on which the numbers of these signals arrive.

    They have no other effect meanwhile.
    """
    source, sink = socket.socketpair()
    source.setblocking(False)
    sink.setblocking(False)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    wakeup = signal.set_wakeup_fd(sink.fileno(), warn_on_full_buffer=False)
    try:
        yield source
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        source.close()
        sink.close()


def received(source: socket.socket) -> bytes:
    """The numbers that have arrived since the last call."""
    with contextlib.suppress(BlockingIOError):
        return source.recv(4096)
    return b""
