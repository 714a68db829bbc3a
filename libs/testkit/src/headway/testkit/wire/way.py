"""Reads how a message travels, from the line that its class has in ``about``."""

from __future__ import annotations

import re
from typing import NamedTuple

ROLES = (
    "agent|any client|any service|ckpt_store|console|console or executor|console or driver|"
    "coordinator|dataloader|driver|executor|gateway|node|monitor|peer|worker"
)
TRANSPORTS = "ipc|tcp|ipc or tcp|ipc, then tcp|tcp, then ipc"
"""``ipc`` inside a node, CURVE ``tcp`` between nodes."""
_WAY = re.compile(
    rf"(?P<sender>{ROLES}) -> (?P<receiver>{ROLES})( via (?P<via>{ROLES}))?"
    rf" over (?P<transport>{TRANSPORTS}): (?P<rate>.+)"
)


class Way(NamedTuple):
    """One line, taken apart."""

    sender: str
    receiver: str
    via: str | None
    """The process that passes the message on, if it is not sent directly."""
    transport: str
    rate: str
    """How often, or on which occasion, it is sent."""


def way_of(line: str) -> Way:
    """Take a line apart.

    Raises:
        ValueError: it has another form, or an unknown role or transport.
    """
    found = _WAY.fullmatch(line)
    if found is None:
        raise ValueError(
            f"{line!r} does not say how a message travels; write 'SENDER -> RECEIVER over"
            " TRANSPORT: HOW OFTEN', with the roles and transports of headway.testkit.wire.way"
        )
    return Way(**found.groupdict())
