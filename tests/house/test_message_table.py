"""Every message class says how it travels, and docs/protocol.md shows exactly that."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest
from headway.common.wire.about import About, PartOf
from headway.common.wire.message import Message, tag_of
from headway.testkit.wire import all_messages
from headway.testkit.wire.table import renewed
from headway.testkit.wire.way import way_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
MESSAGES = {message.__name__: message for message in all_messages()}
MODULES = {tag_of(message).partition(".")[0] for message in MESSAGES.values()}

each_message = pytest.mark.parametrize("message", MESSAGES.values(), ids=tag_of)


def mentions(hint: Any, wanted: type[Message]) -> bool:
    """Whether a field of this type holds a message of the wanted type."""
    return hint is wanted or any(mentions(part, wanted) for part in typing.get_args(hint))


@each_message
def test_every_message_has_metadata_of_its_own_and_a_sentence(message: type[Message]) -> None:
    about = vars(message).get("about")
    assert isinstance(about, About | PartOf), "write about = note(...), request, reply or PartOf"
    assert re.match(r"[A-Z].*\.$", (inspect.getdoc(message) or "").splitlines()[0])
    if isinstance(about, About):
        assert way_of(about.way).rate.strip() and about.on_loss.strip()


@pytest.mark.parametrize(
    "way",
    ["driver -> nobody over tcp: once", "driver -> executor over udp: once", "driver: once", ""],
)
def test_a_way_with_an_unknown_role_or_transport_is_refused(way: str) -> None:
    assert way_of("driver -> worker via executor over tcp, then ipc: once").via == "executor"
    with pytest.raises(ValueError, match="does not say how a message travels"):
        way_of(way)


@each_message
def test_a_message_is_in_the_module_of_who_receives_or_answers_it(message: type[Message]) -> None:
    about, module = message.about, tag_of(message).partition(".")[0]
    if isinstance(about, PartOf):
        return
    way = way_of(about.way)
    ends = {way.sender, way.receiver, way.via or ""}
    named = {"service": "any service", "health": "monitor", "summaries": "monitor"}.get(
        module, module
    )
    assert named in ends


@each_message
def test_a_part_is_a_field_of_the_messages_that_it_names(message: type[Message]) -> None:
    if not isinstance(message.about, PartOf):
        return
    assert message.about.names
    for name in message.about.names:
        hints = typing.get_type_hints(MESSAGES[name])
        fields = [hints[field] for field in MESSAGES[name].__struct_fields__]
        assert any(mentions(hint, message) for hint in fields), name


@each_message
def test_names_of_messages_in_the_metadata_exist(message: type[Message]) -> None:
    if isinstance(message.about, About):
        rate = way_of(message.about.way).rate
        text = f"{rate} {message.about.on_loss}"
        named = set(re.findall(r"`([A-Z]\w+)`", text))
        assert named <= set(MESSAGES)
        assert message.about.kind != "reply" or "one per " in rate


def test_the_page_shows_the_messages_of_today() -> None:
    text = PAGE.read_text()
    assert text == renewed(text), "run python -m headway.testkit.wire.table docs/protocol.md"


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no generated part"):
        renewed("# Protocol")
