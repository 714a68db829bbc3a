"""File descriptors: as many as the system allows, and some that connections never get.

Any client that reaches a port takes a descriptor of its server, for ``HANDSHAKE_S`` also without a
key. With none left, a process can open no file either, and a driver that cannot open its lease
stops leading.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import struct
import time
from collections.abc import Collection, Iterator

from headway.common.log import complain, get_logger
from headway.common.wire.server import Server

FOR_FILES = 64
"""So many are held back besides one for each connection that waits in a backlog: those are taken
although the door is shut."""
SHUT_S = 4.0
"""Longer than ``HANDSHAKE_S``, after which strangers are disconnected."""
SPARE = 512
"""What a process needs beside its clients' connections: the reserve, files, threads' pipes."""
_REMEDY = "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= of systemd)"
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K: keep 0 bytes of each packet

_log = get_logger("descriptors")


def raise_limit() -> int:
    """Let this process have as many open files as it may at most; returns how many."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class HandshakeLimiter:
    """Holds descriptors back, and gives them to the process when no other is left.

    The servers then take no new connections for ``SHUT_S``; connections that exist continue.

    Used by one thread; ``look`` is to be called a few times a second.

    Args:
        servers: of this process, which listen by TCP.
        clients: so many are expected to stay connected; where the limit is too low for them, that
            is logged.
    """

    def __init__(self, servers: Collection[Server], clients: int) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit < clients + SPARE:
            fields = {"limit": limit, "needed": clients + SPARE, "remedy": _REMEDY}
            complain(_log.warning, "too few open files are allowed for all clients", **fields)
        self._listeners = [server.listener for server in servers]
        self._reserved = FOR_FILES + sum(server.backlog for server in servers)
        self._kept: list[int] = []
        self._shut_at: float | None = None
        self._keep()

    def look(self) -> None:
        """Refuse connections if no descriptor is left, take them again after a while."""
        if self._shut_at is None:
            if self._is_any_left():
                return
            self._shut_at = time.monotonic()
            for listener in self._listeners:
                _drop_connections(listener)
            self._release_evicted()
            complain(
                _log.warning,
                "no file descriptor is left; new connections are refused for a while",
                limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                remedy=_REMEDY,
            )
        elif time.monotonic() - self._shut_at >= SHUT_S:
            self._shut_at = None
            self._keep()
            for listener in self._listeners:
                _take_connections(listener)

    def close(self) -> None:
        """Give the descriptors back."""
        self._release_evicted()

    def _keep(self) -> None:
        """At most half of what is free: others that connect need some, too."""
        free: list[int] = []
        with contextlib.suppress(OSError):
            free.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while len(free) < 2 * self._reserved:
                free.append(os.dup(free[0]))  # cheaper than opening: there may be thousands
        self._kept = free[: len(free) // 2]
        for one in free[len(self._kept) :]:
            os.close(one)

    def _release_evicted(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

    def _is_any_left(self) -> bool:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return False
        return True


def _drop_connections(listener: int) -> None:
    """Have the kernel drop what arrives for the listening socket, so that none is established."""
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    filter_of_one = struct.pack("@HP", 1, ctypes.addressof(program))  # struct sock_fprog
    with _borrowed(listener) as opened, contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_of_one)


def _take_connections(listener: int) -> None:
    with _borrowed(listener) as opened, contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A descriptor of libzmq's as a socket, which does not close it."""
    opened = socket.socket(fileno=descriptor)
    try:
        yield opened
    finally:
        opened.detach()
