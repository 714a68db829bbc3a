"""A ROUTER that answers typed requests and survives any other input."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import zmq
from headway.common.errors import HeadwayError, InputError, VersionError, WireError
from headway.common.log import complain, get_logger
from headway.common.wire import codec
from headway.common.wire.endpoint import (
    HIGH_WATER_MARK,
    bind,
    bind_again,
    set_options,
    set_server_keys,
)
from headway.common.wire.keys import KeyPair, check_endpoint, ipc_path, is_public_key
from headway.common.wire.loop import Throttle
from headway.common.wire.message import Message, by_tag, tag_of
from headway.common.wire.messages.service import Done, Failure
from headway.common.wire.replies import Key, ReplyCache
from zmq.auth.thread import ThreadAuthenticator

Handler = Callable[
    [Any, bytes], "Message | Later | None"
]  # the message, of the type it is registered for, and the peer identity
Admits = Callable[[bytes], bool]  # whether the client with this public key may connect

BACKLOG = 100
MAX_FRAMES_A_TURN = 64  # then the loop serves its timers and other sockets

_log = get_logger("server")


class Later:
    """What a handler returns for a request whose reply it does not have yet."""

    answer: Callable[[Message | HeadwayError], None]
    """Sends the reply, or the error reply. Call it once, on the server's thread, after the handler
    has returned; raises WireError as ``Server.send`` does."""


class Server:
    """Binds ``endpoint`` and hands each message to the handler of its type.

    The socket is a ROUTER with a queue of 256 messages per peer and direction. When the incoming
    limit is reached, the peer's own sends wait or fail and other peers are read in turn. When the
    outgoing limit is reached, or the peer is gone, the message is dropped and counted, and ``send``
    returns False. Linger 0; frames larger than ``codec.MAX_SOCKET_BYTES`` end their connection; a
    connection that does not identify itself within 3 s is closed. One thread uses a server.

    A handler gets (message, peer identity). For a request, its return value is the reply (None is
    sent as ``Done``); a ``HeadwayError`` becomes an error reply with code, message and remedy, any
    other exception becomes "internal" with a logged traceback. ``Later`` defers the reply. A
    request that is repeated under its id (a retry) gets the first answer without running again; the
    newest 1,024 answers (8 MiB) are kept for that. For a note, the return value is ignored.

    ``allowed``: public keys of the clients that may connect, or a function that says of a key
    whether it may; None admits every client that knows the server's key. It is called for each new
    connection, on a thread of its own, and for each message, since a key may be revoked meanwhile.
    ``backlog``: clients that may connect at the same moment; to any beyond, their kernel
    answers only after a second or more. ``counts`` counts what was received and refused, by kind.

    Raises:
        InputError: the endpoint cannot be bound, or is reachable from other
            machines and has no keys.
    """

    def __init__(
        self,
        endpoint: str,
        handlers: Mapping[type[Any], Handler],
        keys: KeyPair | None = None,
        allowed: Collection[bytes] | Admits | None = None,
        *,
        high_water_mark: int = HIGH_WATER_MARK,
        backlog: int = BACKLOG,
    ) -> None:
        check_endpoint(endpoint, keys)
        self.counts: Counter[str] = Counter()
        self.backlog = backlog
        self._types: dict[str, type[Message]] = {}
        self._handlers: dict[str, Handler] = {}
        self.add_handlers(handlers)
        self._replies = ReplyCache()
        self._deferred: set[Key] = set()
        self._throttle = Throttle()
        self._is_removed = False
        self._context = zmq.Context()
        self._gate: ThreadAuthenticator | None = None
        self._allowed: Admits | None = None
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        try:
            self._secure(keys, allowed)
            set_options(self.socket, endpoint, high_water_mark)
            self.socket.setsockopt(zmq.BACKLOG, backlog)
            # an unroutable send fails instead of vanishing
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            # a client that reconnects takes its identity with it
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self.endpoint, self.listener = bind(self.socket, endpoint)  # see ``bind``
        except BaseException:
            self.close()
            raise

    @property
    def messages(self) -> list[str]:
        """The tags that this server accepts, sorted."""
        return sorted(self._types)

    def add_handlers(self, handlers: Mapping[type[Any], Handler], *, replace: bool = True) -> None:
        """Accept further message types; with ``replace=False`` existing handlers are kept.

        Raises:
            TypeError: a type without a written tag, or two types with one tag.
        """
        self._types = by_tag([*self._types.values(), *handlers])
        for message, handler in handlers.items():
            if replace or tag_of(message) not in self._handlers:
                self._handlers[tag_of(message)] = handler

    def handle_ready(self) -> int:
        """Handle at most 64 messages that have arrived; return their number.

        Never waits or raises.
        """
        for handled in range(MAX_FRAMES_A_TURN):
            try:
                frames = self._receive()
            except zmq.ZMQError:  # nothing left, or the socket was closed by a handler
                return handled
            if frames is not None:
                self._handle(*frames)
        return MAX_FRAMES_A_TURN

    def send(self, peer: bytes, message: Message) -> bool:
        """Send a note to a connected peer; False if the note is dropped.

        It is dropped if the peer is gone or not reading.

        Never blocks.

        Raises:
            WireError: ``message`` is too large or cannot be encoded.
        """
        return self._send(peer, codec.encode_frame("note", 0, codec.encode(message)))

    def keep_reachable(self) -> None:
        """Bind again if the ``ipc`` file was removed, as by a cleaner of /tmp; never raises.

        To be called about once a second: it acts the second time, when the cleaner is done.
        """
        path = ipc_path(self.endpoint)
        was_removed, self._is_removed = self._is_removed, path is not None and not path.exists()
        if self.socket.closed or not (was_removed and self._is_removed):
            return
        try:
            if bind_again(self.socket, self.endpoint):
                complain(
                    _log.warning,
                    "the socket was removed, and is there again",
                    endpoint=self.endpoint,
                )
        except (InputError, OSError) as error:
            suppressed = self._throttle.admit("unreachable")
            if suppressed is not None:
                complain(
                    _log.error,
                    "the socket was removed and cannot be made again",
                    endpoint=self.endpoint,
                    reason=str(error),
                    suppressed=suppressed,
                )

    def close(self, linger_s: float = 0.0) -> None:
        """Close and remove the ``ipc`` file; waits at most ``linger_s`` for unsent replies."""
        if not self.socket.closed:
            self.socket.close(linger=int(linger_s * 1000))
        if self._gate is not None:
            self._gate.stop()
            self._gate = None
        self._context.term()
        path = ipc_path(getattr(self, "endpoint", ""))
        if path is not None:
            path.unlink(missing_ok=True)
            self.endpoint = ""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _secure(self, keys: KeyPair | None, allowed: Collection[bytes] | Admits | None) -> None:
        if keys is None:
            if allowed is not None:
                raise InputError(
                    "allowed clients without server keys", remedy="pass keys=KeyPair.generate() too"
                )
            return
        set_server_keys(self.socket, keys)
        if allowed is not None:
            if not callable(allowed):
                if not all(is_public_key(key) for key in allowed):
                    raise InputError(
                        "a client key is not a Z85 key of 40 bytes",
                        remedy="pass KeyPair.public of each client",
                    )
                allowed = frozenset(allowed).__contains__
            self._allowed = allowed
            self._gate = ThreadAuthenticator(self._context)
            self._gate.start()
            self._gate.configure_curve_callback(domain="*", credentials_provider=_Allowed(allowed))

    def _receive(self) -> tuple[bytes, bytes] | None:
        """(peer, frame), or None for a message that is refused."""
        part = first = self.socket.recv(zmq.NOBLOCK, copy=False)
        frame, num_frames = b"", 0
        while part.more:
            part = self.socket.recv(zmq.NOBLOCK, copy=False)
            frame, num_frames = frame or part.bytes, num_frames + 1
        if num_frames != 1:
            self._refuse("wrong_frame_count", "a message must have one frame")
            return None
        # of the handshake; the connection may be older than the decision that ends it
        if self._allowed is not None and not self._allowed(str(first.get("User-Id")).encode()):
            self._refuse("revoked", "a message from a client whose key was revoked")
            return None
        return first.bytes, frame

    def _handle(self, peer: bytes, frame: bytes) -> None:
        try:
            envelope = codec.decode_frame(frame)
        except WireError as error:
            _, request_id = (
                codec.read_head(frame) if isinstance(error, VersionError) else (None, None)
            )
            if request_id is not None:
                self._send(peer, _failure_frame(request_id, error))
            return self._refuse(f"bad_{error.code}", str(error))
        if envelope.kind == "req":
            return self._answer(peer, envelope)
        if envelope.kind == "note":
            return self._take_note(peer, envelope)
        return self._refuse("wrong_kind", f"a {envelope.kind} sent to a server")

    def _answer(self, peer: bytes, envelope: codec.Envelope) -> None:
        key = (peer, envelope.id, hash(envelope.body))
        if key in self._deferred:
            self.counts["repeated"] += 1
            return
        reply = self._replies.get(key)
        if reply is not None:
            self.counts["repeated"] += 1
        else:
            outcome, was_run = self._run(peer, envelope)
            if isinstance(outcome, Later):
                self._deferred.add(key)
                outcome.answer = functools.partial(self._answer_later, key)
                return
            reply = outcome
            if was_run:
                self._replies.put(key, reply)
        self._send(peer, reply)

    def _answer_later(self, key: Key, outcome: Message | HeadwayError) -> None:
        peer, request_id, _ = key
        if isinstance(outcome, HeadwayError):
            self.counts["failures"] += 1
            reply = _failure_frame(request_id, outcome)
        else:
            reply = codec.encode_frame("rep", request_id, codec.encode(outcome))
        self._deferred.remove(key)
        self._replies.put(key, reply)
        self._send(peer, reply)

    def _run(self, peer: bytes, envelope: codec.Envelope) -> tuple[bytes | Later, bool]:
        """(reply frame, whether a handler ran); only answers of handlers need to be kept."""
        try:
            message = codec.decode(envelope.body, self._types)
        except WireError as error:
            self._refuse("bad_body", str(error))
            return _failure_frame(envelope.id, error), False
        self.counts["requests"] += 1
        try:
            reply = self._call_handler(message, peer)
            if isinstance(reply, Later):
                return reply, True
            return codec.encode_frame("rep", envelope.id, codec.encode(reply or Done())), True
        except HeadwayError as error:
            self.counts["failures"] += 1
            return _failure_frame(envelope.id, error), True
        except Exception as error:
            self._log_handler_error(message)
            return _failure_frame(envelope.id, _internal(error)), True

    def _take_note(self, peer: bytes, envelope: codec.Envelope) -> None:
        try:
            message = codec.decode(envelope.body, self._types)
        except WireError as error:
            return self._refuse("bad_body", str(error))
        self.counts["notes"] += 1
        try:
            self._call_handler(message, peer)
        except HeadwayError as error:
            self._refuse("failures", f"{tag_of(type(message))}: {error}")
        except Exception:
            self._log_handler_error(message)
        return None

    def _call_handler(self, message: Message, peer: bytes) -> Message | Later | None:
        return self._handlers[tag_of(type(message))](message, peer)

    def _log_handler_error(self, message: Message) -> None:
        """Count and log the current exception; at most one traceback per message type and 10 s."""
        self.counts["internal_errors"] += 1
        tag = tag_of(type(message))
        suppressed = self._throttle.admit(tag)
        if suppressed is not None:
            complain(_log.exception, "handler failed", message=tag, suppressed=suppressed)

    def _send(self, peer: bytes, frame: bytes) -> bool:
        try:
            self.socket.send_multipart([peer, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.counts["unsent"] += 1
            return False
        return True

    def _refuse(self, kind: str, reason: str) -> None:
        self.counts[kind] += 1
        suppressed = self._throttle.admit(kind)
        if suppressed is not None:
            complain(
                _log.warning, "refused input", kind=kind, reason=reason[:300], suppressed=suppressed
            )


class _Allowed:
    """What the ZAP authenticator asks for each handshake (pyzmq, ``configure_curve_callback``)."""

    def __init__(self, allowed: Admits) -> None:
        self._allowed = allowed

    def callback(self, _domain: str, key: bytes) -> bool:
        return self._allowed(key)


def _failure_frame(request_id: int, error: HeadwayError) -> bytes:
    failure = Failure(code=error.code, message=_clean(error.message), remedy=_clean(error.remedy))
    return codec.encode_frame("err", request_id, codec.encode(failure))


def _clean(text: str) -> str:
    return text[:4000].encode("utf-8", "replace").decode()


class _InternalError(HeadwayError):
    @property
    def code(self) -> str:
        return "internal"


def _internal(error: Exception) -> HeadwayError:
    what = type(error).__name__
    with contextlib.suppress(Exception):  # even an exception that cannot be formatted is answered
        what = f"{what}: {error}"
    return _InternalError(what, remedy="see the service's log for the traceback")
