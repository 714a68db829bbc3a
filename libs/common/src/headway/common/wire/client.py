"""DEALER clients, blocking and asyncio: requests with deadlines and retries, notes that never block."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Collection
from typing import Any, TypeVar

import zmq
import zmq.asyncio
from headway.common.errors import DeadlineError, HeadwayError, InputError, VersionError
from headway.common.wire.codec import Envelope
from headway.common.wire.endpoint import HIGH_WATER_MARK, reconnect, set_client_keys, set_options
from headway.common.wire.exchange import Exchange
from headway.common.wire.keys import KeyPair, check_endpoint
from headway.common.wire.message import Message

RECONNECT_S = (0.05, 1.0)  # first and longest pause between attempts

T = TypeVar("T", bound=Message)


def _open(
    context: zmq.Context[Any],
    endpoint: str,
    keys: KeyPair | None,
    server_key: bytes | None,
    identity: bytes | None,
    high_water_mark: int,
) -> Any:
    check_endpoint(endpoint, server_key)
    if identity is not None and not (0 < len(identity) < 256 and identity[0] != 0):
        raise InputError(f"no client identity: {identity!r}", remedy="use 1 to 255 bytes, the first not zero")
    opened = context.socket(zmq.DEALER)
    try:
        set_options(opened, endpoint, high_water_mark)
        set_client_keys(opened, keys, server_key)
        # An identity of our own survives reconnects, so the server knows a retry from a new request.
        opened.setsockopt(zmq.IDENTITY, identity or b"c" + uuid.uuid4().bytes)
        opened.setsockopt(zmq.RECONNECT_IVL, int(RECONNECT_S[0] * 1000))
        opened.setsockopt(zmq.RECONNECT_IVL_MAX, int(RECONNECT_S[1] * 1000))
        opened.connect(endpoint)
    except zmq.ZMQError as error:
        opened.close()
        reason = f"cannot connect to {endpoint}: {error.strerror}"
        raise InputError(reason, remedy="check the address") from error
    except BaseException:
        opened.close()
        raise
    return opened


class Client:
    """A blocking DEALER; one thread uses a client (the first that calls it), each thread makes its own.

    At most 256 messages wait for the server, also while it is not there; beyond that ``notify`` drops and
    counts (``counts["notes_dropped"]``) and ``call`` waits within its deadline. A call that meets its
    deadline ends the connection, which drops what still waits: no request comes to life after its caller
    gave up, and the next message connects again. Linger 0. Incoming notes wait in order, the oldest of more
    than 1,024 fall out (``counts["notes_lost"]``).

    ``server_key`` switches CURVE on; ``keys`` are the client's own, needed where the server admits only known
    clients. ``identity`` is the name that the server's handlers see; two live clients must not share one.
    ``accept``: the note types that ``receive`` yields.

    Raises:
        InputError: a malformed endpoint, or one off loopback without ``server_key``.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        keys: KeyPair | None = None,
        server_key: bytes | None = None,
        identity: bytes | None = None,
        accept: Collection[type[Message]] = (),
        high_water_mark: int = HIGH_WATER_MARK,
    ) -> None:
        self._exchange = Exchange(endpoint, accept, has_keys=server_key is not None)
        self.counts = self._exchange.counts
        self._thread: int | None = None
        self.socket: zmq.Socket[bytes] = _open(
            zmq.Context.instance(), endpoint, keys, server_key, identity, high_water_mark
        )

    def call(self, message: Message, reply: type[T], timeout_s: float = 5.0, retries: int = 2) -> T:
        """Send a request and wait for its reply; blocks at most ``timeout_s``, all attempts together.

        The request goes out ``retries + 1`` times at equal distances under one id until a reply comes; a
        living server runs it once. Only a server restarted in between may run it a second time.

        Raises:
            DeadlineError: no reply in time; the request may or may not have been carried out.
            RemoteError: the server refused.
            VersionError: the server speaks another protocol version.
            WireError: ``message`` is too large, or the reply is of another type.
        """
        self._check_thread()
        request_id, frame = self._exchange.request(message)
        start_s = time.monotonic()
        for attempt in range(1, retries + 2):
            until_s = start_s + timeout_s * attempt / (retries + 1)
            if not self._send_until(frame, until_s):
                continue
            envelope = self._wait_for(request_id, until_s)
            if envelope is not None:
                return self._exchange.result(envelope, reply)
        reconnect(self.socket, self._exchange.endpoint)
        raise self._exchange.too_late(message, timeout_s)

    def notify(self, message: Message) -> bool:
        """Send a note; False: 256 messages wait already, and this one is dropped and counted. Never blocks.

        Raises:
            WireError: ``message`` is too large or cannot be encoded.
        """
        self._check_thread()
        if self._send(self._exchange.note(message)):
            return True
        self.counts["notes_dropped"] += 1
        return False

    def receive(self, accept: Collection[type[T]] | None = None) -> list[Message]:
        """The notes that have arrived since, in order, of the types ``accept`` (default: the constructor's).

        Never blocks.

        Raises:
            VersionError: the server speaks another protocol version.
        """
        self._check_thread()
        while self.socket.poll(0):
            self._receive()
        return self._exchange.take_notes(accept)

    def close(self, linger_s: float = 0.0) -> None:
        """Close; what is unsent leaves in the background within ``linger_s``, or is dropped."""
        self.socket.close(linger=int(linger_s * 1000))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_thread(self) -> None:
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        elif self._thread != thread:
            raise RuntimeError("a Client is used by one thread only; make one per thread")

    def _send(self, frame: bytes) -> bool:
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _send_until(self, frame: bytes, until_s: float) -> bool:
        while not self._send(frame):
            if not self.socket.poll(_remaining_ms(until_s), zmq.POLLOUT):
                return False
        return True

    def _wait_for(self, request_id: int, until_s: float) -> Envelope | None:
        while self.socket.poll(_remaining_ms(until_s)):
            envelope = self._receive()
            if envelope is not None:
                if envelope.id == request_id:
                    return envelope
                self.counts["late_replies"] += 1
        return None

    def _receive(self) -> Envelope | None:
        return self._exchange.arrived(self.socket.recv_multipart(zmq.NOBLOCK))


class AsyncClient:
    """``Client`` for asyncio: the same rules, any number of calls at once, all inside one event loop.

    A call that meets its deadline ends the connection only when no other call waits.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        keys: KeyPair | None = None,
        server_key: bytes | None = None,
        identity: bytes | None = None,
        accept: Collection[type[Message]] = (),
        high_water_mark: int = HIGH_WATER_MARK,
    ) -> None:
        self._exchange = Exchange(endpoint, accept, has_keys=server_key is not None)
        self.counts = self._exchange.counts
        self._waiting: dict[int, asyncio.Future[Envelope]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._context = zmq.asyncio.Context(shadow=zmq.Context.instance())
        self.socket: Any = _open(self._context, endpoint, keys, server_key, identity, high_water_mark)

    async def call(self, message: Message, reply: type[T], timeout_s: float = 5.0, retries: int = 2) -> T:
        """As ``Client.call``; cancelling it forgets the request, which may still be carried out."""
        request_id, frame = self._exchange.request(message)
        self._start_reader()
        future: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        start_s = time.monotonic()
        try:
            for attempt in range(1, retries + 2):
                until_s = start_s + timeout_s * attempt / (retries + 1)
                if not await self._send_until(frame, until_s):
                    continue
                done, _ = await asyncio.wait([future], timeout=_remaining_ms(until_s) / 1000)
                if done:
                    return self._exchange.result(future.result(), reply)
        finally:
            del self._waiting[request_id]
            future.cancel()
        if not self._waiting:
            reconnect(self.socket, self._exchange.endpoint)
        raise self._exchange.too_late(message, timeout_s)

    async def notify(self, message: Message) -> bool:
        """As ``Client.notify``: True, or dropped and counted; never waits."""
        if await self._send(self._exchange.note(message)):
            return True
        self.counts["notes_dropped"] += 1
        return False

    async def receive(self, accept: Collection[type[T]] | None = None) -> list[Message]:
        """As ``Client.receive``: the notes that have arrived since; never waits."""
        self._start_reader()
        await asyncio.sleep(0)  # the reader's turn
        return self._exchange.take_notes(accept)

    async def close(self, linger_s: float = 0.0) -> None:
        """End waiting calls with DeadlineError, then as ``Client.close``. May be repeated."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
            self._reader = None
        self._fail_waiting(DeadlineError("the client was closed", remedy="keep it open while calls wait"))
        self.socket.close(linger=int(linger_s * 1000))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, frame: bytes) -> bool:
        try:
            await self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    async def _send_until(self, frame: bytes, until_s: float) -> bool:
        while not await self._send(frame):
            if not await self.socket.poll(_remaining_ms(until_s), zmq.POLLOUT):
                return False
        return True

    def _start_reader(self) -> None:
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        while True:
            try:
                envelope = self._exchange.arrived(await self.socket.recv_multipart())
            except VersionError as error:
                self._fail_waiting(error)
                continue
            if envelope is None:
                continue
            future = self._waiting.get(envelope.id)
            if future is not None and not future.done():
                future.set_result(envelope)
            else:
                self.counts["late_replies"] += 1

    def _fail_waiting(self, error: HeadwayError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


def _remaining_ms(until_s: float) -> int:
    return max(0, math.ceil((until_s - time.monotonic()) * 1000))
