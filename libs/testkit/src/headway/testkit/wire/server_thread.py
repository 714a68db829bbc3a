"""A server in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from headway.common.wire.server import Server


@contextlib.contextmanager
def serving(server: Server, turn: Callable[[], object] = lambda: None) -> Iterator[Server]:
    """Serve in a thread until the block ends, then close ``server``.

    Only that thread may use it, and it calls ``turn`` at least every 10 ms.
    """
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            if server.socket.poll(10):
                server.handle_ready()
            turn()

    thread = threading.Thread(target=serve, name="serving")
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        thread.join()
        server.close()
