"""Records which process on which machine of a bed changes files below a folder.

By fanotify (man 7 fanotify), marked on the file system of the folder: writes, new, moved and
removed files and folders. Not what a process writes through a memory map.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headway.common.errors import HeadwayError
from headway.testkit.bed.node import Node

_CLOEXEC, _NONBLOCK, _UNLIMITED_QUEUE, _REPORT_DIR_AND_NAME = 0x1, 0x2, 0x10, 0xC00
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _ON_DIR = 0x2, 0x40, 0x80, 0x100, 0x200, 1 << 30
_LOST = 0x4000
_WATCHED = _WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ON_DIR
_EVENT, _RECORD, _HANDLE = struct.Struct("=IBBHQii"), struct.Struct("=BBH8x"), struct.Struct("=Ii")
_DIR_AND_NAME = 2
_READ_BYTES = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


class Write(NamedTuple):
    """One change of a file."""

    unix_s: float
    path: str
    machine: int
    """Inode of the process's pid namespace; 0 if the process had ended before it was looked up."""
    command: str
    """Program and arguments; "" if it had ended."""


class Writes:
    """Runs until ``stop``, or the end of its ``with`` block."""

    def __init__(self, folder: Path) -> None:
        """Begin to record writes below a folder.

        Raises:
            HeadwayError: the kernel refuses, for example without root.
        """
        self._folder = folder.resolve()
        self._queue = _libc.fanotify_init(
            _CLOEXEC | _NONBLOCK | _UNLIMITED_QUEUE | _REPORT_DIR_AND_NAME, os.O_RDONLY
        )
        if self._queue < 0:
            raise HeadwayError(f"cannot watch files: {os.strerror(ctypes.get_errno())}")
        mask, here = ctypes.c_uint64(_WATCHED), os.fsencode(self._folder)
        if _libc.fanotify_mark(self._queue, _MARK_ADD | _MARK_FILESYSTEM, mask, -100, here):
            os.close(self._queue)
            raise HeadwayError(f"cannot watch {folder}: {os.strerror(ctypes.get_errno())}")
        self._mount = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        self._folders: dict[bytes, str] = {}
        self._seen: list[Write] = []
        self._is_complete = True
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._record, name="writes")
        self._thread.start()

    def __enter__(self) -> Writes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End; what was seen stays."""
        if not self._thread.is_alive():
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        for fd in (self._queue, self._mount, self._stop):
            os.close(fd)

    def of(self, node: Node) -> list[Write]:
        """Return the writes by processes of a machine, in each of its boots.

        Also those by processes that had ended before their machine could be determined.

        Raises:
            HeadwayError: the kernel has dropped events.
        """
        if not self._is_complete:
            raise HeadwayError(f"not all writes below {self._folder} are known")
        return [
            one for one in list(self._seen) if one.machine in (node.pid_namespace(one.unix_s), 0)
        ]

    def _record(self) -> None:
        while True:
            ready, _, _ = select.select([self._queue, self._stop], [], [])
            if self._queue in ready:
                now = time.time()
                self._seen += self._parse(os.read(self._queue, _READ_BYTES), now)
            elif self._stop in ready:
                return

    def _parse(self, data: bytes, now: float) -> Iterator[Write]:
        start = 0
        while start < len(data):
            length, _, _, size, mask, _, pid = _EVENT.unpack_from(data, start)
            if mask & _LOST:
                self._is_complete = False
            else:
                path = self._path(data[start + size : start + length])
                if path.startswith(f"{self._folder}/"):
                    yield Write(now, path, *_writer(pid))
            start += length

    def _path(self, record: bytes) -> str:
        kind, _, length = _RECORD.unpack_from(record)
        if kind != _DIR_AND_NAME:
            return ""
        handle_bytes, _ = _HANDLE.unpack_from(record, _RECORD.size)
        end = _RECORD.size + _HANDLE.size + handle_bytes
        handle, name = record[_RECORD.size : end], record[end:length].split(b"\0")[0]
        folder = self._folders.get(handle) or self._look_up(handle)
        return f"{folder}/{os.fsdecode(name)}"

    def _look_up(self, handle: bytes) -> str:
        """Path of a folder; "" if it is gone."""
        fd = _libc.open_by_handle_at(self._mount, handle, os.O_PATH | os.O_CLOEXEC)
        if fd < 0:
            return ""
        try:
            self._folders[handle] = path = str(Path(f"/proc/self/fd/{fd}").readlink())
        finally:
            os.close(fd)
        return path


def _writer(pid: int) -> tuple[int, str]:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino, command.decode("utf-8", "replace").strip()
    return 0, ""
