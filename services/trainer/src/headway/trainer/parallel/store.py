"""The key-value store that the ranks of a generation meet in: one server thread in rank 0, plain TCP clients.

Not torch's TCPStore, for two reasons that were measured: its client asks for the name of the server's address
each time it connects (in DNS, even for 127.0.0.1, because it maps it to IPv6), which stalls a rebuild by the
resolver's timeout, 5 s, whenever an answer is lost; and as a server it listens on every address.

One request at a time per connection: a frame of 4 bytes length and MessagePack. Values are bytes; a ``get``
or ``wait`` is answered once the keys are there. Whoever sends anything else is disconnected.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import msgspec
import torch.distributed
from headway.trainer.parallel.comm import PeerLost

MAX_FRAME_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_dist: Any = torch.distributed


class _Request(msgspec.Struct, frozen=True, array_like=True):
    op: Literal["set", "get", "add", "check", "wait", "delete", "count"]
    keys: tuple[str, ...] = ()
    value: bytes = b""
    amount: int = 0


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    value: bytes = b""
    number: int = 0


_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class StoreServer:
    """Serves on a free port of ``host`` until ``close``."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._values: dict[str, bytes] = {}
        self._peers: dict[socket.socket, _Peer] = {}
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
                for key, _ in self._selector.select():
                    if key.fileobj is self._wake:
                        for sock in self._peers:
                            sock.close()
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._read(key.fileobj)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # gone again
            sock, _ = self._listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock] = _Peer()
            self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        peer = self._peers[sock]
        try:
            data = sock.recv(65536)
            if not data:
                raise ConnectionError
            peer.buffer += data
            for frame in peer.frames():
                self._take(sock, peer, _decode_request(frame))
        except (OSError, ValueError, msgspec.MsgspecError):
            self._drop(sock)

    def _take(self, sock: socket.socket, peer: _Peer, request: _Request) -> None:
        keys = request.keys
        if not keys and request.op != "count":
            raise ValueError("a request without a key")
        match request.op:
            case "set":
                self._values[keys[0]] = request.value
                self._send(sock, _Reply())
                self._answer_waiting()
            case "add":
                number = int(self._values.get(keys[0], b"0")) + request.amount
                self._values[keys[0]] = str(number).encode()
                self._send(sock, _Reply(number=number))
                self._answer_waiting()
            case "check":
                self._send(sock, _Reply(number=int(all(key in self._values for key in keys))))
            case "delete":
                self._send(sock, _Reply(number=int(self._values.pop(keys[0], None) is not None)))
            case "count":
                self._send(sock, _Reply(number=len(self._values)))
            case "get" | "wait":
                peer.waiting = request
                self._answer(sock, peer)

    def _answer_waiting(self) -> None:
        for sock, peer in list(self._peers.items()):
            self._answer(sock, peer)

    def _answer(self, sock: socket.socket, peer: _Peer) -> None:
        request = peer.waiting
        if request is not None and all(key in self._values for key in request.keys):
            peer.waiting = None
            value = self._values[request.keys[0]] if request.op == "get" else b""
            self._send(sock, _Reply(value=value))

    def _send(self, sock: socket.socket, reply: _Reply) -> None:
        try:
            # at most one reply is open per connection, so it fits in its buffer
            sock.sendall(_frame(reply))
        except OSError:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        if self._peers.pop(sock, None) is not None:
            self._selector.unregister(sock)
            sock.close()


class _Peer:
    """What the server knows of one connection."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.waiting: _Request | None = None

    def frames(self) -> list[bytes]:
        """Take the complete frames; raises ValueError for one that is too long."""
        found = []
        while len(self.buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self.buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            end = _LENGTH.size + length
            if len(self.buffer) < end:
                break
            found.append(bytes(self.buffer[_LENGTH.size : end]))
            del self.buffer[:end]
        return found


class StoreClient(_dist.Store):  # type: ignore[misc]  # torch's stubs export no Store
    """One rank's connection, in the shape that process groups ask for; it blocks, so only on build threads.

    Raises:
        PeerLost: from every call, once the server is gone, the connection cut, or time is up.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.is_lost = False
        """A call has failed. NCCL wraps that in an error of its own, which does not say so."""
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise PeerLost(f"no store answers at {host}:{port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(_Request("set", (key,), data))

    def get(self, key: str) -> bytes:
        """The value, once it is there."""
        return self._ask(_Request("get", (key,))).value

    def add(self, key: str, amount: int) -> int:
        """Add to a number; returns the sum."""
        return self._ask(_Request("add", (key,), amount=amount)).number

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._ask(_Request("check", tuple(keys))).number)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys are there; the connection's own timeout bounds it."""
        del timeout
        self._ask(_Request("wait", tuple(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
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


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body
