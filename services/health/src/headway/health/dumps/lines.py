"""Reads a file of anybody's folder: its beginning, or its lines one by one.

Such a folder may hold anything: opening a FIFO would block forever, a device may act on
being read, and a log may be larger than the memory. So only regular files are opened, and never
loaded as a whole.
"""

from __future__ import annotations

import codecs
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

HEAD_BYTES: Final = 64 << 10
"""Bytes at the start of a file by which its format is judged."""
MAX_LINE_BYTES: Final = 16 << 10
"""Longer lines are given in pieces: a progress bar may write megabytes without a line end."""
MAX_TEXT_BYTES: Final = 64 << 20
"""Largest file that is read if it only makes sense as a whole, such as JSON."""
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_PACKED: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
)
_TEXT_CONTROLS: Final = frozenset(b"\t\n\r\f\b\x1b\x07\v")
"""Control characters that programs print: ends of lines, tabs, and what colours a terminal."""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file that could be read."""

    raw: bytes
    """At most ``HEAD_BYTES`` of it."""
    size_bytes: int
    encoding: str
    """In which it is text; empty for a binary file."""

    @property
    def text(self) -> str:
        """Its beginning as text; empty for a binary file."""
        return self.raw.decode(self.encoding, errors="replace") if self.encoding else ""

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole file."""
        return len(self.raw) >= self.size_bytes


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that was not read."""

    reason: str
    """Such as "a FIFO" or "permission denied"."""


def read_head(path: Path) -> Head | Unreadable:
    """The beginning of a file, or why it was not read. It never blocks."""
    opened = _open(path)
    if isinstance(opened, Unreadable):
        return opened
    with opened as file:
        try:
            raw = file.read(HEAD_BYTES)
            size = max(len(raw), os.fstat(file.fileno()).st_size)
        except OSError as error:
            return Unreadable(_reason(error))
    if not raw:
        return Unreadable("empty")
    if packed := next((name for mark, name in _PACKED if raw.startswith(mark)), ""):
        return Unreadable(f"compressed ({packed}): unpack it first")
    return Head(raw, size, encoding_of(raw))


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file without their ends; what cannot be decoded is replaced.

    It ends where the file can no longer be read. A file that grows is read up to the size it had.
    """
    opened = _open(path)
    if isinstance(opened, Unreadable):
        return
    with opened as file:
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        left, rest = os.fstat(file.fileno()).st_size, ""
        while left > 0:
            try:
                block = file.read(min(left, HEAD_BYTES))
            except OSError:
                break
            if not block:
                break
            left -= len(block)
            *lines, rest = (rest + decoder.decode(block)).split("\n")
            for line in lines:
                yield from _pieces(line.rstrip("\r"))
            while len(rest) > MAX_LINE_BYTES:
                yield rest[:MAX_LINE_BYTES]
                rest = rest[MAX_LINE_BYTES:]
        rest += decoder.decode(b"", final=True)
        if rest:
            yield rest.rstrip("\r")


def read_text(path: Path, encoding: str = "utf-8") -> str | Unreadable:
    """A whole file of at most ``MAX_TEXT_BYTES``; a longer one is not read."""
    head = read_head(path)
    if isinstance(head, Unreadable):
        return head
    if head.size_bytes > MAX_TEXT_BYTES:
        return Unreadable(f"{head.size_bytes >> 20} MiB, more than {MAX_TEXT_BYTES >> 20} MiB")
    return "\n".join(read_lines(path, encoding))


def encoding_of(raw: bytes) -> str:
    """The encoding in which a file's beginning is text; empty for a binary file."""
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return encoding
    if (
        raw[:2048:2].count(0) > len(raw[:2048]) // 5
        or raw[1:2048:2].count(0) > len(raw[:2048]) // 5
    ):
        return _wide(raw[:2048])
    controls = sum(1 for byte in raw if byte < 32 and byte not in _TEXT_CONTROLS)
    if controls > len(raw) // 200:
        return ""
    try:
        # a character may be cut in two where the beginning ends
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return "latin-1" if _is_mostly_ascii(raw) else ""
    return "utf-8"


def _wide(raw: bytes) -> str:
    """UTF-16 without a mark, as Windows programs write it: every other byte of ASCII is zero."""
    even, odd = raw[::2].count(0), raw[1::2].count(0)
    if odd > len(raw) // 3 and even == 0:
        return "utf-16-le"
    if even > len(raw) // 3 and odd == 0:
        return "utf-16-be"
    return ""


def _is_mostly_ascii(raw: bytes) -> bool:
    return sum(1 for byte in raw if byte < 128) > 0.7 * len(raw)


def _open(path: Path) -> BinaryIO | Unreadable:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return Unreadable(_what(path))
        # without blocking, as a FIFO may have taken its place since
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        file = os.fdopen(descriptor, "rb")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            file.close()
            return Unreadable(_what(path))
    except (OSError, ValueError) as error:  # a name may contain a zero
        return Unreadable(_reason(error))
    return file


def _what(path: Path) -> str:
    mode = path.stat().st_mode
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "not a regular file")


def _reason(error: OSError | ValueError) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).lower()


def _pieces(line: str) -> Iterator[str]:
    if len(line) <= MAX_LINE_BYTES:
        yield line
        return
    for start in itertools.count(0, MAX_LINE_BYTES):
        if start >= len(line):
            return
        yield line[start : start + MAX_LINE_BYTES]
