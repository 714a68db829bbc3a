"""The zygote's record for its executor: that it serves, and the results of requests.

One small file in the node's shared memory, overwritten in place about twice a second, because the
zygote must not have other sockets, which forked workers would share.
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from pathlib import Path

from headway.common.node.process import ProcessId

_BYTES = 4096
_MAX_FORKS = 24
_MAX_ERROR = 80

Answer = tuple[str, int, int, str]
"""Worker, pid and start ticks of its process (0 without one), and the error that kept
it from being forked."""


def path_of(shm_dir: Path) -> Path:
    """Path of the record of a node's zygote."""
    return shm_dir / "zygote.beat"


class ZygoteBeat:
    """The zygote's side of the record.

    Raises:
        OSError: the file cannot be made; its memory is allocated at once, so that later writes
            cannot fail on a full device.
    """

    def __init__(self, shm_dir: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(path_of(shm_dir), flags, 0o600)
        os.posix_fallocate(self._fd, 0, _BYTES)
        self._me = ProcessId.current()
        self._turns = 0
        self._forks: deque[Answer] = deque(maxlen=_MAX_FORKS)

    def forked(self, worker: str, pid: int) -> None:
        """A request was answered with a process."""
        process = ProcessId.of(pid)
        ticks = process.start_ticks if process is not None else 0
        self._forks.append((worker, pid, ticks, ""))
        self.turn()

    def failed(self, worker: str, error: str) -> None:
        """A request could not be answered."""
        self._forks.append((worker, 0, 0, error[:_MAX_ERROR]))
        self.turn()

    def turn(self) -> None:
        """Show that the zygote serves."""
        self._turns += 1
        while len(data := self._record()) > _BYTES:
            self._forks.popleft()
        os.pwrite(self._fd, data.ljust(_BYTES), 0)

    def _record(self) -> bytes:
        row = {"pid": self._me.pid, "start_ticks": self._me.start_ticks, "turns": self._turns}
        return json.dumps({**row, "forks": list(self._forks), "end": self._turns}).encode()

    def close(self) -> None:
        """In a forked child: stop using the record of the parent."""
        os.close(self._fd)


def read(shm_dir: Path) -> tuple[ProcessId, int, list[Answer]] | None:
    """(process, turns, newest answers) of the node's zygote; None without a complete record."""
    try:
        row = json.loads(path_of(shm_dir).read_bytes())
        if row["end"] != row["turns"]:  # read while it was being written
            return None
        forks = [(str(w), int(pid), int(ticks), str(e)) for w, pid, ticks, e in row["forks"]]
        return ProcessId(int(row["pid"]), int(row["start_ticks"])), int(row["turns"]), forks
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ask_for_fork(path: Path, worker: str) -> None:
    """Ask the zygote that listens at ``path`` to fork ``worker``; its beat shows what came of it.

    Raises:
        OSError: nobody listens there, or its queue is full.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.sendto(worker.encode(), str(path))
