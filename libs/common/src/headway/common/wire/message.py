"""The base of every message: a frozen, keyword-only struct whose tag is written down."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, dataclass_transform

import msgspec
from headway.common.wire.about import About, PartOf

TAG_PATTERN = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+/[1-9][0-9]*")


class _MessageMeta(msgspec.StructMeta):
    """Makes every message keyword-only, and requires a written tag.

    msgspec does not inherit that a message is keyword-only.
    """

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> Any:
        tag = config.get("tag")
        if bases != (msgspec.Struct,) and not (isinstance(tag, str) and TAG_PATTERN.fullmatch(tag)):
            raise TypeError(
                f'{name} needs a tag; write class {name}(Message, tag="service.name/1")'
            )
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **config})


if TYPE_CHECKING:
    # What the metaclass does, for type checkers: msgspec's declaration is neither
    # frozen nor keyword-only.
    @dataclass_transform(
        frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,)
    )
    class Message:
        __struct_config__: ClassVar[msgspec.structs.StructConfig]
        __struct_fields__: ClassVar[tuple[str, ...]]
        about: ClassVar[About | PartOf]

        def __init_subclass__(
            cls, *, tag: str, frozen: bool = True, kw_only: bool = True
        ) -> None: ...
else:

    class Message(msgspec.Struct, metaclass=_MessageMeta, frozen=True, tag_field="t"):
        """A control message; subclass as ``class Ping(Message, tag="service.ping/1")``.

        The docstring says what the message is for; ``about`` says how it travels: sender, receiver,
        transport, rate, and what losing it does. New fields have defaults, unknown fields are
        skipped, a changed meaning is a new tag (msgspec, schema evolution). Arrays and tensors are
        sent by other means.
        """

        about: ClassVar[About | PartOf]


M = TypeVar("M", bound=Message)


def tag_of(message: type[Message]) -> str:
    """The written tag of a message type, sent under the key ``t``."""
    return cast("str", message.__struct_config__.tag)


def by_tag(messages: Iterable[type[M]]) -> dict[str, type[M]]:
    """Message types by tag: what a receiver accepts.

    Raises:
        TypeError: two types share a tag.
    """
    accepted: dict[str, type[M]] = {}
    for message in messages:
        known = accepted.setdefault(tag_of(message), message)
        if known is not message:
            raise TypeError(
                f"{known.__name__} and {message.__name__} share the tag {tag_of(message)!r}"
            )
    return accepted
