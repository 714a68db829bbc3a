"""Bytes of an unknown sender become a valid message or a WireError, at bounded cost."""

from __future__ import annotations

import random
import resource
import struct
import tracemalloc

import msgpack
import msgspec
import pytest
from headway.common.errors import VersionError, WireError
from headway.common.wire import codec
from headway.common.wire.message import Message, by_tag, tag_of
from headway.testkit.wire.inputs import BOMBS, Inputs


class Place(Message, tag="test.place/1"):
    node: int
    labels: dict[str, str] = {}  # noqa: RUF012  msgspec copies it
    steps: tuple[int, ...] = ()
    raw: bytes = b""
    spans: dict[int, float] = {}  # noqa: RUF012
    note: str | None = None


class Area(Message, tag="test.area/1"):
    node: int


PLACE = Place(node=3, labels={"a": "ü"}, steps=(1, 2), raw=b"\0\xff", spans={7: 0.5}, note="x")
ACCEPTED = by_tag([Place])


def with_field(name: str, payload: bytes) -> bytes:
    """A body of Place with one more, hand-made pair."""
    body = codec.encode(Place(node=1))
    return bytes([body[0] + 1]) + body[1:] + msgspec.msgpack.encode(name) + payload


def test_bytes_are_plain_messagepack_that_others_read() -> None:
    body = codec.encode(PLACE)
    fields = {
        "node": 3,
        "labels": {"a": "ü"},
        "steps": [1, 2],
        "raw": b"\0\xff",
        "spans": {7: 0.5},
        "note": "x",
    }
    assert msgpack.unpackb(body, strict_map_key=False) == {"t": "test.place/1", **fields}
    assert msgpack.unpackb(codec.encode_frame("req", 5, body)) == [2, "req", 5, body]


@pytest.mark.parametrize("types", [[Place], [Place, Area]], ids=["one type", "two types"])
def test_bytes_of_another_packer_decode(types: list[type[Message]]) -> None:
    body = msgpack.packb({"node": 3, "t": "test.place/1", "steps": [1, 2]})
    assert codec.decode(body, by_tag(types)) == Place(node=3, steps=(1, 2))


def test_unknown_fields_are_skipped_and_absent_ones_take_their_defaults() -> None:
    assert codec.decode(with_field("later", b"\x93\x01\x02\x80"), ACCEPTED) == Place(node=1)


@pytest.mark.parametrize(
    ("fields", "culprit"),
    [
        ({"t": "test.place/1"}, "node"),
        ({"t": "test.place/1", "node": "3"}, "node"),
        ({"t": "test.place/1", "node": 1, "steps": [1, None]}, "steps"),
        ({"t": "test.place/2", "node": 1}, "test.place/2"),
        ({"node": 1}, "tag"),
        ({"t": 1, "node": 1}, "tag"),
    ],
)
@pytest.mark.parametrize("types", [[Place], [Place, Area]], ids=["one type", "two types"])
def test_a_wrong_message_is_refused_by_name(
    fields: dict[str, object], culprit: str, types: list[type[Message]]
) -> None:
    with pytest.raises(WireError, match=culprit) as caught:
        codec.decode(msgpack.packb(fields), by_tag(types))
    assert caught.value.remedy


def test_another_protocol_version_is_named_with_its_remedy() -> None:
    for frame in (
        msgpack.packb([3, "req", 5, b""]),
        msgpack.packb([3, {"new": 1}]),
        msgpack.packb([3]),
    ):
        with pytest.raises(
            VersionError, match="version 3, this side speaks 2; install the same version"
        ):
            codec.decode_frame(frame)


def test_the_request_id_of_another_version_can_be_read_for_the_answer() -> None:
    assert codec.read_head(msgpack.packb([2, "req", 5, b"", "more"])) == (2, 5)
    assert codec.read_head(msgpack.packb([2, "req", "five"])) == (2, None)
    for junk in (b"", b"\xc1", b"\x92", *BOMBS):
        assert codec.read_head(junk) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [2],
        [2, "req", 5],
        [2, "ask", 5, b""],
        [2, "req", -1, b""],
        [2, "req", 2**63, b""],
        [True],
        1,
        {},
    ],
)
def test_a_malformed_envelope_is_refused(fields: object) -> None:
    with pytest.raises(WireError, match=r"envelope|out of range"):
        codec.decode_frame(msgpack.packb(fields))


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    overhead = (
        len(codec.encode_frame("req", 1, bytes(codec.MAX_MESSAGE_BYTES - 100)))
        - codec.MAX_MESSAGE_BYTES
        + 100
    )
    body = bytes(codec.MAX_MESSAGE_BYTES - overhead)
    assert codec.decode_frame(codec.encode_frame("req", 1, body)).body == body
    with pytest.raises(WireError, match="shared memory"):
        codec.encode_frame("req", 1, body + b"\0")
    with pytest.raises(WireError, match="1048577 bytes"):
        codec.decode_frame(bytes(codec.MAX_MESSAGE_BYTES + 1))
    with pytest.raises(WireError, match="Place has"):
        codec.encode(Place(node=1, raw=bytes(codec.MAX_MESSAGE_BYTES)))


@pytest.mark.parametrize(
    "value", [Place(node=1 << 70), Place(node=1, note="\ud800"), Place(node=object())]
)  # type: ignore[arg-type]
def test_what_messagepack_cannot_hold_is_refused_at_the_sender(value: Place) -> None:
    with pytest.raises(WireError, match="Place cannot be sent"):
        codec.encode(value)


@pytest.mark.parametrize("name", ["unknown", "labels", "steps"])
@pytest.mark.parametrize(
    "payload",
    [
        *BOMBS,
        *(bomb * 1000 for bomb in BOMBS),
        (b"\xdd" + struct.pack(">I", 1_000_000)) * 1000 + b"\xc0" * 1_000_000,
        b"\x91" * 900 + b"\xc0",
        b"\x91" * 100_000 + b"\xc0",
        b"\x81\xa1x" * 100_000 + b"\xc0",
    ],
    ids=lambda payload: f"{payload[:6].hex()}-{len(payload)}",
)
def test_a_declared_length_or_depth_costs_no_memory(name: str, payload: bytes) -> None:
    body = with_field(name, payload)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            codec.decode(body, ACCEPTED)
            raise WireError("skipped, as an unknown field may be")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_million_empty_lists_in_an_unknown_field_are_skipped_not_built() -> None:
    body = with_field("later", b"\xdd" + struct.pack(">I", 1_000_000) + b"\x90" * 1_000_000)
    tracemalloc.start()
    assert codec.decode(body, ACCEPTED) == Place(node=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # built, they would take 64 MB


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(WireError, match="2 bytes after the end"):
        codec.decode(codec.encode(PLACE) + b"\0\0", ACCEPTED)


def test_ten_thousand_mutations_raise_nothing_but_wire_errors() -> None:
    inputs = Inputs(7, [codec.encode(PLACE)])
    outcomes = {"message": 0, "refused": 0}
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(10_000):
        _, frames = inputs.frames()
        try:
            codec.decode(codec.decode_frame(frames[0]).body, ACCEPTED)
            outcomes["message"] += 1
        except WireError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 5000
    assert outcomes["message"] > 50  # mutation reaches past the first check
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 << 10


def test_flipping_any_single_bit_never_crashes() -> None:
    frame = codec.encode_frame("req", 5, codec.encode(PLACE))
    rng = random.Random(1)
    for at in range(len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1 << rng.randrange(8)
        try:
            assert isinstance(
                codec.decode(codec.decode_frame(bytes(changed)).body, ACCEPTED), Place
            )
        except WireError as error:
            assert error.message


def test_a_message_without_a_written_tag_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match=r'tag="service\.name/1"'):

        class Untagged(Message):  # type: ignore[call-arg]
            x: int

    with pytest.raises(TypeError, match="Misnamed needs a tag"):

        class Misnamed(Message, tag="Misnamed"):
            x: int


def test_two_messages_of_one_tag_cannot_be_accepted_together() -> None:
    class Other(Message, tag="test.place/1"):
        x: int

    with pytest.raises(TypeError, match="share the tag"):
        by_tag([Place, Other])


def test_messages_are_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        PLACE.node = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        Place(3)  # type: ignore[misc]
    assert tag_of(Place) == "test.place/1"
