"""What version 2 has sent stays readable:
stored bytes of every message, and a round trip of any value.

``wire_bytes_v2.json`` holds one encoded body per message, by tag. A new message gets its entry from
``python -m headway.testkit.wire.messages tests/contract/wire_bytes_v2.json``, which leaves stored
ones alone. An entry whose test fails shows that a field was renamed, retyped or removed: give the
message a new tag instead.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from headway.common.errors import WireError
from headway.common.wire import codec
from headway.common.wire.message import Message, by_tag, tag_of
from headway.common.wire.messages.executor import WorkerBeat
from headway.testkit.wire import all_messages, example_of, strategy_of
from headway.testkit.wire.messages import add_missing
from hypothesis import given, settings
from hypothesis import strategies as st

STORED_PATH = Path(__file__).with_name("wire_bytes_v2.json")
STORED: dict[str, str] = json.loads(STORED_PATH.read_text())
MESSAGES = all_messages()
KNOWN = by_tag(MESSAGES)

DROPPED: dict[str, list[str]] = {
    "health.agent_beat/1": [".workers[0].compute_s: 0.5 became 'absent'"],
    "health.worker_signals/1": [".compute_s: 0.5 became 'absent'"],
}
"""Fields that no receiver reads any more, and so are sent no more. What was sent decodes."""

each_message = pytest.mark.parametrize("message", MESSAGES, ids=tag_of)


def plain(message: Message) -> dict[str, Any]:
    """What another MessagePack reader sees."""
    return msgpack.unpackb(codec.encode(message), strict_map_key=False)  # type: ignore[no-any-return]


def test_this_protocol_is_the_stored_one() -> None:
    assert codec.PROTOCOL_VERSION == 2
    assert len(MESSAGES) >= 40  # the modules were found


@pytest.mark.parametrize("tag", sorted(STORED))
def test_stored_bytes_decode_to_the_values_they_were_made_of(tag: str) -> None:
    body = bytes.fromhex(STORED[tag])
    assert tag in KNOWN, f"{tag} was sent by version 2 and is gone"
    decoded = plain(codec.decode(body, KNOWN))
    stored = msgpack.unpackb(body, strict_map_key=False)
    assert missing(stored, decoded) == DROPPED.get(tag, [])


def missing(stored: Any, decoded: Any, where: str = "") -> list[str]:
    """Paths whose stored value is not found again; fields that were added since are no loss."""
    if isinstance(stored, dict) and isinstance(decoded, dict):
        return [
            lost
            for key in stored
            for lost in missing(stored[key], decoded.get(key, "absent"), f"{where}.{key}")
        ]
    # a record that is sent as an array may have grown at its end
    if isinstance(stored, list) and isinstance(decoded, list) and len(stored) <= len(decoded):
        pairs = enumerate(zip(stored, decoded, strict=False))
        return [lost for at, (old, new) in pairs for lost in missing(old, new, f"{where}[{at}]")]
    return [] if stored == decoded else [f"{where}: {stored!r} became {decoded!r}"]


def test_a_renamed_field_would_be_found() -> None:
    assert missing({"t": "x", "a": [{"b": 1}]}, {"t": "x", "a": [{"c": 1}]}) == [
        ".a[0].b: 1 became 'absent'"
    ]
    assert missing({"a": 1}, {"a": 1, "new": 2}) == []
    assert missing({"a": [1]}, {"a": []}) == [".a: [1] became []"]


@each_message
def test_every_message_has_stored_bytes(message: type[Message]) -> None:
    assert tag_of(message) in STORED, f"run python -m headway.testkit.wire.messages {STORED_PATH}"


@each_message
@settings(max_examples=50)
@given(data=st.data())
def test_any_value_survives_the_wire(message: type[Message], data: st.DataObject) -> None:
    value = data.draw(strategy_of(message))
    frame = codec.encode_frame("note", 0, codec.encode(value))
    assert codec.decode(codec.decode_frame(frame).body, KNOWN) == value
    assert plain(value)["t"] == tag_of(message)


def test_a_word_outside_its_set_is_refused_at_the_border() -> None:
    beat = WorkerBeat(worker="n0w0", pid=1, start_ticks=1, status="left")
    body = codec.encode(beat)
    assert codec.decode(body, KNOWN) == beat
    with pytest.raises(WireError, match="status"):
        codec.decode(body.replace(b"left", b"lost"), KNOWN)


def test_not_a_number_and_infinities_survive_the_wire() -> None:
    class Reading(Message, tag="test.reading/1"):
        value: float

    accepted = by_tag([Reading])
    for value in (math.inf, -math.inf, -0.0, 5e-324):
        assert math.copysign(
            1, codec.decode(codec.encode(Reading(value=value)), accepted).value
        ) == math.copysign(1, value)
        assert codec.decode(codec.encode(Reading(value=value)), accepted).value == value
    assert math.isnan(codec.decode(codec.encode(Reading(value=math.nan)), accepted).value)


@given(
    kind=st.sampled_from(["req", "rep", "err", "note"]),
    request_id=st.integers(0, codec.MAX_ID),
    body=st.binary(max_size=200),
)
def test_any_envelope_survives_the_wire(kind: codec.Kind, request_id: int, body: bytes) -> None:
    frame = codec.encode_frame(kind, request_id, body)
    assert codec.decode_frame(frame) == codec.Envelope(2, kind, request_id, body)
    assert codec.read_head(frame) == (2, request_id)


def test_the_helper_adds_what_is_missing_and_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "stored.json"
    kept = sorted(KNOWN)[0]
    path.write_text(json.dumps({kept: "c0", "gone.message/1": "80"}))
    added = add_missing(path)
    stored = json.loads(path.read_text())
    assert sorted(added) == sorted(set(KNOWN) - {kept})
    assert (stored[kept], stored["gone.message/1"]) == ("c0", "80")
    assert add_missing(path) == []


@each_message
def test_examples_fill_every_field_and_are_the_same_each_time(message: type[Message]) -> None:
    example = example_of(message)
    assert example == example_of(message)
    for name in message.__struct_fields__:
        assert msgspec.to_builtins(getattr(example, name)) not in (None, [], {}, ()), name
