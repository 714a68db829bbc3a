"""The current address of a peer: a small JSON file that its owner rewrites, and a client."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from headway.common.errors import HeadwayError, InputError
from headway.common.node.files import replace_json
from headway.common.wire.client import Client
from headway.common.wire.endpoint import has_listener
from headway.common.wire.keys import KeyPair
from headway.common.wire.message import Message


@dataclass(frozen=True, slots=True)
class Address:
    """An endpoint and its owner's public CURVE key (Z85 text; empty without CURVE)."""

    endpoint: str
    server_key: str
    epoch: int = 0
    """Epoch of a driver's lease; 0 for all others."""


def announce(path: Path, address: Address) -> None:
    """Write the file atomically, with mode 0600.

    Raises:
        InputError: the file cannot be written.
    """
    row = {"endpoint": address.endpoint, "server_key": address.server_key}
    try:
        replace_json(path, row, mode=0o600)
    except OSError as error:
        remedy = "create its folder, or free space"
        raise InputError(f"cannot write {path}: {error.strerror}", remedy=remedy) from error


def keep_announced(path: Path, address: Address) -> None:
    """Write the file again if it no longer leads to a listener; to be called about once a second.

    If another owner listens, its file is kept, so that two owners do not overwrite each other. A
    failed write is tried again at the next call.
    """
    found = read_address(path)
    if found == address:
        return
    if found and found.endpoint != address.endpoint and has_listener(found.endpoint):
        return
    with contextlib.suppress(InputError):
        announce(path, address)


def read_address(path: Path) -> Address | None:
    """The announced address; None while there is none, or its owner does not listen yet.

    A driver's file is overwritten in place: it counts only when its first and last number agree.
    """
    try:
        row: dict[str, Any] = json.loads(path.read_bytes())
        if row.get("end", row.get("beat")) != row.get("beat") or not row["endpoint"]:
            return None
        return Address(str(row["endpoint"]), str(row["server_key"]), int(row.get("epoch", 0)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class FollowedPeer:
    """A client of the address in the file, which reconnects when the file changes. Single-threaded.

    At most ``max_waiting`` messages are queued while the peer is absent; more are dropped, since
    newer messages are worth more.
    """

    def __init__(
        self,
        path: Path,
        max_waiting: int,
        keys: KeyPair,
        *,
        accept: Collection[type[Message]] = (),
        on_open: Callable[[zmq.Socket[Any]], None] = lambda _: None,
        on_close: Callable[[zmq.Socket[Any]], None] = lambda _: None,
    ) -> None:
        """Follow ``path``.

        Args:
            keys: the client's own; a peer admits only known keys.
            accept: the notes that ``receive`` yields. on_open: called with each new socket, to
            watch it. on_close: called before it is closed.
        """
        self._path, self._max_waiting, self._keys, self._accept = path, max_waiting, keys, accept
        self._on_open, self._on_close = on_open, on_close
        self._stamp: tuple[int, int, int] | None = None
        self._address: Address | None = None
        self._client: Client | None = None

    def refresh(self) -> bool:
        """Check the file; True if a new peer was connected.

        Costs one ``stat`` while nothing changes.
        """
        try:
            stat = self._path.stat()
        except OSError:
            return False  # keep the known address: the owner may be rewriting the file, or be gone
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
        """Send a note without waiting; False if no peer is known or the queue is full."""
        return self._client.notify(message) if self._client is not None else False

    def receive(self) -> list[Message]:
        """The notes that the peer has sent since the last call. Never blocks.

        Raises:
            VersionError: the peer speaks another protocol version.
        """
        return self._client.receive() if self._client is not None else []

    def close(self) -> None:
        """Disconnect from the peer."""
        if self._client is not None:
            self._on_close(self._client.socket)
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
                accept=self._accept,
                high_water_mark=self._max_waiting,
            )
        except HeadwayError:
            return False  # a malformed address: the next version of the file may be valid
        self._on_open(self._client.socket)
        return True
