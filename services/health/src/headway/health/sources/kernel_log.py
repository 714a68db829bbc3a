"""The kernel's log, from ``/dev/kmsg``, the journal, or a file of its lines.

What was there when the agent first read it is a baseline, not news. After a restart within the same
boot the agent continues behind the record that it has read last.

``/dev/kmsg``: Documentation/ABI/testing/dev-kmsg. A file may have lines as of ``dmesg``, ``dmesg
-T`` or ``/dev/kmsg``; what is appended to it is news. If another file takes its place, such as the
next dump of the same log, lines whose stamp is older than the agent or than what was read are not.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from headway.common.log import get_logger
from headway.common.wire.messages.health import Finding
from headway.health.rulebook import RuleBook
from headway.health.sources.changes import boot_number, changed
from headway.health.sources.cursor_file import CursorFile
from headway.health.sources.kernel_journal import CURSOR_FILE as JOURNAL_FILE
from headway.health.sources.kernel_journal import JournalSource
from headway.health.sources.lines import OF_KERNEL, LineMatcher

KMSG: Final = Path("/dev/kmsg")
CURSOR_FILE: Final = "agent-kernel.json"
"""In the node's shared memory: the boot and the sequence number that the agent has read up to."""
MAX_RECORD_BYTES: Final = 8192
"""The longest record of ``/dev/kmsg``; a shorter buffer gets EINVAL."""
MAX_RECORDS: Final = 5000
"""In one reading; the rest is read with the next one."""
MAX_BLOCK_BYTES: Final = 1 << 20
"""Most bytes of a file taken in one reading."""
MAX_BEHIND_BYTES: Final = 8 << 20
"""Most unread bytes of a file; of one that grows faster, the older part is skipped."""
OUT_OF_ORDER_S: Final = 1.0
"""Stamps of lines may be so much older than that of the line before: processors write at the same
time, and ``dmesg -T`` gives whole seconds."""
MAX_AHEAD_S: Final = 86400.0
"""A stamp further in the future is damaged; a clock that was set explains less."""
_RECORD = re.compile(r"(\d+),(\d+),(\d+),[^;]*;(.*)", re.DOTALL)
_UPTIME = re.compile(r"\[\s*(\d+\.\d+)\]")
_WALL = re.compile(r"\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]")

_log = get_logger("kernel log")


def open_kernel_log(
    path: Path, rules: RuleBook, folder: Path | None
) -> KmsgSource | KernelFile | JournalSource:
    """The source for a path: a character device is read by records, all else as a file.

    Where the device cannot be read, and there is a ``journalctl``, the journal takes its place. The
    positions of the device and the journal are kept in ``folder``.
    """
    try:
        is_device = stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        is_device = path == KMSG
    if not is_device:
        return KernelFile(path, rules)
    kmsg = KmsgSource(path, rules, None if folder is None else folder / CURSOR_FILE)
    if kmsg.is_open or shutil.which("journalctl") is None:
        return kmsg
    return JournalSource(rules, None if folder is None else folder / JOURNAL_FILE, kmsg.refused)


class KmsgSource:
    """Reads the records of ``/dev/kmsg``, never waiting for one."""

    def __init__(self, path: Path, rules: RuleBook, cursors: Path | None = None) -> None:
        self._path, self._boot = path, boot_number()
        self._saved = CursorFile(cursors, self._boot)
        self._matcher = LineMatcher(rules, path, OF_KERNEL)
        self._fd: int | None = None
        self._newest = -1
        self.refused = ""
        """Why it cannot be read, until that was reported."""
        self._open()

    def read(self) -> list[Finding]:
        """The findings of the records since the last call."""
        if self.refused:
            line, self.refused = self.refused, ""
            name = str(self._path)
            return [changed("kernel_log_unreadable", "kernel", "node", line, file=name)]
        found: list[Finding] = []
        before = self._newest
        for sequence, age_s, line in self._records():
            finding = self._matcher.find(line, self._boot, sequence, age_s=age_s)
            found += [finding] if finding is not None else []
        if self._newest != before:
            self._saved.save(self._newest)
        return found

    @property
    def is_open(self) -> bool:
        """Whether the log is being read."""
        return self._fd is not None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        """Open it behind what is old: that of the agent before, or else all that is there."""
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            saved = self._saved.load(int)
            if saved is not None and saved >= 0:
                self._newest = saved
            else:
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.refused = f"{self._path} cannot be read: {error.strerror}"
            _log.warning("the kernel's records are not read", reason=self.refused)

    def _records(self) -> Iterator[tuple[int, float, str]]:
        """(sequence number, age, line) of what is new; a record may be several lines."""
        for _ in range(MAX_RECORDS):
            if self._fd is None:
                return
            try:
                raw = os.read(self._fd, MAX_RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next one follows
            except OSError as error:
                self.refused = f"{self._path} cannot be read: {error.strerror}"
                self.close()
                return
            parsed = _RECORD.match(raw.decode(errors="replace"))
            if parsed is None or int(parsed[2]) <= self._newest:
                continue
            self._newest = int(parsed[2])
            age_s = max(0.0, time.monotonic() - int(parsed[3]) / 1e6)
            text = parsed[4].partition("\n ")[0]  # without the record's dictionary
            for line in text.replace("\\x0a", "\n").splitlines():
                yield self._newest, age_s, line


class KernelFile:
    """Follows a file of kernel lines, from its end."""

    def __init__(
        self, path: Path, rules: RuleBook, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._path, self._wall_s, self._started_s = path, wall_s, wall_s()
        self._matcher = LineMatcher(rules, path, OF_KERNEL)
        self._booted_s = _booted_s()
        self._inode, self._offset = self._end()
        self._is_replaced = self._is_old = False
        self._newest_s = self._started_s
        self._recent: dict[str, float] = {}
        """The newest lines with their stamps."""

    def read(self) -> list[Finding]:
        """The findings of the lines that were appended since the last call."""
        try:
            with self._path.open("rb") as file:
                info = os.fstat(file.fileno())  # of this file, whatever takes its place now
                if info.st_ino != self._inode or info.st_size < self._offset:
                    self._inode, self._offset, self._is_replaced = info.st_ino, 0, True
                    self._is_old = False
                behind = info.st_size - self._offset
                if behind > MAX_BEHIND_BYTES:
                    self._offset += behind - MAX_BEHIND_BYTES // 2
                    _log.warning("kernel lines were not searched", file=str(self._path))
                file.seek(self._offset)
                block = file.read(MAX_BLOCK_BYTES)
        except OSError:
            return []  # not there yet, or being replaced
        return list(self._find(block))

    @property
    def is_open(self) -> bool:
        """Whether the file was there when it was last read."""
        return self._inode != 0

    def close(self) -> None:
        """Nothing is held."""

    def _find(self, block: bytes) -> Iterator[Finding]:
        end = block.rfind(b"\n") + 1 or (len(block) if len(block) == MAX_BLOCK_BYTES else 0)
        for raw in block[:end].splitlines(keepends=True):
            line = raw.decode(errors="replace").rstrip()
            self._is_old = self._was_read(line)
            finding = self._matcher.find(line, self._inode, self._offset)
            self._offset += len(raw)
            if finding is not None and not (self._is_replaced and self._is_old):
                yield finding

        kept_s = self._newest_s - OUT_OF_ORDER_S
        self._recent = {line: at_s for line, at_s in self._recent.items() if at_s >= kept_s}

    def _was_read(self, line: str) -> bool:
        """Whether a line is older than the newest that were read, or is one of these.

        One without a stamp, or with an impossible one, belongs to the line before it.
        """
        written_s = written_at(line, self._booted_s)
        if written_s is None or written_s > self._wall_s() + MAX_AHEAD_S:
            return self._is_old
        if written_s < self._newest_s - OUT_OF_ORDER_S or line in self._recent:
            return True
        self._recent[line] = written_s
        self._newest_s = max(self._newest_s, written_s)
        return False

    def _end(self) -> tuple[int, int]:
        try:
            info = self._path.stat()
        except OSError:
            return 0, 0
        return info.st_ino, info.st_size


def _booted_s() -> float:
    """The wall time of the boot, which stamps without a date count from."""
    return time.time() - time.monotonic()


def written_at(line: str, booted_s: float) -> float | None:
    """The wall time in the stamp of a line of ``dmesg``, ``dmesg -T`` or ``/dev/kmsg``."""
    if found := _WALL.match(line):
        try:
            return datetime.strptime(found[1], "%a %b %d %H:%M:%S %Y").timestamp()
        except (ValueError, OverflowError):
            return None
    if found := _UPTIME.match(line):
        return booted_s + float(found[1])
    if found := _RECORD.match(line):
        return booted_s + int(found[3]) / 1e6
    return None
