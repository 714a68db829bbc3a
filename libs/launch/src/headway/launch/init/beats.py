"""Beats of an executor's event loop to the init: bytes in a pipe that the executor inherits.

The init creates the pipe and passes the writing end on, its number in the environment. An init that
was started again opens the same pipe by way of ``/proc/PID/fd`` of the executor that it adopts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from headway.common.node.process import ProcessId

ENV_BEAT_FD = "HEADWAY_BEAT_FD"
"""In the environment of an executor: the pipe to its init."""
ENV_RESTARTED_FOR = "HEADWAY_RESTARTED_FOR"
"""In the environment of an executor: how the one before it ended."""

_BEAT, _END = b".", b"0"
_MOST = 4096


class BeatSender:
    """The executor's end. Without an init, or after its death, nothing is sent."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Take the pipe over, so that the executor's own children do not have it."""
        number = environment.pop(ENV_BEAT_FD, "")
        self._fd = int(number) if number.isdecimal() else -1
        if self._fd >= 0:
            try:
                os.set_inheritable(self._fd, False)
            except OSError:
                self._fd = -1

    def beat(self) -> None:
        """The event loop runs. Called from it, at least every second; never blocks."""
        self._send(_BEAT)

    def end(self) -> None:
        """The executor is about to exit with code 0, for an init that is not its parent."""
        self._send(_END)

    def _send(self, byte: bytes) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # full, or no init: the next one reads what is there
                os.write(self._fd, byte)


@dataclass(frozen=True)
class Heard:
    """What has arrived since the last look."""

    is_beating: bool
    has_said_end: bool
    is_open: bool = True
    """Whether anybody can still send."""


class BeatReader:
    """The init's end."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls) -> tuple[BeatReader, int]:
        """A new pipe, and its writing end, which the caller passes on and then closes."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return cls(reading), writing

    @classmethod
    def reopen(cls, executor: ProcessId) -> BeatReader | None:
        """The pipe of a living executor, None if it has none or is not ours to look at."""
        try:
            words = Path(f"/proc/{executor.pid}/environ").read_bytes().split(b"\0")
            prefix = f"{ENV_BEAT_FD}=".encode()
            number = next(int(w[len(prefix) :]) for w in words if w.startswith(prefix))
            path = Path(f"/proc/{executor.pid}/fd/{number}")
            if not str(path.readlink()).startswith("pipe:"):
                return None
            return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except (OSError, ValueError, StopIteration):
            return None

    def read(self) -> Heard:
        """What has arrived; never blocks."""
        found = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.fd, _MOST):
                found += piece
            return Heard(bool(found), _END in found, is_open=False)
        return Heard(bool(found), _END in found)

    def close(self) -> None:
        os.close(self.fd)
