"""Whether what machines send each other is encrypted, by a capture on their bridge.

Two rules, since each alone has gaps: a connection must be of a kind that may cross at all, and none
may show a text of ours, of whatever kind it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from headway.common.wire.message import tag_of
from headway.testkit.bed import Datagram, Stream, datagrams, streams
from headway.testkit.wire import all_messages

OURS = [tag_of(message).encode() for message in all_messages()]
OURS += [b"all-arrived", b"grad_norm", b"learning_rate", b"secret", b"SELECT"]
OURS += [b"\x93NUMPY", b"HTTP/1."]
"""Tags of all messages, a key of the ranks' store, fields, and how files and requests begin: each
would show in plain traffic."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0")
"""How a ZMTP 3 connection begins (RFC 23), up to the mechanism's name and the zeros after it."""
FREE = (8, 11)
"""Bytes of it that differ: for ZMTP 1 the length of a routing id, and the minor version."""
DNS_PORT = 53
_MOST_NAMED = 10
_FIRST_BYTES = 32


def pairs_by_curve(capture: Path, run: Path, *, fabric: Collection[str]) -> set[tuple[str, str]]:
    """The pairs of addresses of which the first has sent to the second one by CURVE.

    Nothing else may cross but what gloo sends, which is not encrypted: its connections are between
    two addresses of the fabric, and have none of the texts that are looked for.

    Args:
        capture: begun before the connections that it shows: their first bytes say what they are.
        run: the folder of the run on the console's machine.
        fabric: addresses of the machines in the ranks' network.

    Raises:
        AssertionError: something that must be encrypted, or the run's secret, has crossed in plain.
    """
    sent, secret = streams(capture), json.loads((run / "bundle.json").read_text())["secret"]
    texts = [*OURS, secret.encode()]
    wrong = [
        *(_shown(one) for one in sent if one.data and not _may_cross(one, fabric)),
        *(_shown(one) for one in datagrams(capture) if not _is_dns(one)),
        *(f"{_shown(one)} has {text!r}" for one in sent for text in texts if text in one.data),
    ]
    if wrong:
        raise AssertionError(f"{len(wrong)} in plain: {'; '.join(wrong[:_MOST_NAMED])}")
    return {
        (one.source, one.target)
        for one in sent
        if _is_curve(one) and len(one.data) >= len(GREETING)
    }


def _may_cross(one: Stream, fabric: Collection[str]) -> bool:
    is_in_fabric = one.source in fabric and one.target in fabric
    return _is_curve(one) or (is_in_fabric and not _is_zmtp(one))


def _is_zmtp(one: Stream) -> bool:
    """Whether it is of libzmq, by whatever mechanism."""
    return one.data[:1] == GREETING[:1] and one.data[9:10] == GREETING[9:10]


def _is_curve(one: Stream) -> bool:
    """Whether it begins with the greeting, or is a part of it, as where the sender has ended."""
    pairs = enumerate(zip(one.data, GREETING, strict=False))
    return bool(one.data) and all(at in FREE or byte == own for at, (byte, own) in pairs)


def _is_dns(one: Datagram) -> bool:
    return DNS_PORT in (one.source_port, one.target_port)


def _shown(one: Stream | Datagram) -> str:
    ends = f"{one.source}:{one.source_port} -> {one.target}:{one.target_port}"
    return f"{ends} {bytes(one.data[:_FIRST_BYTES])!r}"
