"""A driver of a run that spans machines, one of which has joined, and what asks it to join."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from headway.common.config import load
from headway.common.wire import codec
from headway.common.wire.keys import KeyPair
from headway.launch.join import tokens
from headway.testkit.played.place import JoinedPlace, changed
from headway.trainer.config import RunConfig

NODES = 4
MEMBER, EMPTY, BEYOND = 1, 2, NODES
"""Numbers of a node that joins, of one that never does, and of one that the run does not have."""


class GatedPlace(JoinedPlace):
    """No machine carries the run; its engine reaches none.

    Args:
        folder: an empty one.
        settings: of the run, such as ``recovery.node_lost_s=1e7``.
    """

    def __init__(self, folder: Path, settings: list[str]) -> None:
        super().__init__(folder, load(RunConfig, overrides=settings), NODES)
        self.keys = KeyPair.generate()
        self.driver = self.start()

    def members(self) -> dict[int, str]:
        """Node -> public key, as a next driver would find them.

        Raises:
            AssertionError: the journal is damaged.
        """
        assert self.rows("PRAGMA integrity_check") == [("ok",)]
        rows = json.loads(self.rows("SELECT value FROM facts WHERE key = 'members'")[0][0])
        return {int(node): row["public_key"] for node, row in rows.items()}

    def admitted_by_monitor(self) -> set[str]:
        """Public keys of the agents whose reports the monitor of the driver's node takes."""
        return set((self.cluster.path / "keys" / "agents.allowed").read_text().split())

    def flawed(self) -> list[bytes]:
        """Bodies of ``Join`` that must not be admitted, nor must any of their mutations.

        To that end each carries a clock that no few changes set right; most have another flaw too.
        """
        key, mint = KeyPair.generate().public.decode(), tokens.mint
        secret, run_id = self.bundle.secret, self.run.run_id
        late = self.question(EMPTY, self.keys, public_key=key, unix_s=1.0)
        changes: list[dict[str, Any]] = [
            {},
            {"unix_s": math.nan},
            {"unix_s": math.inf},
            {"node": MEMBER, "token": mint(secret, run_id, MEMBER), "uid": "another"},
            {"node": MEMBER, "token": mint(secret, run_id, MEMBER), "uid": f"machine-{MEMBER}"},
            {"node": 0, "token": mint(secret, run_id, 0)},
            {"node": BEYOND, "token": mint(secret, run_id, BEYOND)},
            {"token": mint(secret, run_id, MEMBER)},
            {"token": mint(secret, "ffffffff", EMPTY)},
            {"token": mint(tokens.new_secret(), run_id, EMPTY)},
            {"token": mint(secret, run_id, EMPTY, valid_s=-60.0)},
            {"token": f"{'9' * 5000}.{EMPTY}.{'0' * 64}"},
            {"token": f"{time.time():.0f}.{'9' * 5000}.{'0' * 64}"},
            {"token": f"\u0663.\u0662.{'0' * 64}"},  # decimal digits of another script
            {"token": "."},
            {"version": "0.0.1"},
            {"host": "a\n{}\x1b[2J"},
            {"host": "h" * 300_000},
            {"uid": "u" * 300_000},
            {"host": "../../etc/hosts", "uid": "tcp://0.0.0.0:1", "boot_id": "\0"},
            {"public_key": self.keys.public.decode()},
            {"public_key": key[:-1]},
            {"num_gpus": -1, "num_cpus": -(2**63), "memory_bytes": 2**63 - 1, "shm_bytes": -1},
        ]
        return [codec.encode(changed(late, one)) for one in changes]
