"""Which clients a server admits, where that changes while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from headway.common.node.files import replace_file
from headway.common.wire.keys import is_public_key


class Admission:
    """Public keys that may be added and taken back at any time; asked by another thread, too."""

    def __init__(self, keys: Collection[bytes] = ()) -> None:
        self._keys = frozenset(keys)

    def __call__(self, key: bytes) -> bool:
        return key in self._keys

    def admit(self, key: bytes) -> None:
        """Raises ValueError unless it has the form of a public key."""
        if not is_public_key(key):
            raise ValueError("not a Z85 key of 40 bytes")
        self._keys |= {key}

    def revoke(self, key: bytes) -> None:
        self._keys -= {key}


class KeyFile:
    """Public keys in a file, one a line; read again after it was replaced. Absent: none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._keys: frozenset[bytes] = frozenset()

    def __call__(self, key: bytes) -> bool:
        try:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp:
                self._keys = frozenset(self._path.read_bytes().split())
                self._stamp = stamp
        except OSError:  # those that were in it before
            pass
        return key in self._keys

    def write(self, keys: Iterable[bytes]) -> None:
        """Replace the file. Raises OSError."""
        replace_file(self._path, b"".join(key + b"\n" for key in sorted(keys)))
