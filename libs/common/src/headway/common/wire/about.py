"""Data on every message class: its sender, its receiver, its rate, and what losing it does.

``docs/protocol.md``, section 8, is generated from it (``python -m headway.testkit.wire.table``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

Role = Literal[
    "agent",
    "any client",
    "any service",
    "ckpt_store",
    "console",
    "console or executor",
    "console or driver",
    "dataloader",
    "driver",
    "executor",
    "gateway",
    "node",
    "monitor",
    "worker",
]
Kind = Literal["note", "request", "reply"]
Transport = Literal["ipc", "tcp", "ipc or tcp", "ipc, then tcp", "tcp, then ipc"]

RETRIED = "the client sends the request again"
"""What losing a request or a reply does: requests are retried with the same id, answered once."""


@dataclass(frozen=True, kw_only=True)
class About:
    """How one message type travels."""

    sender: Role
    receiver: Role
    via: Role | None = None
    """The process that passes the message on, if it is not sent directly."""
    kind: Kind
    """A ``note`` has no answer; a ``request`` has one ``reply``."""
    transport: Transport
    """``ipc`` inside a node, CURVE ``tcp`` between nodes."""
    rate: str
    """How often, or on which occasion, it is sent."""
    on_loss: str
    """What happens when the message does not arrive."""


@dataclass(frozen=True)
class PartOf:
    """The struct is never sent alone, only as a field of the messages named here."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


ROLE = "|".join(get_args(Role))
WAY = re.compile(
    rf"(?P<sender>{ROLE}) -> (?P<receiver>{ROLE})( via (?P<via>{ROLE}))?"
    rf" over (?P<transport>{'|'.join(get_args(Transport))}): (?P<rate>.+)"
)


def note(way: str, on_loss: str) -> About:
    """``note("driver -> worker via executor over tcp, then ipc: once per recovery", "...")``."""
    return _about("note", way, on_loss)


def request(way: str, on_loss: str = RETRIED) -> About:
    """``request("console -> driver over tcp: one per user command")``."""
    return _about("request", way, on_loss)


def reply(way: str, on_loss: str = RETRIED) -> About:
    """``reply("driver -> console over tcp: one per `Command`")``."""
    return _about("reply", way, on_loss)


def _about(kind: Kind, way: str, on_loss: str) -> About:
    found = WAY.fullmatch(way)
    if found is None:
        raise ValueError(
            f"{way!r} does not say how a message travels; write 'SENDER -> RECEIVER over TRANSPORT:"
            " HOW OFTEN', with the roles and transports of headway.common.wire.about"
        )
    return About(
        sender=cast("Role", found["sender"]),
        receiver=cast("Role", found["receiver"]),
        via=cast("Role | None", found["via"]),
        kind=kind,
        transport=cast("Transport", found["transport"]),
        rate=found["rate"],
        on_loss=on_loss,
    )
