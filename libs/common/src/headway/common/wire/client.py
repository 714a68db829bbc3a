"""A blocking DEALER client: requests with deadlines and retries, notes that never block."""

from __future__ import annotations

import math
import secrets
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import zmq
from headway.common.errors import (
    BusyError,
    DeadlineError,
    InputError,
    RemoteError,
    VersionError,
    WireError,
)
from headway.common.wire import codec
from headway.common.wire.endpoint import (
    HIGH_WATER_MARK,
    has_listener,
    reconnect,
    set_client_keys,
    set_options,
)
from headway.common.wire.keys import KeyPair, check_endpoint
from headway.common.wire.message import Message, by_tag
from headway.common.wire.messages.service import Failure

RECONNECT_S = (0.05, 1.0)  # first and longest pause between attempts
MAX_UNREAD_NOTES = 1024
ABORT_PERIOD_S = 0.1  # how often a waiting call checks ``abort``

T = TypeVar("T", bound=Message)


class CallAbortedError(DeadlineError):
    """The caller's ``abort`` ended the wait; the request may or may not have been carried out."""


class Client:
    """A blocking DEALER for one thread, the first that calls it; each thread makes its own.

    At most 256 messages are queued for the server, also while it is unreachable; beyond
    that ``notify`` drops and counts (``counts["notes_dropped"]``) and ``call`` waits within
    its deadline. A call that reaches its deadline closes the connection, which drops what
    is still queued: no request is delivered after its caller gave up, and the next message
    connects again. Linger 0. Incoming notes are queued in order; beyond 1,024 the oldest
    are dropped (``counts["notes_lost"]``).

    ``server_key`` switches CURVE on; ``keys`` are the client's own, needed where the server admits
    only known clients. ``identity`` is the name that the server's handlers see; two live clients
    must not share one. ``accept``: the note types that ``receive`` yields.

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
        self.counts: Counter[str] = Counter()
        self._endpoint, self._accept = endpoint, by_tag(accept)
        self._has_keys, self._has_heard = server_key is not None, False
        self._thread: int | None = None
        # Random start: a restarted client of the same identity must not be answered with its
        # predecessor's replies.
        self._next_id = 1 + secrets.randbits(53)
        self._notes: deque[bytes] = deque(maxlen=MAX_UNREAD_NOTES)
        self.socket = _open(endpoint, keys, server_key, identity, high_water_mark)

    def call(
        self,
        message: Message,
        reply: type[T],
        timeout_s: float = 5.0,
        retries: int = 2,
        abort: Callable[[], bool] | None = None,
    ) -> T:
        """Send a request and wait for its reply, at most ``timeout_s`` for all attempts together.

        The request goes out ``retries + 1`` times at equal distances under one id until a reply
        comes; a living server runs it once. Only a server restarted in between may run it twice.
        ``abort`` is checked every 0.1 s while waiting.

        Raises:
            CallAbortedError: ``abort`` returned true.
            DeadlineError: no reply in time; the request may or may not have been carried out.
            BusyError: the server is busy; the same request may be repeated.
            RemoteError: the server refused.
            VersionError: the server speaks another protocol version.
            WireError: ``message`` is too large, or the reply is of another type.
        """
        self._check_thread()
        request_id = self._next_id
        self._next_id += 1
        frame = codec.encode_frame("req", request_id, codec.encode(message))
        start_s = time.monotonic()
        try:
            for attempt in range(1, retries + 2):
                until_s = start_s + timeout_s * attempt / (retries + 1)
                if not self._send_until(frame, until_s, abort):
                    continue
                envelope = self._wait_for(request_id, until_s, abort)
                if envelope is not None:
                    return _result(envelope, reply)
        except CallAbortedError:
            reconnect(self.socket, self._endpoint)
            raise
        reconnect(self.socket, self._endpoint)
        what = f"no answer to {type(message).__name__} from {self._endpoint} within {timeout_s:g} s"
        raise DeadlineError(what, remedy=self._likely_remedy())

    def notify(self, message: Message) -> bool:
        """Send a note without blocking; False if 256 are queued already and it was dropped.

        Raises:
            WireError: ``message`` is too large or cannot be encoded.
        """
        self._check_thread()
        if self._send(codec.encode_frame("note", 0, codec.encode(message))):
            return True
        self.counts["notes_dropped"] += 1
        return False

    def receive(self, accept: Collection[type[T]] | None = None) -> list[Message]:
        """The notes of the types ``accept`` that have arrived, in order; never blocks.

        By default the constructor's types. Notes of other types are dropped and counted.

        Raises:
            VersionError: the server speaks another protocol version.
        """
        self._check_thread()
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # far cheaper than `poll(0)`
            self._receive()
        accepted = self._accept if accept is None else by_tag(accept)
        messages: list[Message] = []
        while self._notes:
            try:
                messages.append(codec.decode(self._notes.popleft(), accepted))
            except WireError:
                self.counts["notes_refused"] += 1
        return messages

    def close(self, linger_s: float = 0.0) -> None:
        """Close; unsent messages are sent in the background within ``linger_s``, or dropped."""
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

    def _send_until(self, frame: bytes, until_s: float, abort: Callable[[], bool] | None) -> bool:
        while not self._send(frame):
            if not self._poll(zmq.POLLOUT, until_s, abort):
                return False
        return True

    def _poll(self, event: int, until_s: float, abort: Callable[[], bool] | None) -> bool:
        """Whether the socket becomes ready before ``until_s``; checks ``abort`` in between."""
        if abort is None:
            return bool(self.socket.poll(_remaining_ms(until_s), event))
        while not abort():
            slice_s = min(until_s, time.monotonic() + ABORT_PERIOD_S)
            if self.socket.poll(_remaining_ms(slice_s), event):
                return True
            if slice_s == until_s:
                return False
        raise CallAbortedError(f"request to {self._endpoint} aborted")

    def _wait_for(
        self, request_id: int, until_s: float, abort: Callable[[], bool] | None
    ) -> codec.Envelope | None:
        while self._poll(zmq.POLLIN, until_s, abort):
            envelope = self._receive()
            if envelope is not None:
                if envelope.id == request_id:
                    return envelope
                self.counts["late_replies"] += 1
        return None

    def _receive(self) -> codec.Envelope | None:
        """The envelope of a reply, None for anything else: notes are kept, the rest is counted.

        Raises:
            VersionError: the server speaks another version and cannot answer any request.
        """
        frames = self.socket.recv_multipart(zmq.NOBLOCK)
        if len(frames) != 1:
            self.counts["bad_wire"] += 1
            return None
        try:
            envelope = codec.decode_frame(frames[0])
        except VersionError:
            raise
        except WireError:
            self.counts["bad_wire"] += 1
            return None
        self._has_heard = True
        if envelope.kind in ("rep", "err"):
            return envelope
        if envelope.kind == "note":
            if len(self._notes) == self._notes.maxlen:
                self.counts["notes_lost"] += 1
            self._notes.append(envelope.body)
        return None

    def _likely_remedy(self) -> str:
        """The remedy for a request without an answer, by its likeliest cause."""
        if self._has_heard:
            return (
                "the service has answered before; check that it is still running, and read its log"
            )
        if not has_listener(self._endpoint):
            return "nothing listens there; start the service, or check the address"
        if self._has_keys:
            return (
                "check the keys: server_key must be the service's public key, "
                "and the service may admit known client keys only; or the service is busy, see "
                "its log"
            )
        return "the service is busy, see its log; or it requires keys, then pass server_key"


def _open(
    endpoint: str,
    keys: KeyPair | None,
    server_key: bytes | None,
    identity: bytes | None,
    high_water_mark: int,
) -> zmq.Socket[bytes]:
    check_endpoint(endpoint, server_key)
    if identity is not None and not (0 < len(identity) < 256 and identity[0] != 0):
        remedy = "use 1 to 255 bytes, the first not zero"
        raise InputError(f"not a client identity: {identity!r}", remedy=remedy)
    opened: zmq.Socket[Any] = zmq.Context.instance().socket(zmq.DEALER)
    try:
        set_options(opened, endpoint, high_water_mark)
        set_client_keys(opened, keys, server_key)
        # An identity of our own survives reconnects: the server knows a retry from a new request.
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


def _result(envelope: codec.Envelope, reply: type[T]) -> T:
    if envelope.kind == "rep":
        return codec.decode(envelope.body, by_tag([reply]))
    failure = codec.decode(envelope.body, by_tag([Failure]))
    if failure.code == "version":
        raise VersionError(failure.message, remedy=failure.remedy)
    if failure.code == "busy":
        raise BusyError(failure.message, remedy=failure.remedy)
    raise RemoteError(failure.message, remedy=failure.remedy, remote_code=failure.code)


def _remaining_ms(until_s: float) -> int:
    return max(0, math.ceil((until_s - time.monotonic()) * 1000))
