"""Why a ring is not being filled, written to a file next to it for waiting readers."""

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

    A transient error, such as a failed read, may resolve itself: readers keep waiting. Any other
    error is raised in waiting readers at once.
    """

    code: str
    message: str
    remedy: str
    is_transient: bool
    since_s: float
    """When it began, on the monotonic clock of this host."""

    @classmethod
    def of(cls, error: HeadwayError, earlier: Trouble | None) -> Trouble:
        """``error`` as written; a continuing transient error keeps its start time."""
        is_transient = isinstance(error, ReadError)
        goes_on = is_transient and earlier is not None and earlier.is_transient
        since_s = earlier.since_s if goes_on and earlier is not None else time.monotonic()
        text, remedy = printable(error.message), printable(error.remedy)
        return cls(error.code, text, remedy, is_transient, since_s)

    def error(self) -> HeadwayError:
        """Return the trouble as an error to raise."""
        return _KINDS.get(self.code, HeadwayError)(self.message, remedy=self.remedy)


def local_error(code: str, message: str, remedy: str) -> HeadwayError | None:
    """The exception for an error reply of the daemon; None if it is unknown."""
    kind = _KINDS.get(code)
    return None if kind is None else kind(message, remedy=remedy)


def printable(text: str) -> str:
    """``text`` with bytes that are not UTF-8 escaped, since file names may contain any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


def error_path(ring: Path) -> Path:
    """Path of the error file of a ring."""
    return ring.with_suffix(".error")


def read_trouble(ring: Path) -> Trouble | None:
    """Why the ring is not being filled; None if there is no error."""
    try:
        return msgspec.json.decode(error_path(ring).read_bytes(), type=Trouble)
    except (OSError, ValueError):
        return None


def write_trouble(ring: Path, trouble: Trouble) -> None:
    """Write the file atomically."""
    replace_file(error_path(ring), msgspec.json.encode(trouble))
