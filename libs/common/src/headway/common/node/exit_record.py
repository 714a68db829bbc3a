"""A process's record of its own end, kept in shared memory for those that look at it later."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.common.errors import CorruptError
from headway.common.node.process import ProcessId
from headway.common.node.segment import LINE_BYTES, Segment

_WORDS_MAGIC = b"HWWORDS\0"
_WORDS_VERSION = 1
_WORDS_BYTES = 16384
_LENGTH = 8  # word: bytes of the record, 0 = none
_BODY = 2 * LINE_BYTES
_MAX_REASON = 1000
_MAX_CULPRIT = 2400  # characters; at most 4 bytes each, or 6 as a JSON escape


@dataclass(frozen=True, slots=True)
class Words:
    """A process's record of its own end, for processes that are not its parent.

    ``code`` is the intended exit code, ``reason`` one line, ``culprit`` the cause or a traceback.
    Without a record the process was killed, or lost with its machine.
    """

    pid: int
    start_ticks: int
    code: int
    reason: str
    culprit: str
    at_ns: int  # monotonic clock of this host

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, self.start_ticks)


class ExitRecord:
    """The record in one file. Call ``prepare`` early: later there may be no memory left for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._segment: Segment | None = None

    def prepare(self) -> None:
        """Allocate the file, or clear the one that a predecessor left."""
        segment = self._open()
        segment.words[_LENGTH] = 0

    def write(self, code: int, reason: str, culprit: str = "") -> None:
        """Write the record, replacing an earlier one. Long texts are truncated.

        Raises:
            InputError: not prepared, and the file cannot be made.
        """
        me = ProcessId.current()
        words = Words(
            me.pid,
            me.start_ticks,
            code,
            reason[:_MAX_REASON],
            culprit[:_MAX_CULPRIT],
            time.monotonic_ns(),
        )
        body = json.dumps(asdict(words), ensure_ascii=False).encode("utf-8", "replace")
        if len(body) > _WORDS_BYTES - _BODY:  # control characters, escaped sixfold
            body = json.dumps({**asdict(words), "culprit": ""}).encode()
        segment = self._open()
        segment.words[_LENGTH] = 0
        segment.buffer[_BODY : _BODY + len(body)] = body
        segment.words[_LENGTH] = len(body)

    def read(self) -> Words | None:
        """The record, or None if there is none (yet)."""
        try:
            segment = self._segment or Segment.open(self.path, _WORDS_MAGIC, _WORDS_VERSION)
        except FileNotFoundError:
            return None
        try:
            length = segment.words[_LENGTH]
            body = bytes(segment.buffer[_BODY : _BODY + length])
        finally:
            if segment is not self._segment:
                segment.close()
        if not length:
            return None
        try:
            return Words(**json.loads(body))
        except (ValueError, TypeError) as error:
            raise CorruptError(
                f"{self.path} holds no readable record", remedy="remove the file"
            ) from error

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _open(self) -> Segment:
        if self._segment is None:
            self._segment = Segment.create_or_open(
                self.path, _WORDS_BYTES, _WORDS_MAGIC, _WORDS_VERSION
            )
        return self._segment
