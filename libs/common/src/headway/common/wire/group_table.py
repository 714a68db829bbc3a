"""The group table of a rank in a beat.

It is read in a hang only. Of a large run the tables would be half of what a monitor has to decode,
so that each is sent as one value of packed rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class GroupRow(NamedTuple):
    """How far a rank is in one of its groups; a tuple, as there are up to 16 for each rank."""

    line: int
    """Line of the group table; ``plan.collectives`` decodes its kind and end of messages."""
    number: int
    """The group's lowest rank; of messages, the rank that sends them."""
    size: int
    """Number of members."""
    op: int
    """``plan.collectives.Op`` of the newest one entered, 0 before the first."""
    nbytes: int
    """Bytes of the newest one entered, on this rank."""
    entered: int
    """Collectives or messages that the rank has entered in its generation."""
    done: int
    """How many of the entered ones its transport has finished."""
    entered_ago_ms: int
    """Since the newest was entered, -1 before the first."""
    done_ago_ms: int


_decode = msgspec.msgpack.Decoder(tuple[GroupRow, ...]).decode


def pack(rows: Iterable[GroupRow]) -> bytes:
    """The rows as one value."""
    return msgspec.msgpack.encode(tuple(rows))


def unpack(packed: bytes) -> tuple[GroupRow, ...]:
    """The rows of a value; none of one that is empty or damaged."""
    try:
        return _decode(packed) if packed else ()
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return ()
