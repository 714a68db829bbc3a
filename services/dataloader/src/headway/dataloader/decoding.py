"""Finds how a text file is encoded, and reads it in pieces of bounded size.

A byte order mark decides; then UTF-8, if the bytes are UTF-8; then Windows-1252, which contains the
printable part of Latin-1. Anything else is not text: a file with NUL bytes or many other control
characters, or in an encoding of ISO 2022, which writes Japanese, Korean or Chinese as ASCII with
escape sequences. UTF-7 and HZ look like ASCII.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import InputError

PIECE_BYTES = 1 << 20
READ_ENCODINGS = "UTF-8, UTF-16, UTF-32 or Windows-1252"
_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ASCII = bytes(range(0x80))
_CONTROLS = bytes({*range(0x20), 0x7F} - set(b"\b\t\n\v\f\r\x1b"))
_NOT_CP1252 = b"\x81\x8d\x8f\x90\x9d"
_MOST_HIGH = 0.3
"""Largest share of bytes above 127 in a text of western Europe; it is below 0.1 in all of them."""
_MOST_CONTROLS = 0.05
"""Largest share of control characters in a text that is otherwise ASCII or UTF-8. Not counted are
white space, a terminal's colors and a printer's overstrikes."""
_ISO_2022 = re.compile(rb"\x1b(?:\$[@-D]|\$[()*+][@-Z]|\([IJ]|&@)")
"""Escape sequences that choose a set of characters (ECMA-35, RFC 1468, 1554, 1557, 1922); a text
with them has no byte above 127. A terminal's begin with ESC [, and ESC ( B and ESC ( 0 are its
reset and its lines."""
_ESCAPE_BYTES = 3  # of a sequence that the next piece completes
_FEW_BROKEN = 0.25  # of the bytes above 127 in a text that is UTF-8 otherwise


@dataclass(frozen=True)
class Encoding:
    """``name`` as in ``codecs``, and ``mark``, the bytes before the text.

    ``is_broken``: some bytes are not of this encoding and are replaced by U+FFFD.
    """

    name: str
    mark: int = 0
    is_broken: bool = False


def encoding_of(path: Path) -> Encoding | None:
    """How the text in ``path`` is encoded, None if it is not text. Reads the whole file.

    Raises:
        InputError: it cannot be read.
    """
    head = next(_bytes_of(path, 0), b"")
    for mark, name in _MARKS:
        if head.startswith(mark):
            found = Encoding(name, len(mark))
            return _marked(path, found)
    return _unmarked(path)


def _marked(path: Path, encoding: Encoding) -> Encoding | None:
    decoder = codecs.getincrementaldecoder(encoding.name)("strict")
    try:
        for raw in _bytes_of(path, encoding.mark):
            if "\0" in decoder.decode(raw):
                return None
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return Encoding(encoding.name, encoding.mark, is_broken=True)
    return encoding


def _unmarked(path: Path) -> Encoding | None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    total = high = replaced = controls = outside = switches = 0
    end = b""
    for raw in _bytes_of(path, 0):
        if b"\0" in raw:
            return None
        switches += bool(_ISO_2022.search(end + raw))
        end = raw[-_ESCAPE_BYTES:]
        text = decoder.decode(raw)
        total += len(raw)
        if raw.isascii() and text.isascii():
            controls += _count(raw, _CONTROLS)
            continue
        high += len(raw.translate(None, _ASCII))
        replaced += text.count("\ufffd") - raw.count("\ufffd".encode())
        controls += _count(raw, _CONTROLS)
        outside += _count(raw, _NOT_CP1252)
    replaced += decoder.decode(b"", final=True).count("\ufffd")
    if (switches and not high) or controls > _MOST_CONTROLS * total:
        return None
    if replaced <= 0:
        return Encoding("utf-8")
    if replaced < _FEW_BROKEN * high:
        return Encoding("utf-8", is_broken=True)
    if controls or outside or high > _MOST_HIGH * total:
        return None
    return Encoding("cp1252")


def text_of(path: Path, encoding: Encoding) -> Iterator[str]:
    """The text in pieces of about 1 MiB; what is broken is replaced by U+FFFD.

    Raises:
        InputError: the file cannot be read.
    """
    decoder = codecs.getincrementaldecoder(encoding.name)("replace")
    for raw in _bytes_of(path, encoding.mark):
        if text := decoder.decode(raw):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def lines_of(path: Path, encoding: Encoding) -> Iterator[str]:
    """The lines of the text without their ends, which are those of any system."""
    rest = ""
    for text in text_of(path, encoding):
        whole = (rest + text).replace("\r\n", "\n")
        keep = whole.endswith("\r")  # its \n may come with the next piece
        lines = whole.removesuffix("\r").replace("\r", "\n").split("\n")
        rest = lines.pop() + ("\r" if keep else "")
        yield from lines
    yield rest.removesuffix("\r")


def _bytes_of(path: Path, start: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(start)
            while raw := file.read(PIECE_BYTES):
                yield raw
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", remedy="check its rights"
        ) from error


def _count(raw: bytes, of: bytes) -> int:
    return len(raw) - len(raw.translate(None, of))
