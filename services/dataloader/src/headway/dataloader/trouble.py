"""What keeps a ring from being filled? Told in a file beside it, for readers that wait."""

from __future__ import annotations

from pathlib import Path

import msgspec
from headway.common.errors import CorruptError, HeadwayError, InputError
from headway.common.node.files import replace_file


class Trouble(msgspec.Struct, frozen=True):
    """Content of a ring's ``.error`` file."""

    code: str
    message: str
    remedy: str


def error_path(ring: Path) -> Path:
    """Where the trouble of a ring's stream is told."""
    return ring.with_suffix(".error")


def read_trouble(ring: Path) -> HeadwayError | None:
    """The error that keeps the ring from being filled, None while there is none."""
    try:
        trouble = msgspec.json.decode(error_path(ring).read_bytes(), type=Trouble)
    except (OSError, msgspec.DecodeError):
        return None
    kind = CorruptError if trouble.code == "corrupt" else InputError
    return kind(trouble.message, remedy=trouble.remedy)


def tell_trouble(ring: Path, error: HeadwayError) -> None:
    """Write the file at once and whole."""
    trouble = Trouble(error.code, error.message, error.remedy)
    replace_file(error_path(ring), msgspec.json.encode(trouble))
