"""Workers that are forks of a process with all libraries: for tests, where imports dominate.

A measurement starts fresh processes instead: the memory of a forked one is partly its parent's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import IO
from unittest.mock import patch

MODULES = ("limit", "ours", "peer_pipe", "peer_plain", "peer_tensor", "sleepers", "worker")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
_context = multiprocessing.get_context("forkserver")
is_active = False
"""Whether teams use forked workers now."""


class Forked:
    """The part of ``subprocess.Popen`` that a team needs; the worker's stderr is ``log``."""

    def __init__(self, log: IO[str]) -> None:
        from_parent, to_child = _context.Pipe(duplex=False)
        from_child, to_parent = _context.Pipe(duplex=False)
        theirs = (from_parent, to_parent, Connection(os.dup(log.fileno()), readable=False))
        self._process = _context.Process(target=_work, args=theirs, daemon=True)
        self._process.start()
        self.stdin = os.fdopen(os.dup(to_child.fileno()), "w")
        self.stdout = os.fdopen(os.dup(from_child.fileno()))
        for end in (*theirs, to_child, from_child):
            end.close()

    def poll(self) -> int | None:
        """None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def wait(self) -> int:
        """Wait until it has ended."""
        self._process.join()
        return self._process.exitcode or 0


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """Every team started inside uses forked workers."""
    global is_active
    _context.set_forkserver_preload([f"benchmarks.train.{name}" for name in MODULES])
    with patch.dict(os.environ, ENVIRONMENT):
        is_active = True
        try:
            yield
        finally:
            is_active = False


def _work(*ends: Connection) -> None:
    from benchmarks.train import worker

    for target, end in enumerate(ends):
        os.dup2(end.fileno(), target)
        end.close()
    sys.stdin, sys.stderr = os.fdopen(0), os.fdopen(2, "w")
    worker.main()
