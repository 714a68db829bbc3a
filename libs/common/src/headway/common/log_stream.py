"""A text stream for logs that never raises.

Lines that cannot be written are counted and reported later.

A full disk, an I/O error or a reader that has gone must not end a process because it logs. Nor may
a file system that hangs stop a loop on which others depend: such a process lets a thread write.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

from headway.common.log_rotation import rotation
from headway.common.polling import wait_until

STDOUT, STDERR = 1, 2
MAX_WAITING = 10_000
"""Lines that wait for a file system which does not answer; further ones are lost, and counted."""
EXIT_WAIT_S = 1.0
"""How long a process that ends waits for its last lines to be written."""


def _plain_notice(num_lost: int, reason: str) -> str:
    return f"({num_lost} lines lost: {reason})\n"


class LogWriter(io.RawIOBase):
    """Writes to a descriptor, without a buffer of its own that a later flush could fail on.

    ``notice`` builds the line that is written once writing works again, from the number of lost
    lines and the error.
    """

    def __init__(self, descriptor: int, notice: Callable[[int, str], str]) -> None:
        self._descriptor, self.notice = descriptor, notice
        self._is_torn = False
        self.num_lost = 0
        """Lines lost since a write last succeeded."""
        self.num_lost_ever = 0
        self.error = ""
        """Why the last write failed, empty after one that succeeded."""

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all of ``data`` or count its lines as lost; returns its length either way."""
        content = bytes(data)
        rotation.look()
        try:
            if self._is_torn:  # the next line must not be appended to half of another one
                self._write_all(b"\n")
                self._is_torn = False
            if self.num_lost:
                self._write_all(self.notice(self.num_lost, self.error).encode())
                self.num_lost, self.error = 0, ""
            self._write_all(content)
        except OSError as error:
            num_lines = max(1, content.count(b"\n"))
            self.num_lost += num_lines
            self.num_lost_ever += num_lines
            self.error = error.strerror or type(error).__name__
        return len(content)

    def _write_all(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
            self._is_torn = bool(rest)


class BackgroundLogWriter(LogWriter):
    """Never blocks: a thread writes. Lines that wait when the process is killed are lost."""

    def __init__(self, descriptor: int, notice: Callable[[int, str], str]) -> None:
        super().__init__(descriptor, notice)
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
        self._num_dropped, self._lock = 0, threading.Lock()
        threading.Thread(target=self._serve, name="log", daemon=True).start()
        atexit.register(self.drain)

    def write(self, data: Any) -> int:
        """Hand ``data`` to the thread, or count it as lost when too much waits."""
        content = bytes(data)
        try:
            self._waiting.put_nowait(content)
        except queue.Full:
            with self._lock:
                self._num_dropped += max(1, content.count(b"\n"))
        return len(content)

    def drain(self, limit_s: float = EXIT_WAIT_S) -> None:
        """Wait until all is written, for at most ``limit_s``."""
        wait_until(lambda: not self._waiting.unfinished_tasks, limit_s, every_s=0.005)

    def _serve(self) -> None:
        while True:
            content = self._waiting.get()
            with self._lock:
                num_dropped, self._num_dropped = self._num_dropped, 0
            if num_dropped:
                self.num_lost += num_dropped
                self.num_lost_ever += num_dropped
                self.error = "its file system did not answer"
            super().write(content)
            self._waiting.task_done()


def open_stream(
    descriptor: int, notice: Callable[[int, str], str], *, in_background: bool = False
) -> io.TextIOWrapper:
    """A stream on ``descriptor`` that hands whole lines to a ``LogWriter``, its ``buffer``."""
    make = BackgroundLogWriter if in_background else LogWriter
    raw: Any = make(descriptor, notice)
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)


def writer_of(stream: Any) -> LogWriter | None:
    """The writer behind a stream, None for one that may raise."""
    writer = getattr(stream, "buffer", None)
    return writer if isinstance(writer, LogWriter) else None


def tolerate_stderr(
    notice: Callable[[int, str], str] = _plain_notice, *, in_background: bool = False
) -> None:
    """Let ``sys.stderr`` never raise, so that no message can change how this process ends.

    Output of the interpreter itself, such as the final traceback, goes there too. A stream that was
    replaced by something else, such as a test's capture, is left alone.
    """
    writer = writer_of(sys.stderr)
    if writer is not None and isinstance(writer, BackgroundLogWriter) >= in_background:
        writer.notice = notice
    elif writer is not None or _is_original(sys.stderr, sys.__stderr__, STDERR):
        sys.stderr = open_stream(STDERR, notice, in_background=in_background)


def tolerate_stdout(notice: Callable[[int, str], str], *, in_background: bool = False) -> None:
    """Let ``sys.stdout`` never raise either, where it is the log too: the same file as stderr."""
    if _is_original(sys.stdout, sys.__stdout__, STDOUT) and _are_same(STDOUT, STDERR):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        sys.stdout = open_stream(STDOUT, notice, in_background=in_background)


def _is_original(stream: Any, original: Any, descriptor: int) -> bool:
    try:
        return stream is not None and stream is original and stream.fileno() == descriptor
    except (OSError, ValueError):
        return False


def _are_same(one: int, other: int) -> bool:
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False
