"""Bytes <-> messages: MessagePack with limits, validated into typed structs.

One frame holds one envelope, a MessagePack array ``[version, kind, id, body]``; ``body`` holds the
MessagePack map of the message. The version stays the first element in every version to come.

Bytes from an unknown sender are read in two passes. msgpack's ``Unpacker.skip`` walks a body
without building anything, so that a declared length counts only when the elements are really
there: a 5-byte header may claim 4 billion of them, and building nested lists of a megabyte's
length costs gigabytes. Then msgspec builds and validates the struct; fields that it does not know
are skipped, never built.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Literal, cast

import msgpack  # type: ignore[import-untyped]
import msgspec
from headway.common.errors import VersionError, WireError
from headway.common.wire.message import M, Message

PROTOCOL_VERSION = 2
MAX_MESSAGE_BYTES = 1 << 20  # of a whole frame; bulk bytes go through shared memory or files
# CURVE wraps each frame in a header and a MAC (RFC 26), so the socket's own
# limit is a little wider.
MAX_SOCKET_BYTES = MAX_MESSAGE_BYTES + 256
MAX_ID = (1 << 63) - 1

Kind = Literal["req", "rep", "err", "note"]


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """One frame: protocol version, kind, request id (0 in a note), and the packed message."""

    v: int
    kind: Kind
    id: int
    body: bytes


class _Tagged(msgspec.Struct, frozen=True):
    t: str


_read_envelope = msgspec.msgpack.Decoder(Envelope).decode
_read_tag = msgspec.msgpack.Decoder(_Tagged).decode
_DECODE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
_SAME_VERSION = "install the same version of Headway on both sides"
_OWN_CLIENTS = "only Headway's own clients may connect to this socket"


def encode(message: Message) -> bytes:
    """The body of a message.

    Raises:
        WireError: a value that MessagePack cannot hold, or more than ``MAX_MESSAGE_BYTES``.
    """
    name = type(message).__name__
    try:
        body = msgspec.msgpack.encode(message)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(
            f"{name} cannot be sent: {error}", remedy="use plain numbers, text, lists and maps"
        ) from error
    _check_size(name, len(body))
    return body


def decode(body: bytes, accepted: Mapping[str, type[M]]) -> M:
    """The message in ``body``, one of the ``accepted`` types (``message.by_tag``).

    Raises:
        WireError: not MessagePack, beyond a limit, an unknown tag, or a field of the wrong type.
    """
    _walk(body)
    if len(accepted) > 1:  # of a single type msgspec does not require the tag
        with contextlib.suppress(*_DECODE_ERRORS):
            return cast("M", _decoder_of(tuple(accepted.values()))(body))
    return _decode_slowly(body, accepted)


@functools.lru_cache(maxsize=256)
def _decoder_of(types: tuple[type[Message], ...]) -> Callable[[bytes], Message]:
    """Decodes whichever of these types a body is, in one pass."""
    return msgspec.msgpack.Decoder(functools.reduce(operator.or_, types)).decode


def _decode_slowly(body: bytes, accepted: Mapping[str, type[M]]) -> M:
    """Decode in two passes, which find out what is wrong."""
    try:
        tag = _read_tag(body).t
    except _DECODE_ERRORS as error:
        raise WireError(f"a message without a tag: {error}", remedy=_OWN_CLIENTS) from error
    message = accepted.get(tag)
    if message is None:
        raise WireError(f"unknown message {tag[:80]!r}", remedy=_SAME_VERSION)
    try:
        return msgspec.msgpack.decode(body, type=message)
    except _DECODE_ERRORS as error:
        raise WireError(f"{tag}: {error}", remedy=_SAME_VERSION) from error


def encode_frame(kind: Kind, request_id: int, body: bytes) -> bytes:
    """The one frame of an envelope.

    Raises:
        WireError: more than ``MAX_MESSAGE_BYTES``.
    """
    frame = msgspec.msgpack.encode(Envelope(PROTOCOL_VERSION, kind, request_id, body))
    _check_size("a message", len(frame))
    return frame


def decode_frame(frame: bytes) -> Envelope:
    """The envelope in ``frame``; its body is not decoded.

    An envelope holds no list or map, so msgspec reads it without building anything
    of a declared length.

    Raises:
        VersionError: the frame has another protocol version. WireError: it is not an envelope.
    """
    if len(frame) > MAX_MESSAGE_BYTES:
        raise WireError(
            f"a frame of {len(frame)} bytes, at most {MAX_MESSAGE_BYTES} are read",
            remedy="send less at once",
        )
    try:
        envelope = _read_envelope(frame)
    except _DECODE_ERRORS as error:
        version, _ = read_head(frame)
        if version not in (None, PROTOCOL_VERSION):
            raise _other_version(version) from error
        raise WireError(f"no envelope: {error}", remedy=_OWN_CLIENTS) from error
    if envelope.v != PROTOCOL_VERSION:
        raise _other_version(envelope.v)
    if not 0 <= envelope.id <= MAX_ID:
        raise WireError(f"request id {envelope.id} is out of range", remedy=_OWN_CLIENTS)
    return envelope


def read_head(frame: bytes) -> tuple[int | None, int | None]:
    """(version, request id) of a frame of any protocol version; None if it cannot be read."""
    version: int | None = None
    try:
        head = msgpack.Unpacker(
            max_buffer_size=MAX_MESSAGE_BYTES,
            read_size=1,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            max_bin_len=0,
        )
        head.feed(frame[:128])
        head.read_array_header()
        version = _int_or_none(head.unpack())
        head.skip()
        return version, _int_or_none(head.unpack())
    except (msgpack.UnpackException, ValueError):
        return version, None


def _other_version(version: int | None) -> VersionError:
    return VersionError(
        f"a message of protocol version {version}, this side speaks {PROTOCOL_VERSION}",
        remedy=_SAME_VERSION,
    )


def _int_or_none(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_ID else None


def _walk(body: bytes) -> None:
    walker = msgpack.Unpacker(max_buffer_size=MAX_MESSAGE_BYTES, read_size=1)
    try:
        walker.feed(body)
        walker.skip()
    except (msgpack.UnpackException, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise WireError(f"no valid MessagePack: {reason}", remedy=_OWN_CLIENTS) from error
    if walker.tell() != len(body):
        raise WireError(
            f"{len(body) - walker.tell()} bytes after the end of a message", remedy=_OWN_CLIENTS
        )


def _check_size(name: str, num_bytes: int) -> None:
    if num_bytes > MAX_MESSAGE_BYTES:
        raise WireError(
            f"{name} has {num_bytes} bytes, at most {MAX_MESSAGE_BYTES} travel in a message",
            remedy="send bulk bytes through shared memory or a file",
        )
