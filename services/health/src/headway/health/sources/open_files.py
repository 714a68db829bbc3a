"""The files of a folder in shared memory, each kept open until it is removed or made anew."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from headway.common.errors import HeadwayError


class Closable(Protocol):
    """What a file is opened as."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class OpenFiles(Generic[T]):
    """The ``.bin`` files whose names begin alike, as ``open_one`` makes them.

    Each look lists the folder and asks for no single file, since the listing has their inodes.
    """

    def __init__(self, folder: Path, beginning: str, open_one: Callable[[Path], T]) -> None:
        self._folder, self._beginning, self._open_one = folder, beginning, open_one
        self._open: dict[str, tuple[int, T]] = {}
        """By name, with the inode."""

    def look(self) -> list[T]:
        """Those that are there now, by name; one that cannot be opened yet is left out."""
        inodes = self._list()
        for name, (inode, file) in list(self._open.items()):
            if inodes.get(name) != inode:
                del self._open[name]
                file.close()
        for name in sorted(inodes.keys() - self._open.keys()):
            # being created, removed since it was listed, or damaged
            with contextlib.suppress(OSError, HeadwayError):
                self._open[name] = inodes[name], self._open_one(self._folder / name)
        return [self._open[name][1] for name in sorted(self._open)]

    def close(self) -> None:
        """Close all of them; they may be looked for again."""
        for _, file in self._open.values():
            file.close()
        self._open.clear()

    def _list(self) -> dict[str, int]:
        try:
            with os.scandir(self._folder) as entries:
                return {
                    entry.name: entry.inode()
                    for entry in entries
                    if entry.name.startswith(self._beginning) and entry.name.endswith(".bin")
                }
        except OSError:
            return {}
