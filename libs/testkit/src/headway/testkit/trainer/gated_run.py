"""A driver of a run that spans machines, in a process of its own, and what asks it to join."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from headway.common.config import load, to_toml
from headway.common.node.run_dir import NodePaths, RunDir, new_run_id
from headway.common.node.testing import child_environment, wait_until
from headway.common.wire import codec
from headway.common.wire.addresses import Network
from headway.common.wire.client import Client
from headway.common.wire.keys import KeyPair
from headway.common.wire.messages.driver import Join, Joined
from headway.launch.cluster import ClusterFolder
from headway.launch.join import tokens
from headway.launch.join.bundle import Bundle
from headway.launch.join.client import this_machine
from headway.launch.lease.file import FileLease, Holder
from headway.trainer.config import RunConfig

NODES = 4
MEMBER, EMPTY, BEYOND = 1, 2, NODES
"""Numbers of a node that joins, of one that never does, and of one that the run does not have."""
ANSWER_S = 20.0


class GatedRun:
    """No machine carries the run; ``engine`` names one that nothing reaches.

    Args:
        folder: an empty one.
        settings: of the run, such as ``recovery.node_lost_s=1e7``.
    """

    def __init__(self, folder: Path, settings: list[str]) -> None:
        self.run = RunDir.create(folder / "run", run_id=new_run_id())
        self.run.config.write_text(to_toml(load(RunConfig, overrides=settings)))
        NodePaths(self.run.run_id, 0).create()
        self.cluster = ClusterFolder.create(folder / "cluster", nodes=NODES)
        control = folder / "shared" / "control"
        control.mkdir(parents=True)
        (self.run.path / "control").symlink_to(control)
        self.bundle = Bundle(
            run_id=self.run.run_id,
            name="run",
            nodes=NODES,
            config=self.run.config.read_text(),
            network=Network(),
            engine={
                "kind": "hosts",
                "shared": str(control.parent),
                "hosts": [{"name": f"nowhere{node}"} for node in range(NODES)],
                "reach": ["false", "{name}"],
            },
            shared=str(control.parent),
            secret=tokens.new_secret(),
        )
        self.bundle.save(self.run.bundle)
        self.keys = KeyPair.generate()
        self.log = folder / "driver.log"
        self.driver, self.holder = self._start()

    def _start(self) -> tuple[subprocess.Popen[bytes], Holder]:
        lease = FileLease(self.run.control, lambda _: True)
        assert lease.claim(0) == 1
        words = ["--run", self.run.path, "--cluster", self.cluster.path, "--node", 0, "--epoch", 1]
        command = [sys.executable, "-m", "headway.controller", "driver", *map(str, words)]
        with self.log.open("ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, env=child_environment())
        try:
            wait_until(lambda: lease.look().holder is not None, 60.0, f"a driver, see {self.log}")
        except BaseException:
            driver.kill()
            driver.wait()
            raise
        holder = lease.look().holder
        assert holder is not None
        return driver, holder

    def close(self) -> None:
        """Kill the driver."""
        self.driver.kill()
        self.driver.wait()

    def question(self, node: int = MEMBER, **changes: Any) -> Join:
        """What the machine of a node sends, with a valid token; each node is another machine."""
        token = tokens.mint(self.bundle.secret, self.run.run_id, node)
        changes = {"uid": f"machine-{node}", **changes}
        return _changed(this_machine(node, self.keys.public, token=token), changes)

    def join(self) -> Joined:
        """Have the machine of ``MEMBER`` join, or ask again."""
        server_key = self.holder.server_key.encode()
        with Client(self.holder.join_endpoint, keys=self.keys, server_key=server_key) as client:
            return client.call(self.question(), Joined, timeout_s=ANSWER_S)

    def members(self) -> dict[int, str]:
        """Node -> public key, as a next driver would find them.

        Raises:
            AssertionError: the journal is damaged.
        """
        uri = f"file:{self.run.database}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=ANSWER_S)) as journal:
            assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            fact = "SELECT value FROM facts WHERE key = 'members'"
            rows = json.loads(journal.execute(fact).fetchone()[0])
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
        late = self.question(EMPTY, public_key=key, unix_s=1.0)
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
        return [codec.encode(_changed(late, one)) for one in changes]


def _changed(question: Join, changes: dict[str, Any]) -> Join:
    return msgspec.structs.replace(question, **changes)  # type: ignore[type-var]
