"""Finds new log lines that match a rule: an incremental tail of every log of a folder."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.common.log import get_logger
from headway.common.log_rotation import ROTATED, rotated
from headway.common.node.files import replace_json
from headway.common.wire.loop import Throttle
from headway.common.wire.messages.health import Finding
from headway.health.rule_files import shipped
from headway.health.rulebook import RuleBook
from headway.health.sources.lines import LineMatcher

CURSOR_FILE = "agent-cursors.json"
"""In the node's shared memory: where the agent has read up to."""
MAX_LINE_BYTES = 4096
"""Longer lines are matched in pieces, since progress bars may not have line ends."""
MAX_BEHIND_BYTES = 16 << 20
"""Most unread bytes of a file that grows faster than it is read; more is skipped and logged."""
_log = get_logger("logs")


@dataclass(slots=True)
class _Cursor:
    inode: int
    offset: int
    """Position of the next unread line."""
    base: int = 0
    """Bytes of earlier files of the same name, added to the places of findings: a rotation may give
    the next file the inode of one before."""


class LogTail:
    """Follows every file below ``folder`` that matches ``pattern``.

    Files that exist when the tail is created are read from their end; later ones from their start.
    A file that shrank, or whose name now belongs to another inode, is read from its start again,
    and what a rotation left unread in ``NAME.log.1`` is read there. With ``cursors`` the positions
    are kept in a file, so that a restarted agent continues where its predecessor stopped, and that
    a run which begins again can mark its earlier lines as read (``mark_read``). Single-threaded.
    """

    def __init__(
        self,
        folder: Path,
        pattern: str = "*.log",
        cursors: Path | None = None,
        rules: RuleBook | None = None,
    ) -> None:
        """Without ``rules`` those that come with Headway are used."""
        self._folder, self._pattern, self._cursor_file = folder, pattern, cursors
        self._rules = rules or shipped()
        self._throttle = Throttle()
        self._matchers: dict[str, LineMatcher] = {}
        self._bases: dict[str, int] = {}
        """Path -> ``base`` of the next file there, after one that was moved aside."""
        kept = self._load_cursors()
        self._cursors = _ends(folder, pattern) if kept is None else kept
        if kept is None:
            self._save_cursors()

    def poll(self, max_bytes: int) -> list[Finding]:
        """Read about ``max_bytes`` of new text; return the lines that matched a rule.

        Each file gets its share of the bytes. The lines of a file are oldest first.
        """
        found: list[Finding] = []
        unread = sorted(self._unread(), key=lambda one: one[1])
        left = max_bytes
        for index, (path, num_bytes) in enumerate(unread):
            if left <= 0:
                break
            # what a short file leaves of its share is for the longer ones behind it
            share = max(MAX_LINE_BYTES, left // (len(unread) - index))
            left -= self._poll_file(path, min(share, num_bytes), found)
        if left < max_bytes:
            self._save_cursors()
        return found

    def _unread(self) -> Iterator[tuple[Path, int]]:
        """The files with new text and how much; of a file far behind only the end is left."""
        for path in self._followed():
            try:
                stat = path.stat()
            except OSError:
                continue  # removed since it was listed
            cursor = self._cursors.get(str(path))
            if cursor is None:
                cursor = _Cursor(stat.st_ino, 0, self._bases.pop(str(path), 0))
            elif cursor.inode != stat.st_ino or stat.st_size < cursor.offset:
                cursor = _Cursor(stat.st_ino, 0, cursor.base + cursor.offset)
            self._cursors[str(path)] = cursor
            behind = stat.st_size - cursor.offset
            if behind > MAX_BEHIND_BYTES:
                skipped = behind - MAX_BEHIND_BYTES // 2
                cursor.offset += skipped
                if self._throttle.admit(str(path)) is not None:
                    _log.warning("log text was not searched", file=str(path), num_bytes=skipped)
            if stat.st_size > cursor.offset:
                yield path, stat.st_size - cursor.offset

    def _followed(self) -> list[Path]:
        """The files of the pattern, and those that were moved aside, as long as they exist."""
        files = _files(self._folder, self._pattern)
        for path in files:
            older, cursor = rotated(path), self._cursors.get(str(path))
            inode = _inode(older)
            if cursor is not None and cursor.inode == inode:
                self._cursors[str(older)] = cursor
                self._bases[str(path)] = cursor.base + max(cursor.offset, _size(older))
                del self._cursors[str(path)]
            kept = self._cursors.get(str(older))
            if kept is not None and kept.inode != inode:
                del self._cursors[str(older)]
        return [*(Path(name) for name in self._cursors if name.endswith(ROTATED)), *files]

    def _poll_file(self, path: Path, max_bytes: int, found: list[Finding]) -> int:
        cursor = self._cursors[str(path)]
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_ino != cursor.inode:
                    return 0  # rotated just now: the next poll begins at its start
                file.seek(cursor.offset)
                block = file.read(max_bytes)
        except OSError:
            return 0  # removed between listing and opening
        log = path.with_name(path.name.removesuffix(ROTATED))
        matcher = self._matchers.setdefault(str(log), LineMatcher(self._rules, log))
        for raw in _lines(block):
            line = raw.decode(errors="replace").rstrip()
            finding = matcher.find(line, cursor.inode, cursor.base + cursor.offset)
            found += [finding] if finding is not None else []
            cursor.offset += len(raw)
        return len(block)

    def _load_cursors(self) -> dict[str, _Cursor] | None:
        try:
            rows = json.loads((self._cursor_file or Path()).read_bytes())
            return {path: _Cursor(*map(int, row)) for path, row in rows.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # first start, or a damaged file

    def _save_cursors(self) -> None:
        if self._cursor_file is None:
            return
        try:
            _save(self._cursor_file, self._cursors)
        except OSError:
            self._cursor_file = None  # on a full disk only the saved positions are lost


def mark_read(folder: Path, pattern: str, cursors: Path) -> None:
    """Count the present content of the logs as read.

    It does not matter what a tail with these ``cursors`` had reached: what it finds from now on was
    written later.

    Raises:
        OSError: ``cursors`` cannot be written.
    """
    _save(cursors, _ends(folder, pattern))


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _ends(folder: Path, pattern: str) -> dict[str, _Cursor]:
    found = {}
    for path in _files(folder, pattern):
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            found[str(path)] = _Cursor(stat.st_ino, stat.st_size)
    return found


def _save(file: Path, cursors: Mapping[str, _Cursor]) -> None:
    rows = {path: (one.inode, one.offset, one.base) for path, one in cursors.items()}
    replace_json(file, rows)


def _lines(block: bytes) -> list[bytes]:
    """Complete lines with their ends; an unfinished line only if it is too long."""
    lines = block.splitlines(keepends=True)
    if lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < MAX_LINE_BYTES:
        lines.pop()
    return lines
