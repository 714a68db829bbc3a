"""Bad inputs for a wire endpoint, made from a seed: frames, ZMTP byte streams, HTTP requests."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

import msgspec
from headway.common.wire.codec import MAX_MESSAGE_BYTES, PROTOCOL_VERSION

pack = msgspec.msgpack.encode

# Each declares 4 billion elements or bytes in a few of its own.
BOMBS = tuple(head + b"\xff\xff\xff\xff" for head in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"))
ODD_INTEGERS = (-1, 0, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
ODD_VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    2**64 - 1,
    float("nan"),
    "",
    "\0",
    "req",
    b"",
    b"\xff" * 9,
    [],
    {},
    [[]],
)

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00"  # ZMTP 3.0, RFC 23
_READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"


class Inputs:
    """Draws inputs from ``seed``; ``corpus`` are bodies of valid messages (``codec.encode``)."""

    def __init__(self, seed: int, corpus: Sequence[bytes]) -> None:
        self.rng = random.Random(seed)
        self.corpus = list(corpus) or [pack({"t": "service.nothing/1"})]
        self._frames: dict[str, Callable[[], list[bytes]]] = {
            "random": lambda: [self._bytes(300)],
            "mutated_frame": lambda: [self._mutate(self._envelope(self._body()))],
            "mutated_body": lambda: [self._envelope(self._mutate(self._body()))],
            "odd_field": lambda: [self._envelope(self._odd_field())],
            "odd_envelope": lambda: [self._odd_envelope()],
            "unknown_tag": lambda: [self._envelope(pack({"t": self._tag(), "x": 1}))],
            "frame_count": self._wrong_frame_count,
            "nested": lambda: [self._maybe_wrapped(self._nested())],
            "bomb": lambda: [self._maybe_wrapped(self._bomb())],
        }
        self._streams: dict[str, Callable[[], bytes]] = {
            "garbage": lambda: self._bytes(2000),
            "bad_greeting": lambda: self._mutate(self._greeting() + self._zmtp_command(_READY)),
            "bad_zmtp": lambda: self._greeting() + self._zmtp_command(_READY) + self._zmtp_frames(),
            "bad_handshake": lambda: self._greeting() + self._zmtp_command(self._bytes(250)),
            "old_zmtp": lambda: self._old_zmtp(),
            "http": self.http_request,
            "nothing": lambda: b"",
        }

    def frames(self) -> tuple[str, list[bytes]]:
        """(kind, frames) for a DEALER; small ones."""
        kind = self.rng.choice(list(self._frames))
        return kind, self._frames[kind]()

    def stream(self) -> tuple[str, bytes]:
        """(kind, bytes) for a plain connection."""
        kind = self.rng.choice(list(self._streams))
        return kind, self._streams[kind]()

    def oversize(self) -> bytes:
        """A frame beyond the limit: the receiver must end the connection."""
        return bytes(MAX_MESSAGE_BYTES + self.rng.choice((257, 4096, MAX_MESSAGE_BYTES)))

    def heavy(self) -> bytes:
        """Return a legal frame of the largest size that is dear to build.

        It has a million empty lists, maps or numbers.
        """
        room = MAX_MESSAGE_BYTES - 200
        element = self.rng.choice((b"\x90", b"\x80", b"\xc0", b"\x01"))
        body = (
            b"\x82\xa1t"
            + pack(self._tag())
            + b"\xa1x\xdd"
            + struct.pack(">I", room)
            + element * room
        )
        return self._envelope(body[:room] if self.rng.random() < 0.5 else body)

    def http_request(self) -> bytes:
        """An HTTP request, valid or mutated."""
        request = self.rng.choice(
            (
                b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"POST /metrics HTTP/1.0\r\nContent-Length: 99999999999999999999\r\n\r\nx",
                b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
                (
                    b"GET /metrics?name[]=%ff%00 HTTP/9.9\r\nAccept: \xff\r\n"
                    b"Accept-Encoding: gzip\r\n\r\n"
                ),
            )
        )
        return request if self.rng.random() < 0.3 else self._mutate(request)

    def _bytes(self, most: int) -> bytes:
        return self.rng.randbytes(self.rng.randrange(most + 1))

    def _body(self) -> bytes:
        return self.rng.choice(self.corpus)

    def _tag(self) -> str:
        return self.rng.choice(
            ("driver.stop/1", "service.ping/2", "", "x" * 5000, "\0", "service.ping")
        )

    def _envelope(self, body: bytes) -> bytes:
        kind = self.rng.choice(("req", "req", "note", "rep", "err"))
        return pack([PROTOCOL_VERSION, kind, self.rng.getrandbits(62), body])

    def _odd_envelope(self) -> bytes:
        fields: list[object] = [PROTOCOL_VERSION, "req", self.rng.getrandbits(62), self._body()]
        fields[self.rng.randrange(4)] = self.rng.choice(ODD_INTEGERS + ODD_VALUES)
        if self.rng.random() < 0.3:
            fields = fields[: self.rng.randrange(4)] + [
                self.rng.choice(ODD_VALUES)
            ] * self.rng.randrange(4)
        return pack(fields)

    def _odd_field(self) -> bytes:
        """A valid message with one value replaced."""
        message = msgspec.msgpack.decode(self._body())
        if isinstance(message, dict) and message:
            message[self.rng.choice(list(message))] = self.rng.choice(ODD_INTEGERS + ODD_VALUES)
        return pack(message)

    def _wrong_frame_count(self) -> list[bytes]:
        count = self.rng.choice((2, 2, 3, 5, 64))
        frame = self._envelope(self._body())
        return [self.rng.choice((b"", frame, self._bytes(20))) for _ in range(count)]

    def _nested(self) -> bytes:
        depth = self.rng.choice((100, 900, 1024, 5000, 100_000))
        return self.rng.choice((b"\x91", b"\x81\xa1x")) * depth + b"\xc0"

    def _bomb(self) -> bytes:
        bomb = self.rng.choice(BOMBS)
        honest = b"\xdd" + struct.pack(">I", 100_000)
        return self.rng.choice((bomb, bomb * 500, honest * 500, honest * 3 + b"\xc0" * 1000))

    def _maybe_wrapped(self, payload: bytes) -> bytes:
        """Return the payload as a frame, as a body, or as an unknown field of a valid message."""
        match self.rng.randrange(3):
            case 0:
                return payload
            case 1:
                return self._envelope(payload)
        body = self._body()
        if 0x80 <= body[0] < 0x8F:  # a small map: one more pair
            body = bytes([body[0] + 1]) + body[1:] + b"\xa4fuzz" + payload
        return self._envelope(body)

    def _mutate(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            at = self.rng.randrange(len(changed) + 1)
            match self.rng.randrange(6):
                case 0 if changed:
                    changed[at % len(changed)] ^= 1 << self.rng.randrange(8)
                case 1 if changed:
                    changed[at % len(changed)] = self.rng.choice((0, 0x7F, 0x80, 0xC1, 0xFF))
                case 2:
                    del changed[at:]
                case 3:
                    changed[at:at] = self._bytes(20)
                case 4:
                    other = self._body()
                    changed[at:] = other[self.rng.randrange(len(other)) :]
                case _:
                    del changed[at : at + self.rng.randrange(9)]
        return bytes(changed)

    def _greeting(self) -> bytes:
        mechanism = self.rng.choice((b"NULL", b"NULL", b"CURVE", b"PLAIN", b"\xff" * 20))
        return _GREETING + mechanism.ljust(20, b"\0") + bytes(32)

    def _zmtp_command(self, body: bytes) -> bytes:
        return b"\x04" + bytes([len(body)]) + body

    def _zmtp_frames(self) -> bytes:
        """Frames with wrong flags, lengths that are not there, and messages that never end."""
        frames = bytearray()
        for _ in range(self.rng.randrange(1, 6)):
            payload = self._bytes(60)
            match self.rng.randrange(5):
                case 0:
                    frames += bytes([self.rng.randrange(256), len(payload)]) + payload
                case 1:
                    length = self.rng.choice((2**20 + 300, 2**32, 2**63, 2**64 - 1))
                    frames += b"\x02" + struct.pack(">Q", length) + payload
                case 2:
                    frames += (b"\x01" + bytes([len(payload)]) + payload) * self.rng.randrange(
                        1, 50
                    )
                case 3:
                    frames += self._zmtp_command(
                        self.rng.choice((b"\x04PING", b"\x04PONG", _READY, payload))
                    )
                case _:
                    frames += b"\x00" + bytes([len(payload)]) + payload
        return bytes(frames)

    def _old_zmtp(self) -> bytes:
        """Return the bytes of ZMTP 1.0 and 2.0 peers (RFC 13, 15).

        libzmq still lets them in where there are no keys.
        """
        identity = self._bytes(10)
        old = bytes([len(identity) + 1, 0]) + identity
        frame = self._envelope(self._body())[:200]
        if self.rng.random() < 0.5:
            old = b"\xff" + bytes(7) + b"\x01\x7f\x01\x05\x00" + bytes([len(identity)]) + identity
        return old + bytes([min(255, len(frame) + 1), 0]) + frame
