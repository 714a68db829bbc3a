"""Whether what machines send each other is encrypted, by a capture on their bridge."""

from __future__ import annotations

import json
from pathlib import Path

from headway.common.wire.message import tag_of
from headway.testkit.bed import streams
from headway.testkit.wire import all_messages

OURS = [tag_of(message).encode() for message in all_messages()]
OURS += [b"all-arrived", b"grad_norm", b"learning_rate", b"secret", b"SELECT"]
"""Tags of all messages, a key of the ranks' store, fields: each would show in plain traffic."""


def senders_by_curve(capture: Path, run: Path) -> set[str]:
    """The addresses that have sent by CURVE. The traffic of torch.distributed is not encrypted, and
    has none of the texts that are looked for.

    Raises:
        AssertionError: something of Headway, or the run's secret, has crossed in plain.
    """
    sent, secret = streams(capture), json.loads((run / "bundle.json").read_text())["secret"]
    texts = [*OURS, secret.encode()]
    plain = [(text, one.source_port) for one in sent for text in texts if text in one.data]
    plain += [(b"NULL", one.source_port) for one in sent if one.data[12:16] == b"NULL"]
    if plain:
        raise AssertionError(f"in plain: {plain}")
    return {one.source for one in sent if one.data[12:17] == b"CURVE"}
