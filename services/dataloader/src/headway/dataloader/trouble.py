"""What keeps a ring from being filled? Written in a file beside it, for readers that wait."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.files import replace_file
from headway.dataloader.blocks import ChangedDataError, ReadError

_KINDS: dict[str, type[HeadwayError]] = {
    "input": InputError,
    "config": InputError,
    "corrupt": CorruptError,
    "changeddata": ChangedDataError,
}


class Trouble(msgspec.Struct, frozen=True):
    """Content of a ring's ``.error`` file.

    Transient trouble, a read that failed, may end by itself: readers wait through it. All else is
    raised by whoever waits, at once.
    """

    code: str
    message: str
    remedy: str
    is_transient: bool
    since_s: float
    """When it began, on the monotonic clock of this host."""

    @classmethod
    def of(cls, error: HeadwayError, earlier: Trouble | None) -> Trouble:
        """``error`` as it is written; lasting transient trouble keeps the time it began."""
        is_transient = isinstance(error, ReadError)
        goes_on = is_transient and earlier is not None and earlier.is_transient
        since_s = earlier.since_s if goes_on and earlier is not None else time.monotonic()
        text, remedy = printable(error.message), printable(error.remedy)
        return cls(error.code, text, remedy, is_transient, since_s)

    def error(self) -> HeadwayError:
        """As an error to raise."""
        return _KINDS.get(self.code, HeadwayError)(self.message, remedy=self.remedy)


def local_error(code: str, message: str, remedy: str) -> HeadwayError | None:
    """An error that the daemon answered with, as this process would raise it; None if unknown."""
    kind = _KINDS.get(code)
    return None if kind is None else kind(message, remedy=remedy)


def printable(text: str) -> str:
    """``text`` with what is not UTF-8 spelled out: names of files may be any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_path(ring: Path) -> Path:
    """Where the trouble of a ring's stream is written."""
    return ring.with_suffix(".error")


def read_trouble(ring: Path) -> Trouble | None:
    """What keeps the ring from being filled, None while nothing does."""
    try:
        return msgspec.json.decode(error_path(ring).read_bytes(), type=Trouble)
    except (OSError, ValueError):
        return None


def write_trouble(ring: Path, trouble: Trouble) -> None:
    """Write the file at once and whole."""
    replace_file(error_path(ring), msgspec.json.encode(trouble))
