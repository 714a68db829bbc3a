"""The key-value store of a generation's rendezvous: a server thread in rank 0, a client per rank.

It replaces torch's TCPStore for three reasons. The client of the latter looks up the name of the
server's address at each connect (in DNS, even for 127.0.0.1, which it maps to IPv6), so a lost DNS
answer stalls a rebuild by the resolver's timeout of 5 s; its server listens on every address; and
what it sends is neither encrypted nor authenticated.

One request at a time per connection, MessagePack over ZeroMQ with CURVE. The server makes a new key
pair for each generation. Its public half is the store's secret: the ranks get it through their
executors, and nobody can complete a handshake without it. Values are bytes; a ``get`` or ``wait``
is answered once the keys exist.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import msgspec
import torch.distributed
import zmq
from headway.common.errors import HeadwayError
from headway.common.wire.endpoint import (
    HIGH_WATER_MARK,
    bind,
    reconnect,
    set_client_keys,
    set_options,
    set_server_keys,
)
from headway.common.wire.keys import KeyPair
from headway.trainer.comm.interface import PeerLost
from zmq.utils.monitor import recv_monitor_message

BACKLOG = 1024  # at least; the kernel limits it to net.core.somaxconn
RETRY_S = 0.1  # pause before the next attempt to connect
MAX_FRAME_BYTES = 1 << 20
MAX_STORED_BYTES = 1 << 30
_ENDS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_dist: Any = torch.distributed


@dataclass(frozen=True)
class StoreEndpoint:
    """Where a store listens, and the secret that it requires."""

    host: str
    port: int
    secret: str = field(repr=False)

    def __str__(self) -> str:
        """Return the address as ZeroMQ writes it."""
        return _address(self.host, str(self.port))


class _Request(msgspec.Struct, frozen=True, array_like=True):
    op: Literal["set", "get", "add", "check", "wait", "delete", "count"]
    keys: tuple[str, ...] = ()
    value: bytes = b""
    amount: int = 0


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    value: bytes = b""
    number: int = 0
    error: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_Request).decode
_decode_reply = msgspec.msgpack.Decoder(_Reply).decode


class StoreServer:
    """Serves on a free port of ``host`` until ``close``; of ``ports``, ``LOW-HIGH``, if given.

    All ``world_size`` ranks connect in the same moment, and their handshakes share one thread, at
    0.5 ms each: each may take ``timeout_s``, as for the clients. For that long a stranger, too, can
    keep a connection, and with it one of rank 0's descriptors.

    Raises:
        InputError: they are all in use, or this machine does not have that address.
    """

    def __init__(self, host: str, ports: str = "", *, world_size: int, timeout_s: float) -> None:
        keys, wanted = KeyPair.generate(), _address(host, ports or "0")
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        try:
            set_server_keys(self._socket, keys)
            set_options(self._socket, wanted, HIGH_WATER_MARK)
            self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
            self._socket.setsockopt(zmq.BACKLOG, max(BACKLOG, world_size))
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, math.ceil(1000 * timeout_s))
            bound, self.listener = bind(self._socket, wanted)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        port = int(bound.rpartition(":")[2])
        self.endpoint = StoreEndpoint(host, port, keys.public.decode())
        self._values: dict[str, bytes] = {}
        self._num_bytes = 0
        self._waiting: dict[bytes, _Request] = {}
        self._waiting_for: dict[str, set[bytes]] = {}  # clients by a key that they lack
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="store-server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving and disconnect everybody. Never blocks; may be repeated."""
        self._waker.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while self._wake.fileno() not in (ready := dict(poller.poll())):
            if self._socket in ready:
                self._read()
        self._wake.close()
        self._context.destroy(linger=0)

    def _read(self) -> None:
        client, *frames = self._socket.recv_multipart()
        try:
            [frame] = frames
            self._take(client, _decode_request(frame))
        except (ValueError, msgspec.MsgspecError) as error:
            self._send(client, _Reply(error=str(error)))

    def _take(self, client: bytes, request: _Request) -> None:
        keys = request.keys
        if not keys and request.op != "count":
            raise ValueError("a request without a key")
        match request.op:
            case "set":
                self._store(keys[0], request.value)
                self._send(client, _Reply())
                self._answer_waiting(keys[0])
            case "add":
                number = int(self._values.get(keys[0], b"0")) + request.amount
                self._store(keys[0], str(number).encode())
                self._send(client, _Reply(number=number))
                self._answer_waiting(keys[0])
            case "check":
                self._send(client, _Reply(number=int(all(key in self._values for key in keys))))
            case "delete":
                self._send(client, _Reply(number=int(self._forget(keys[0]))))
            case "count":
                self._send(client, _Reply(number=len(self._values)))
            case "get" | "wait":
                self._waiting[client] = request
                self._answer(client)

    def _store(self, key: str, value: bytes) -> None:
        old = self._values.get(key)
        freed = 0 if old is None else len(key) + len(old)
        num_bytes = self._num_bytes - freed + len(key) + len(value)
        if num_bytes > MAX_STORED_BYTES:
            raise ValueError(f"the store holds at most {MAX_STORED_BYTES} bytes")
        self._values[key], self._num_bytes = value, num_bytes

    def _forget(self, key: str) -> bool:
        value = self._values.pop(key, None)
        if value is not None:
            self._num_bytes -= len(key) + len(value)
        return value is not None

    def _answer_waiting(self, key: str) -> None:
        """Answer the clients that wait for ``key``, and only those.

        Looking at every client at every call would make the cost of a generation grow with the
        square of its ranks.
        """
        for client in self._waiting_for.pop(key, ()):
            self._answer(client)

    def _answer(self, client: bytes) -> None:
        request = self._waiting.get(client)
        if request is None:
            return
        missing = [key for key in request.keys if key not in self._values]
        for key in missing:
            self._waiting_for.setdefault(key, set()).add(client)
        if not missing:
            del self._waiting[client]
            value = self._values[request.keys[0]] if request.op == "get" else b""
            self._send(client, _Reply(value=value))

    def _send(self, client: bytes, reply: _Reply) -> None:
        # A client that is gone is dropped by the ROUTER; one reply is open for each at most.
        self._socket.send_multipart([client, _encode(reply)])


class StoreClient(_dist.Store):  # type: ignore[misc]  # torch's stubs export no Store
    """One rank's connection, as process groups need it; blocks, so for build threads only.

    It tries to connect for ``timeout_s``; after that, each call may take as long, or as long as the
    attribute says then.

    Raises:
        PeerLost: from every call once the server is gone, the connection broken or the time is up;
            at once if the secret is wrong.
    """

    def __init__(self, endpoint: StoreEndpoint, timeout_s: float) -> None:
        super().__init__()
        self.timeout_s = timeout_s
        """Limit of a call; the build sets that of use once the groups are made."""
        self._lock = threading.Lock()
        self.is_lost = False
        """Whether a call has failed; NCCL wraps that in an error that hides it."""
        self._address = str(endpoint)
        self._wake, self._waker = socket.socketpair()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._monitor = self._socket.get_monitor_socket(_ENDS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        try:
            set_client_keys(self._socket, None, endpoint.secret.encode())
            set_options(self._socket, self._address, HIGH_WATER_MARK)
            # ``timeout_s`` limits both. One attempt to connect repeats its first packet: by that a
            # cut of the network is recognised, see headway.health.sources.connections
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, 0)
            self._socket.setsockopt(zmq.CONNECT_TIMEOUT, 0)
            self._socket.setsockopt(zmq.RECONNECT_IVL, -1)  # a store that is gone stays gone
            self._socket.connect(self._address)
            self._await(self._monitor)
        except (HeadwayError, OSError, zmq.ZMQError) as error:
            self.close()
            raise PeerLost(
                f"no store answers at {endpoint.host}:{endpoint.port}: {error}"
            ) from None

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
        """Disconnect, and end a call that waits on another thread; may be repeated."""
        self._waker.close()
        with self._lock:  # libzmq crashes if a socket is closed while a thread uses it
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disable_monitor()
            self._context.destroy(linger=0)
            self._wake.close()

    def _ask(self, request: _Request) -> _Reply:
        with self._lock:
            try:
                if self.is_lost:  # what arrives now may answer an earlier request
                    raise ConnectionError("an earlier request failed")
                if self._socket.closed:
                    raise ConnectionError("this rank has closed its connection")
                self._socket.send(_encode(request), zmq.NOBLOCK)
                self._await(self._socket)
                reply = _decode_reply(self._socket.recv(zmq.NOBLOCK))
                if reply.error:
                    raise ConnectionError(reply.error)
            except (OSError, zmq.ZMQError, msgspec.MsgspecError) as error:
                self.is_lost = True
                raise PeerLost(f"the generation's store is gone: {error}") from None
            return reply

    def _await(self, source: zmq.Socket[bytes]) -> None:
        """Wait until the reply is there, or the handshake is complete.

        The handshake may take several attempts to connect.

        Raises:
            OSError: the connection has ended, or the time is up.
        """
        limit_s = self.timeout_s
        deadline = time.monotonic() + limit_s
        poller = zmq.Poller()
        for one in {self._socket, self._monitor, self._wake}:
            poller.register(one, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(max(0, round(1000 * (deadline - time.monotonic())))))
            if self._wake.fileno() in ready:
                raise ConnectionError("this rank has closed its connection")
            if source is self._socket and source in ready:
                return
            if self._monitor in ready:
                event = recv_monitor_message(self._monitor)["event"]
                if event == zmq.EVENT_CLOSED and source is self._monitor:
                    time.sleep(RETRY_S)
                    reconnect(self._socket, self._address)
                    continue
                if event & _ENDS:
                    raise ConnectionError("the connection has ended")
                if source is self._monitor:
                    return
            elif not ready:
                raise TimeoutError(f"no answer within {limit_s:g} s")


def _address(host: str, ports: str) -> str:
    return f"tcp://[{host}]:{ports}" if ":" in host else f"tcp://{host}:{ports}"
