"""Data on every message class: its sender, its receiver, its rate, and what losing it does.

``docs/protocol.md``, section 8, is generated from it (``python -m headway.testkit.wire.table``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RETRIED = "the client sends the request again"
"""What losing a request or a reply does: requests are retried with the same id, answered once."""


@dataclass(frozen=True)
class About:
    """How one message type travels."""

    kind: Literal["note", "request", "reply"]
    """A ``note`` has no answer; a ``request`` has one ``reply``."""
    way: str
    """``SENDER -> RECEIVER [via ROLE] over TRANSPORT: HOW OFTEN``; ``headway.testkit.wire.way``
    reads it, and refuses unknown roles and transports."""
    on_loss: str
    """What happens when the message does not arrive."""


@dataclass(frozen=True, init=False)
class PartOf:
    """The struct is never sent alone, only as a field of the messages named here."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


def note(way: str, on_loss: str) -> About:
    """``note("driver -> worker via executor over tcp, then ipc: once per recovery", "...")``."""
    return About("note", way, on_loss)


def request(way: str, on_loss: str = RETRIED) -> About:
    """``request("console -> driver over tcp: one per user command")``."""
    return About("request", way, on_loss)


def reply(way: str, on_loss: str = RETRIED) -> About:
    """``reply("driver -> console over tcp: one per `Command`")``."""
    return About("reply", way, on_loss)
