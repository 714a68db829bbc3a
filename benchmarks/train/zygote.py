"""A process that has imported everything and forks workers: for tests, where imports dominate.

A measurement starts fresh processes instead: the memory of a forked one is partly its parent's.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

MODULES = ("limit", "ours", "peer_pipe", "peer_plain", "peer_tensor", "sleepers")
WAIT_S = 0.01


class Forked:
    """The part of ``subprocess.Popen`` that a team needs, for a grandchild."""

    def __init__(self, pid: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout

    def poll(self) -> int | None:
        """None while it runs. Its parent collects it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, 0)
            return None
        return 0

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until it has ended."""
        while self.poll() is None:
            time.sleep(WAIT_S)
        return 0


class Zygote:
    """Starts the process; ``fork`` asks it for a worker."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = mine
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.train.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
        )
        theirs.close()

    def fork(self, log: IO[str]) -> Forked:
        """A worker whose stderr is ``log``."""
        from_parent, to_child = os.pipe()
        from_child, to_parent = os.pipe()
        fds = [from_parent, to_parent, log.fileno()]
        socket.send_fds(self._socket, [b"fork"], fds)
        pid = int(self._socket.recv(32))
        for fd in fds[:2]:
            os.close(fd)
        return Forked(pid, os.fdopen(to_child, "w"), os.fdopen(from_child))

    def close(self) -> None:
        """End the process; its workers were ended by their teams."""
        self._socket.close()
        self._process.wait()


_active: list[Zygote] = []


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """Every team started inside uses forked workers."""
    zygote = Zygote()
    _active.append(zygote)
    try:
        yield
    finally:
        _active.remove(zygote)
        zygote.close()


def active() -> Zygote | None:
    """The zygote in use, None for fresh processes."""
    return _active[-1] if _active else None


def serve(fd: int) -> None:
    """Import, then fork a worker per request; end with the other end of the socket."""
    for name in MODULES:
        importlib.import_module(f"benchmarks.train.{name}")
    from benchmarks.train import worker

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orders = socket.socket(fileno=fd)
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 4, 3)
        if not data:
            return
        pid = os.fork()
        if pid == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for target, source in enumerate(fds):
                os.dup2(source, target)
                os.close(source)
            sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w")
            try:
                worker.main()
            finally:
                os._exit(1)
        for passed in fds:
            os.close(passed)
        orders.send(str(pid).encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]))
