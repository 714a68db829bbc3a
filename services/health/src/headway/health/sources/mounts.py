"""A folder that a run needs: whether its file system answers, is writable and has room."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import Lasting, again_s, changed, read_text

FAILING: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO}
)
"""Errors of a file system that fails, as opposed to a folder that is not there."""

FULL_BYTES: Final = 16 << 20
"""A file system with less is full, if that also is less than ``FULL_SHARE`` of it."""
FULL_SHARE: Final = 1e-3

STALL_S: Final = 2.0
"""A disk that completes nothing for so long, though something is under way, has stalled: the
slowest of those in use complete several requests a second."""
STALLED: Final = "is on a disk that has completed nothing of what is under way for"
_READS, _WRITES, _UNDER_WAY, _DISCARDS, _FLUSHES = 0, 4, 8, 11, 15
"""Columns of a disk's ``stat`` (Documentation/block/stat.rst)."""


class MountSource:
    """Asks one file system; a call that hangs is reported by the thread that reads this."""

    def __init__(
        self,
        path: Path,
        config: HealthConfig,
        clock_s: Callable[[], float] = time.monotonic,
        sysfs: Path = Path("/sys"),
    ) -> None:
        self._path, self._clock_s = path, clock_s
        self._disks = sysfs / "dev" / "block"
        self._completed = ""
        self._stalled = Lasting(STALL_S, again_s(config))
        self._was_writable = False
        self._read_only, self._failing, self._full = (
            Lasting(again_s=again_s(config)) for _ in range(3)
        )

    def read(self) -> list[Finding]:
        """Whether it fails, is full, or has become read-only since the start."""
        error, is_read_only, lacks = "", False, ""
        try:
            answer = os.statvfs(self._path)
            is_read_only = bool(answer.f_flag & os.ST_RDONLY)
            lacks = "" if is_read_only else _lacks(answer)
            self._was_writable = self._was_writable or not is_read_only
        except OSError as failure:
            error = str(failure.strerror) if failure.errno in FAILING else ""
        now_s = self._clock_s()
        found = []
        if self._stalled.is_due(self._is_stalled(), now_s):
            found.append(finding("mount_stalled", self._path, f"{STALLED} {STALL_S:.0f} s"))
        if self._failing.is_due(bool(error), now_s):
            found.append(finding("mount_error", self._path, f"fails: {error}"))
        if self._read_only.is_due(is_read_only and self._was_writable, now_s):
            found.append(finding("mount_read_only", self._path, "has become read-only"))
        if self._full.is_due(bool(lacks), now_s):
            found.append(finding("mount_full", self._path, f"has no {lacks} left"))
        return found

    def _is_stalled(self) -> bool:
        """Whether its disk completed nothing since the last reading, of what was under way.

        File systems without a disk of their own, such as those of a network, never are.
        """
        try:
            device = self._path.stat().st_dev
        except OSError:
            return False
        text = read_text(self._disks / f"{os.major(device)}:{os.minor(device)}" / "stat") or ""
        columns = text.split()
        if len(columns) <= _UNDER_WAY:
            return False
        ended = (_READS, _WRITES, _DISCARDS, _FLUSHES)
        before, self._completed = (
            self._completed,
            " ".join(columns[column] for column in ended if column < len(columns)),
        )
        return columns[_UNDER_WAY] != "0" and self._completed == before

    def close(self) -> None:
        """Nothing is held."""


def _lacks(answer: os.statvfs_result) -> str:
    """What is used up: bytes or, where a file system has a fixed number of them, files."""
    free_bytes = answer.f_bavail * answer.f_frsize
    if free_bytes < FULL_BYTES and answer.f_bavail < FULL_SHARE * answer.f_blocks:
        return "room"
    return "inodes" if answer.f_files and not answer.f_favail else ""


def finding(rule: str, path: Path, what: str) -> Finding:
    """A finding about the file system at a path."""
    return changed(rule, "mount", "mount", f"{path} {what}", name=str(path))
