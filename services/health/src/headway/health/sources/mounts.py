"""A folder that a run needs: whether its file system answers, and is still writable."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headway.common.wire.messages.health import Finding
from headway.health.config import HealthConfig
from headway.health.sources.changes import Lasting, again_s, changed

FAILING: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ESHUTDOWN, errno.EREMOTEIO}
)
"""Errors of a file system that fails, as opposed to a folder that is not there."""


class MountSource:
    """Asks one file system; a call that hangs is reported by the thread that reads this."""

    def __init__(
        self,
        path: Path,
        config: HealthConfig,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._clock_s = path, clock_s
        self._was_writable = False
        self._read_only, self._failing = (Lasting(again_s=again_s(config)) for _ in range(2))

    def read(self) -> list[Finding]:
        """Whether it fails, or has become read-only since the start."""
        error, is_read_only = "", False
        try:
            is_read_only = bool(os.statvfs(self._path).f_flag & os.ST_RDONLY)
            self._was_writable = self._was_writable or not is_read_only
        except OSError as failure:
            error = str(failure.strerror) if failure.errno in FAILING else ""
        now_s = self._clock_s()
        found = []
        if self._failing.is_due(bool(error), now_s):
            found.append(finding("mount_error", self._path, f"fails: {error}"))
        if self._read_only.is_due(is_read_only and self._was_writable, now_s):
            found.append(finding("mount_read_only", self._path, "has become read-only"))
        return found

    def close(self) -> None:
        """Nothing is held."""


def finding(rule: str, path: Path, what: str) -> Finding:
    """A finding about the file system at a path."""
    return changed(rule, "mount", "mount", f"{path} {what}", name=str(path))
