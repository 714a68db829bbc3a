"""Where is the other end now? A small JSON file that its owner rewrites, and a client that follows it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import replace_json
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message


@dataclass(frozen=True, slots=True)
class Address:
    """An endpoint and its owner's public CURVE key (Z85 text; empty without CURVE)."""

    endpoint: str
    server_key: str


def announce(path: Path, address: Address) -> None:
    """Writes the file, complete or not at all; a reader never sees half of it.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        replace_json(path, asdict(address))
    except OSError as error:
        remedy = "create its folder, or free space"
        raise InputError(f"cannot write {path}: {error.strerror}", remedy=remedy) from error


def read_address(path: Path) -> Address | None:
    """The announced address, None while there is none that can be read."""
    try:
        row = json.loads(path.read_bytes())
        return Address(str(row["endpoint"]), str(row["server_key"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class FollowedPeer:
    """Sends notes to whoever the file names, and changes over when the file does. Single-threaded.

    ``max_waiting`` messages wait while the peer is not there, the rest is dropped: a beat that waited is
    worth less than the next one.
    """

    def __init__(self, path: Path, max_waiting: int, keys: KeyPair | None = None) -> None:
        """``keys``: this side's own, for a peer that admits only known clients."""
        self._path, self._max_waiting, self._keys = path, max_waiting, keys
        self._stamp: tuple[int, int, int] | None = None
        self._address: Address | None = None
        self._client: Client | None = None

    def refresh(self) -> bool:
        """Looks at the file; True when a new peer was connected. One ``stat`` while nothing changes."""
        try:
            stat = self._path.stat()
        except OSError:
            return False  # keep what is known: the owner may be rewriting, or be gone
        stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if stamp == self._stamp:
            return False
        address = read_address(self._path)
        if address is None:
            return False
        self._stamp = stamp
        if address == self._address:
            return False
        return self._connect(address)

    def notify(self, message: Message) -> bool:
        """Sends a note without waiting; False when nobody is known or too much waits already."""
        return self._client.notify(message) if self._client is not None else False

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self, address: Address) -> bool:
        self.close()
        self._address = address
        try:
            self._client = Client(
                address.endpoint,
                keys=self._keys if address.server_key else None,
                server_key=address.server_key.encode() or None,
                high_water_mark=self._max_waiting,
            )
        except HeadwayError:
            return False  # a malformed address: the next version of the file may be better
        return True
