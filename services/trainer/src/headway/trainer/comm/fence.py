"""Leaving a broken generation: frees the main thread within milliseconds, whatever its peers do.

An abort first feeds every open call of the generation's channels, which frees the main thread,
then shuts down the TCP connections made for the generation, repeatedly until the main thread
has left: gloo's and the store's threads see the end of the stream and fail their operations,
here and at the peers.

What an abort never touches: listening sockets (gloo's listener thread ends the process when
its accept fails), Unix sockets (control), and TCP sockets that were open before the
generation was entered.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headway.trainer.comm.channel import Channels
from headway.trainer.comm.interface import Aborted

CUT_EVERY_S = 0.002


class Fence:
    """The generation that the main thread is in, and how another thread makes it leave.

    The main thread calls ``enter``, ``leave`` and ``check``; other threads call ``abort``.
    """

    def __init__(self) -> None:
        self._fenced = -1
        self._inside: tuple[int, Channels, frozenset[int]] | None = None
        self._out = threading.Condition()

    def enter(self, generation: int, channels: Channels) -> None:
        """Mark the main thread as inside ``generation``.

        Its blocking calls go through ``channels``.

        Raises:
            Aborted: the generation was fenced before it was entered, since an abort
                and a join may cross.
        """
        self._inside = (generation, channels, tcp_inodes())
        if self._fenced >= generation:  # after the mark: one of the two sides always sees the other
            channels.abort()
            raise Aborted

    def leave(self, *, broken: bool = True) -> None:
        """Mark the main thread as outside; sockets opened from now on are safe from ``abort``.

        ``broken`` cuts the connections of the generation: a rank that leaves because a peer failed,
        before any abort, would otherwise leave its channels waiting for the peers that are alive.
        """
        with self._out:
            if broken and self._inside is not None:
                cut_connections(exempt=self._inside[2])
            self._inside = None
            self._out.notify_all()

    def check(self) -> None:
        """Raise ``Aborted`` if the main thread's generation was fenced."""
        inside = self._inside
        if inside is not None and self._fenced >= inside[0]:
            raise Aborted

    def is_fenced(self, generation: int) -> bool:
        """Whether an abort of this or a later generation was requested."""
        return self._fenced >= generation

    def abort(self, generation: int, *, limit_s: float = 6.0) -> bool:
        """Fence ``generation`` and all before it; True once the main thread is outside of them.

        Blocks for at most ``limit_s``: a main thread that is computing leaves at its next check.
        """
        self._fenced = max(self._fenced, generation)
        deadline_s = time.monotonic() + limit_s
        while (inside := self._inside) is not None and inside[0] <= generation:
            inside[1].abort()
            # held while cutting, so that no socket of the next generation exists yet
            with self._out:
                if self._inside is inside:
                    cut_connections(exempt=inside[2])
                    self._out.wait(CUT_EVERY_S)
            if time.monotonic() > deadline_s:
                return False
        return True


def cut_connections(*, exempt: frozenset[int] = frozenset()) -> int:
    """Shut down every connected TCP socket of this process except exempt inodes; returns how many.

    The descriptors stay open until their owner closes them, so that no number is reused meanwhile.
    """
    num_cut = 0
    for inode, copy in _tcp_sockets():
        with contextlib.suppress(OSError), copy:  # not connected, or gone meanwhile
            if inode not in exempt and not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                copy.getpeername()
                copy.shutdown(socket.SHUT_RDWR)
                num_cut += 1
    return num_cut


def tcp_inodes() -> frozenset[int]:
    """The inodes of this process's TCP sockets, listening ones included."""
    found = set()
    for inode, copy in _tcp_sockets():
        copy.close()
        found.add(inode)
    return frozenset(found)


def _tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Inode and a duplicate, for the caller to close, of every TCP socket of this process."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:  # closed by its owner meanwhile
            continue
        info = os.fstat(copy)  # of the duplicate, whose number cannot be reused for another file
        if not stat.S_ISSOCK(info.st_mode):
            os.close(copy)
            continue
        sock = socket.socket(fileno=copy)  # the kernel reports family and type
        if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type & socket.SOCK_STREAM:
            yield info.st_ino, sock
        else:
            sock.close()
