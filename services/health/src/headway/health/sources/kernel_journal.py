"""The kernel's log from the journal of systemd, where ``/dev/kmsg`` cannot be read.

``journalctl`` follows the journal in a process of its own. It begins with the newest record that
was read before, or else with the newest there is. This record is old, but shows that the
journal has the kernel's log: without one, silence would look like a healthy machine.

Fields of a record: systemd.journal-fields(7); their form in JSON:
https://systemd.io/JOURNAL_EXPORT_FORMATS.
``journalctl -f`` ends by itself when its reader has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from headway.common.backoff import Backoff
from headway.common.log import get_logger
from headway.common.wire.messages.health import Finding
from headway.health.rulebook import RuleBook
from headway.health.sources.changes import boot_number, changed
from headway.health.sources.cursor_file import CursorFile
from headway.health.sources.lines import OF_KERNEL, LineMatcher

CURSOR_FILE: Final = "agent-journal.json"
"""In the node's shared memory: the journal's cursor of the newest record that was read."""
FIRST_RECORD_S: Final = 5.0
MAX_FIRST_RECORD_S: Final = 320.0
"""A process that shows no record for so long after its start is ended, and another one started.

The next one gets twice as long, up to the second time: on a slow disk the search of a journal of
many files takes minutes, and would never come to its end.
"""
RESTART_S: Final = 1.0
MAX_RESTART_S: Final = 60.0
"""Pause before the first restart, and the longest; it doubles with each failure in a row."""
END_S: Final = 0.2
"""How long the end of a killed process is awaited."""
MAX_BLOCK_BYTES: Final = 1 << 20
"""Most bytes of output taken in one reading."""
MAX_RECORD_BYTES: Final = 1 << 18
"""A longer record is skipped: ``journalctl`` leaves out fields above 4 KiB."""
NAME: Final = "journalctl -k"
_COMMAND: Final = ("journalctl", "-k", "-f", "-o", "json", "--no-pager")
_CURSOR = re.compile(r"[\w=;]{1,512}")

_log = get_logger("kernel journal")


class JournalSource:
    """Follows the kernel's records in the journal; no call waits for one.

    Args:
        refused: why ``/dev/kmsg`` is not read.
        cursors: file in which the position is kept for the next agent.
    """

    def __init__(
        self,
        rules: RuleBook,
        cursors: Path | None = None,
        refused: str = "",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refused, self._clock_s = refused, clock_s
        self._matcher = LineMatcher(rules, Path(NAME), OF_KERNEL)
        self._boot, self._offset = boot_number(), 0
        self._saved = CursorFile(cursors, self._boot)
        cursor = self._saved.load(str)
        self._cursor = cursor if cursor and _CURSOR.fullmatch(cursor) else ""
        self._patience_s = FIRST_RECORD_S
        self._process: subprocess.Popen[bytes] | None = None
        self._restart = Backoff(RESTART_S, MAX_RESTART_S)
        self._started_s = 0.0
        self._has_first = self._is_drained = self._is_reported = False
        self._rest = self._complaint = b""

    def read(self) -> list[Finding]:
        """The findings of the records since the last call, or that there are none to be read."""
        now_s = self._clock_s()
        if self._process is None and self._restart.is_over(now_s):
            try:
                self._start(now_s)
            except OSError as error:
                return self._failed(f"journalctl cannot be started: {error.strerror}", now_s)
        if self._process is None:
            return []
        has_ended = self._process.poll() is not None  # asked first: it prints nothing afterwards
        before = self._cursor
        found = list(self._find(self._lines()))
        if self._cursor != before:
            self._saved.save(self._cursor)
        if has_ended and self._is_drained:
            found += self._failed(f"journalctl ended with code {self._process.returncode}", now_s)
        elif not self._has_first and now_s - self._started_s > self._patience_s:
            self._patience_s = min(2 * self._patience_s, MAX_FIRST_RECORD_S)
            found += self._failed("journalctl shows no record of the kernel", now_s)
        return found

    @property
    def is_open(self) -> bool:
        """Whether the kernel's records are being read."""
        return self._process is not None and self._has_first

    def close(self) -> None:
        self._end()

    # ---- the process --------------------------------------------------------------------------
    def _start(self, now_s: float) -> None:
        place = ("-n", "1") if not self._cursor else ("--no-tail", f"--cursor={self._cursor}")
        self._process = subprocess.Popen(
            [*_COMMAND, *place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        self._started_s, self._has_first = now_s, False
        self._rest = self._complaint = b""

    def _failed(self, what: str, now_s: float) -> list[Finding]:
        """Start again after a pause; the first failure in a row is a finding."""
        complaint = self._complaint.decode(errors="replace").strip().splitlines()
        if b"cursor" in self._complaint:
            self._cursor = ""  # this journal does not know it
        self._end()
        self._restart.fail(now_s)
        if self._is_reported:
            return []
        self._is_reported = True
        reasons = (self._refused, what + (f": {complaint[-1][:200]}" if complaint else ""))
        line = "; ".join(reason for reason in reasons if reason)
        _log.warning("the kernel log is not searched", reason=line)
        return [changed("kernel_log_unreadable", "kernel", "node", line, file=NAME)]

    def _end(self) -> None:
        """Kill the process; one that cannot be ended is left to itself, without its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)

    # ---- its output ---------------------------------------------------------------------------
    def _lines(self) -> Iterator[bytes]:
        """The complete lines of what it has printed; what is too long is left out."""
        assert self._process is not None
        self._complaint = (self._complaint + _available(self._process.stderr))[-MAX_RECORD_BYTES:]
        block = _available(self._process.stdout)
        self._is_drained = not block
        *lines, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MAX_RECORD_BYTES:
            self._rest = b" " * MAX_RECORD_BYTES  # of this record only the end is missing
        yield from (line for line in lines if len(line) < MAX_RECORD_BYTES)

    def _find(self, lines: Iterator[bytes]) -> Iterator[Finding]:
        for line in lines:
            record = _record(line)
            cursor = record.get("__CURSOR")
            if not isinstance(cursor, str) or not _CURSOR.fullmatch(cursor):
                continue
            is_first, self._has_first = not self._has_first, True
            is_known = cursor == self._cursor or (is_first and not self._cursor)
            self._cursor = cursor
            if is_first:
                self._restart.succeed()
                self._is_reported = False
            if not is_known:
                yield from self._of_record(record)

    def _of_record(self, record: dict[str, Any]) -> Iterator[Finding]:
        """The findings of one record, which may have several lines."""
        written_us = _microseconds(record.get("__MONOTONIC_TIMESTAMP"))
        age_s = max(0.0, time.monotonic() - written_us / 1e6) if written_us else 0.0
        self._offset = max(self._offset + 1, written_us)
        for text in _message(record.get("MESSAGE")).splitlines():
            found = self._matcher.find(text, self._boot, self._offset, age_s=age_s)
            if found is not None:
                yield found


def _available(pipe: Any) -> bytes:
    """What can be read of a pipe now, at most ``MAX_BLOCK_BYTES``."""
    blocks, size = [], 0
    with contextlib.suppress(BlockingIOError):
        while size < MAX_BLOCK_BYTES and (block := os.read(pipe.fileno(), 1 << 16)):
            blocks.append(block)
            size += len(block)
    return b"".join(blocks)


def _record(line: bytes) -> dict[str, Any]:
    """The fields of a record; none of what is not one."""
    try:
        record = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _message(value: object) -> str:
    """The text of a field: a string, or the bytes of what is not UTF-8, or null if too long."""
    if isinstance(value, list):
        with contextlib.suppress(ValueError, TypeError):
            return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else ""


def _microseconds(value: object) -> int:
    """A time in the journal, which writes numbers as strings; 0 for what is not one."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value) else 0
