"""A server in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from headway.common.wire.server import Server


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serve in a thread until the block ends, then close ``server``.

    Only that thread may use it.
    """
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if server.socket.poll(10):
                server.handle_ready()

    thread = threading.Thread(target=serve, name="serving")
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        thread.join()
        server.close()
