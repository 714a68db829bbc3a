"""Who sends a message to whom, how often, and what losing it does: data on every message class.

``docs/protocol.md``, section 8, is generated from it (``python -m headway.testkit.wire.table``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
