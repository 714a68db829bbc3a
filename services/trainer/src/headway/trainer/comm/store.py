"""The key-value store of a generation's rendezvous: a server thread in rank 0, TCP clients.

It replaces torch's TCPStore for two measured reasons: the client of the latter looks up the
name of the server's address at each connect (in DNS, even for 127.0.0.1, which it maps to
IPv6), so a lost DNS answer stalls a rebuild by the resolver's timeout of 5 s; and its server
listens on every address.

One request at a time per connection: a frame of 4 bytes length and MessagePack. The first one
carries the store's secret, which the server generates and the ranks get through their executors.
Values are bytes; a ``get`` or ``wait`` is answered once the keys exist. Clients that send anything
else, or no secret in time, are disconnected.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import msgspec
import torch.distributed
from headway.common.errors import InputError
from headway.common.wire.addresses import each_port
from headway.trainer.comm.interface import PeerLost

MAX_FRAME_BYTES = 1 << 20
MAX_FIRST_FRAME_BYTES = 256
MAX_STORED_BYTES = 1 << 30
MAX_STRANGERS = 128
"""Limit of connections without the secret so far; beyond it the oldest is closed."""
SECRET_LIMIT_S = 5.0
_LENGTH = struct.Struct("<I")
_dist: Any = torch.distributed


@dataclass(frozen=True)
class StoreEndpoint:
    """Where a store listens, and the secret that it requires."""

    host: str
    port: int
    secret: str = field(repr=False)


class _Request(msgspec.Struct, frozen=True, array_like=True):
    op: Literal["open", "set", "get", "add", "check", "wait", "delete", "count"]
    keys: tuple[str, ...] = ()
    value: bytes = b""
    amount: int = 0


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    value: bytes = b""
    number: int = 0


_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class StoreServer:
    """Serves on a free port of ``host`` until ``close``; of ``ports``, ``LOW-HIGH``, if given.

    Raises:
        InputError: they are all in use. OSError: this machine does not have that address.
    """

    def __init__(self, host: str, ports: str = "") -> None:
        self._listener = _listener(host, ports)
        self._listener.setblocking(False)
        self.endpoint = StoreEndpoint(
            host, int(self._listener.getsockname()[1]), secrets.token_urlsafe(24)
        )
        self.num_refused = 0
        """Connections closed because of a wrong secret, or none in time."""
        self._values: dict[str, bytes] = {}
        self._num_bytes = 0
        self._peers: dict[socket.socket, _Peer] = {}
        self._waiting: dict[str, set[socket.socket]] = {}  # by a key that they lack
        self._strangers: dict[socket.socket, float] = {}  # deadlines, oldest first
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="store-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and disconnect everybody. Never blocks; may be repeated."""
        self._waker.close()

    def _serve(self) -> None:
        with self._selector, self._listener, self._wake:
            while True:
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is self._wake:
                        for sock in self._peers:
                            sock.close()
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._read(key.fileobj)

    def _patience_s(self) -> float | None:
        """Refuse clients whose deadline has passed; returns the time until the next deadline."""
        now = time.monotonic()
        while self._strangers:
            sock, until = next(iter(self._strangers.items()))
            if until > now and len(self._strangers) <= MAX_STRANGERS:
                return until - now
            self._refuse(sock)
        return None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # gone again
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock] = _Peer(MAX_FIRST_FRAME_BYTES)
            self._strangers[sock] = time.monotonic() + SECRET_LIMIT_S
            self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        peer = self._peers.get(sock)
        if peer is None:
            return  # dropped earlier in this batch, because an answer could not be sent
        try:
            data = sock.recv(65536)
            if not data:
                raise ConnectionError
            peer.buffer += data
            while sock in self._peers and (frame := peer.next_frame()) is not None:
                request = _decode_request(frame)
                if sock in self._strangers:
                    self._admit(sock, peer, request)
                else:
                    self._take(sock, peer, request)
        except (OSError, ValueError, msgspec.MsgspecError):
            if sock in self._strangers:
                self._refuse(sock)
            else:
                self._drop(sock)

    def _admit(self, sock: socket.socket, peer: _Peer, request: _Request) -> None:
        if request.op != "open" or not hmac.compare_digest(
            request.value, self.endpoint.secret.encode()
        ):
            return self._refuse(sock)
        del self._strangers[sock]
        peer.max_frame_bytes = MAX_FRAME_BYTES
        return self._send(sock, _Reply())

    def _take(self, sock: socket.socket, peer: _Peer, request: _Request) -> None:
        keys = request.keys
        if not keys and request.op != "count":
            raise ValueError("a request without a key")
        match request.op:
            case "open":
                raise ValueError("a second secret")
            case "set":
                self._store(keys[0], request.value)
                self._send(sock, _Reply())
                self._answer_waiting(keys[0])
            case "add":
                number = int(self._values.get(keys[0], b"0")) + request.amount
                self._store(keys[0], str(number).encode())
                self._send(sock, _Reply(number=number))
                self._answer_waiting(keys[0])
            case "check":
                self._send(sock, _Reply(number=int(all(key in self._values for key in keys))))
            case "delete":
                self._send(sock, _Reply(number=int(self._forget(keys[0]))))
            case "count":
                self._send(sock, _Reply(number=len(self._values)))
            case "get" | "wait":
                peer.waiting = request
                self._answer(sock, peer)

    def _store(self, key: str, value: bytes) -> None:
        old = self._values.get(key)
        freed = 0 if old is None else len(key) + len(old)
        num_bytes = self._num_bytes - freed + len(key) + len(value)
        if num_bytes > MAX_STORED_BYTES:
            raise ValueError(f"more than {MAX_STORED_BYTES} bytes")
        self._values[key], self._num_bytes = value, num_bytes

    def _forget(self, key: str) -> bool:
        value = self._values.pop(key, None)
        if value is not None:
            self._num_bytes -= len(key) + len(value)
        return value is not None

    def _answer_waiting(self, key: str) -> None:
        """Only those that wait for ``key``: looking at every peer at every call would make the cost
        of a generation grow with the square of its ranks."""
        for sock in self._waiting.pop(key, ()):
            if (peer := self._peers.get(sock)) is not None:
                self._answer(sock, peer)

    def _answer(self, sock: socket.socket, peer: _Peer) -> None:
        request = peer.waiting
        if request is None:
            return
        missing = [key for key in request.keys if key not in self._values]
        for key in missing:
            self._waiting.setdefault(key, set()).add(sock)
        if not missing:
            peer.waiting = None
            value = self._values[request.keys[0]] if request.op == "get" else b""
            self._send(sock, _Reply(value=value))

    def _send(self, sock: socket.socket, reply: _Reply) -> None:
        try:
            # at most one reply is open per connection, so it fits in its buffer
            sock.sendall(_frame(reply))
        except OSError:
            self._drop(sock)

    def _refuse(self, sock: socket.socket) -> None:
        self.num_refused += 1
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._strangers.pop(sock, None)
        if self._peers.pop(sock, None) is not None:
            self._selector.unregister(sock)
            sock.close()


class _Peer:
    """The server's state of one connection."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.buffer = bytearray()
        self.waiting: _Request | None = None

    def next_frame(self) -> bytes | None:
        """Take the next complete frame; raises ValueError for one that is too long."""
        if len(self.buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self.buffer)
        if length > self.max_frame_bytes:
            raise ValueError(f"a frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self.buffer) < end:
            return None
        frame = bytes(self.buffer[_LENGTH.size : end])
        del self.buffer[:end]
        return frame


class StoreClient(_dist.Store):  # type: ignore[misc]  # torch's stubs export no Store
    """One rank's connection, as process groups need it; blocks, so for build threads only.

    Raises:
        PeerLost: from every call once the server is gone, the connection broken or the time is up;
            at once if the secret is wrong.
    """

    def __init__(self, endpoint: StoreEndpoint, timeout_s: float) -> None:
        super().__init__()
        host, port = endpoint.host, endpoint.port
        self._lock = threading.Lock()
        self.is_lost = False
        """Whether a call has failed; NCCL wraps that in an error that hides it."""
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise PeerLost(f"no store answers at {host}:{port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._ask(_Request("open", value=endpoint.secret.encode()))
        except PeerLost:
            self._socket.close()
            raise

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(_Request("set", (key,), data))

    def get(self, key: str) -> bytes:
        """The value, once it exists."""
        return self._ask(_Request("get", (key,))).value

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        return self._ask(_Request("add", (key,), amount=amount)).number

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist."""
        return bool(self._ask(_Request("check", tuple(keys))).number)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys exist, at most for the connection's timeout."""
        del timeout
        self._ask(_Request("wait", tuple(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
        return bool(self._ask(_Request("delete", (key,))).number)

    def num_keys(self) -> int:
        """Number of keys."""
        return self._ask(_Request("count")).number

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def _ask(self, request: _Request) -> _Reply:
        try:
            with self._lock:
                self._socket.sendall(_frame(request))
                (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
                return _decode_reply(self._receive(length))
        except (OSError, msgspec.MsgspecError) as error:
            self.is_lost = True
            raise PeerLost(f"the generation's store is gone: {error}") from None

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionError("connection closed")
            data += piece
        return bytes(data)


def _listener(host: str, ports: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in each_port(ports or "0"):
        try:
            return socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not ports:
                raise
    raise InputError(
        f"cannot listen on {host}: the ports {ports} are all in use",
        remedy="give a larger range (launch.ports), or end what holds them (ss -ltnp)",
    )


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body
