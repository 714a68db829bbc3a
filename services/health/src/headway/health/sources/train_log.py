"""Finds new log lines that match a keyword rule: an incremental tail of every log of a folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from headway.common.node.files import replace_json
from headway.common.wire.messages.health import LogHit
from headway.health.policy import match

MAX_LINE_BYTES = 4096
"""Longer lines are matched in pieces, since progress bars may not have line ends."""
MAX_SHOWN = 300
"""Characters of a line that are sent in a beat."""
_RANK_IN_LINE = re.compile(r'"rank":\s*(\d+)|\[rank\s?(\d+)\]', re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"(?:^|[-_.])r(?:ank)?[-_]?(\d+)(?=[-_.]|$)")


@dataclass(slots=True)
class _Cursor:
    inode: int
    offset: int
    """Position of the next unread line."""


class LogTail:
    """Follows every file below ``folder`` that matches ``pattern``.

    Files that exist when the tail is created are read from their end; later ones from their start.
    A file that shrank, or whose name now belongs to another inode, is read from its start again:
    what a rotation left unread in the old file is lost. With ``cursors`` the positions are kept in
    a file, so that a restarted agent continues where its predecessor stopped. Single-threaded.
    """

    def __init__(self, folder: Path, pattern: str = "*.log", cursors: Path | None = None) -> None:
        self._folder, self._pattern, self._cursor_file = folder, pattern, cursors
        kept = self._load_cursors()
        self._cursors = kept if kept is not None else {}
        if kept is None:
            for path in self._files():
                with contextlib.suppress(FileNotFoundError):
                    stat = path.stat()
                    self._cursors[str(path)] = _Cursor(stat.st_ino, stat.st_size)
            self._save_cursors()

    def poll(self, max_bytes: int) -> list[LogHit]:
        """Read at most ``max_bytes`` of new text; returns the lines that matched
        a rule, oldest first."""
        hits: list[LogHit] = []
        left = max_bytes
        for path in self._files():
            if left <= 0:
                break
            left -= self._poll_file(path, left, hits)
        if left < max_bytes:
            self._save_cursors()
        return hits

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(self._pattern) if path.is_file())

    def _poll_file(self, path: Path, max_bytes: int, hits: list[LogHit]) -> int:
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                cursor = self._cursors.setdefault(str(path), _Cursor(stat.st_ino, 0))
                if cursor.inode != stat.st_ino or stat.st_size < cursor.offset:
                    cursor.inode, cursor.offset = stat.st_ino, 0
                file.seek(cursor.offset)
                block = file.read(max_bytes)
        except OSError:
            return 0  # removed between listing and opening
        for line in _lines(block):
            _append_hit(hits, path, cursor, line)
            cursor.offset += len(line)
        return len(block)

    def _load_cursors(self) -> dict[str, _Cursor] | None:
        try:
            rows = json.loads((self._cursor_file or Path()).read_bytes())
            return {
                path: _Cursor(int(inode), int(offset)) for path, (inode, offset) in rows.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return None  # first start, or a damaged file

    def _save_cursors(self) -> None:
        if self._cursor_file is None:
            return
        rows = {path: (cursor.inode, cursor.offset) for path, cursor in self._cursors.items()}
        try:
            replace_json(self._cursor_file, rows)
        except OSError:
            self._cursor_file = None  # on a full disk only the saved positions are lost


def _lines(block: bytes) -> list[bytes]:
    """Complete lines with their ends; an unfinished line only if it is too long."""
    lines = block.splitlines(keepends=True)
    if lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < MAX_LINE_BYTES:
        lines.pop()
    return lines


def _append_hit(hits: list[LogHit], path: Path, cursor: _Cursor, raw: bytes) -> None:
    line = raw.decode(errors="replace").rstrip()
    matched = match(line[:MAX_LINE_BYTES])
    if matched is None:
        return
    rule, detail = matched
    hits.append(
        LogHit(
            rule=rule.name,
            file=str(path),
            inode=cursor.inode,
            offset=cursor.offset,
            line=line[:MAX_SHOWN],
            rank=_rank_of(line, path.name),
            detail=detail[:MAX_SHOWN],
        )
    )


def _rank_of(line: str, name: str) -> int:
    found = _RANK_IN_LINE.search(line) or _RANK_IN_NAME.search(name)
    return int(next(group for group in found.groups() if group is not None)) if found else -1
