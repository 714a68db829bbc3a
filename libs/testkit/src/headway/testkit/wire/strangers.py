"""Strangers who hold as many connections to a port as its server gives them, and never speak."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

AGAIN_S = 0.2


@contextlib.contextmanager
def strangers(endpoint: str, number: int) -> Iterator[None]:
    """So many connections at a time while the ``with`` lasts; one that is closed is made anew.

    So is one that is not established soon: of many at once the server's backlog takes some, and
    the kernel would try the others again after seconds only.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    has_ended = threading.Event()

    def connect() -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex((host, int(port)))
        return made

    def hold() -> None:
        held = [connect() for _ in range(number)]
        while not has_ended.wait(AGAIN_S):
            for index, one in enumerate(held):
                if _is_closed(one) or not _is_established(one):
                    one.close()
                    held[index] = connect()
        for one in held:
            one.close()

    thread = threading.Thread(target=hold, name="strangers")
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def _is_closed(one: socket.socket) -> bool:
    try:
        while data := one.recv(4096):  # the server's greeting
            del data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_established(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True
