"""How processes with a rank have ended: a file that the executor of a node writes for its agent.

A rank is replaced before the agent looks again, so that nothing else shows its end by then.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path

import msgspec
from headway.common.node.files import replace_file
from headway.common.wire.messages.health import WorkerEnd

MAX_KEPT = 64
"""Ends of a node that are kept, the newest."""
_DECODER = msgspec.json.Decoder(tuple[WorkerEnd, ...])


def path_of(shm_dir: Path) -> Path:
    """Path of the file in a node's shared memory."""
    return shm_dir / "ends.json"


def read_ends(shm_dir: Path) -> tuple[WorkerEnd, ...]:
    """The newest ends of a node, oldest first; none without a file, or from a damaged one."""
    try:
        return _DECODER.decode(path_of(shm_dir).read_bytes())
    except (OSError, ValueError):  # of msgspec, or of the decoder of UTF-8
        return ()


class WorkerEnds:
    """The executor's side; its successor continues the list."""

    def __init__(self, shm_dir: Path) -> None:
        self._path = path_of(shm_dir)
        self._ends = deque(read_ends(shm_dir), MAX_KEPT)
        self._is_written = True

    def add(self, end: WorkerEnd, at_ns: int) -> None:
        """Add an end of this moment, and write it."""
        self._ends.append(msgspec.structs.replace(end, at_ns=at_ns))  # type: ignore[type-var]
        self._is_written = False
        self.write()

    def write(self) -> None:
        """Write what is new; what cannot be written now is, too, at the next call."""
        if not self._is_written:
            with contextlib.suppress(OSError):
                replace_file(self._path, msgspec.json.encode(tuple(self._ends)))
                self._is_written = True
