"""The key pairs of peers and coordinator, in a folder that all nodes share or have a copy of."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headway.common.wire.keys import KeyPair

PEER_KEY, COORDINATOR_KEY = "peer.key", "coordinator.key"


class Keys(NamedTuple):
    """Both pairs: a peer admits the coordinator's, the coordinator knows the peers'."""

    peer: KeyPair
    coordinator: KeyPair


def load_keys(folder: Path) -> Keys:
    """The pairs in a folder, made if they are missing, also by several peers at the same time.

    Raises:
        InputError, CorruptError: a file cannot be written or read.
    """
    return Keys(*(KeyPair.load_or_make(folder / name) for name in (PEER_KEY, COORDINATOR_KEY)))
