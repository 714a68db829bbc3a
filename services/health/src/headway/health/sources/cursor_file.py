"""Keeps how far a log of this boot was read, for the agent that comes next."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from headway.common.node.files import replace_json

T = TypeVar("T", int, str)


class CursorFile:
    """One position in a file of JSON, with the boot that it belongs to.

    Args:
        path: None keeps nothing.
        boot: what was saved in another boot is not given back.
    """

    def __init__(self, path: Path | None, boot: int) -> None:
        self._path, self._boot = path, boot

    def load(self, kind: type[T]) -> T | None:
        """The saved position; None at the first start, in another boot, or of a damaged file."""
        if self._path is None:
            return None
        try:
            boot, position = msgspec.json.decode(
                self._path.read_bytes(), type=tuple[int, int | str]
            )
        except (OSError, ValueError):  # of msgspec, or of the decoder of UTF-8
            return None
        return position if boot == self._boot and isinstance(position, kind) else None

    def save(self, position: int | str) -> None:
        """Replace the saved position. On a full disk only that is lost."""
        if self._path is None:
            return
        try:
            replace_json(self._path, [self._boot, position])
        except OSError:
            self._path = None
