"""The base of every message: a frozen struct whose tag is written down, never taken from its class name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

import msgspec

TAG_PATTERN = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+/[1-9][0-9]*")


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="t"):
    """A control message; subclass as ``class Ping(Message, tag="service.ping/1")``.

    The docstring of a message says: sender -> receiver, socket, rate, and what losing it does. New fields have defaults,
    unknown fields are skipped, a changed meaning is a new tag (msgspec, schema evolution). Arrays and
    tensors never travel here.
    """


def tag_of(message: type[Message]) -> str:
    """The written tag of a message type, as it stands under the key ``t`` on the wire.

    Raises:
        TypeError: the class has no tag of the form ``service.name/version``; the class name is no tag.
    """
    tag = cast("object", message.__struct_config__.tag)
    if not isinstance(tag, str) or not TAG_PATTERN.fullmatch(tag):
        raise TypeError(f'{message.__name__} needs a tag; write class {message.__name__}(Message, tag="service.name/1")')
    return tag


def by_tag(messages: Iterable[type[Message]]) -> dict[str, type[Message]]:
    """Message types by tag: what a receiver accepts.

    Raises:
        TypeError: a type has no written tag, or two types share one.
    """
    accepted: dict[str, type[Message]] = {}
    for message in messages:
        known = accepted.setdefault(tag_of(message), message)
        if known is not message:
            raise TypeError(f"{known.__name__} and {message.__name__} share the tag {tag_of(message)!r}")
    return accepted
