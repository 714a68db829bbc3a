"""The folder that describes a cluster: its nodes, their executors' addresses, the key they share.

cluster.json      {"id", "nodes", "engine"}
keys/cluster.key  one CURVE key pair, mode 0600, held by every executor, driver and console
nodes/K.json      where node K's executor listens, written by that executor
nodes/K.run       the run that node K carries, absent while idle
nodes/K.lock      held by node K's executor, so that there is only one
nodes/K.lost      the emulated machine is gone and cannot be started again
logs/             output of the executors
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.process import ProcessId
from headway.common.wire.keys import KeyPair


@dataclass(frozen=True)
class NodeAddress:
    """Where a node's executor listens and which process it is."""

    endpoint: str
    process: ProcessId


class ClusterFolder:
    """Reads and writes the folder; every write is a rename, so a reader never sees half a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, *, nodes: int, cluster_id: str | None = None) -> ClusterFolder:
        """Make a new folder with a fresh key.

        Raises:
            InputError: the folder already describes a cluster.
        """
        if (path / "cluster.json").exists():
            raise InputError(f"{path} already holds a cluster", remedy="use another folder, or `make down` first")
        for part in ("nodes", "logs", "keys"):
            (path / part).mkdir(parents=True, exist_ok=True)
        (path / "keys").chmod(0o700)
        KeyPair.generate().save(path / "keys" / "cluster.key")
        folder = cls(path)
        folder.write("cluster.json", {"id": cluster_id or secrets.token_hex(4), "nodes": nodes, "engine": "local"})
        return folder

    def resize(self, nodes: int) -> None:
        """Change the number of nodes; those beyond it must be stopped already."""
        self.write("cluster.json", {"id": self.id, "nodes": nodes, "engine": "local"})

    def read(self, name: str) -> dict[str, object] | None:
        """One JSON file of the folder, None while it is absent."""
        try:
            data = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(f"{self.path / name} is no JSON: {error}", remedy="remove the cluster's folder") from error
        return dict(data)

    def write(self, name: str, data: dict[str, object]) -> None:
        """Replace one JSON file of the folder."""
        target = self.path / name
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        scratch.write_text(json.dumps(data, indent=1))
        scratch.replace(target)

    def remove(self, name: str) -> None:
        """Remove one file of the folder, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def _facts(self) -> dict[str, object]:
        facts = self.read("cluster.json")
        if facts is None:
            raise InputError(f"{self.path} holds no cluster", remedy="start one with `make up TARGET=local`")
        return facts

    @property
    def id(self) -> str:
        """The cluster's name on this machine: 8 hex digits."""
        return str(self._facts()["id"])

    @property
    def nodes(self) -> int:
        """Number of nodes, spares included."""
        return int(str(self._facts()["nodes"]))

    @property
    def keys(self) -> KeyPair:
        """The key pair that all parts of the cluster hold."""
        return KeyPair.load(self.path / "keys" / "cluster.key")

    def announce(self, node: int, endpoint: str, process: ProcessId) -> None:
        """Say where a node's executor listens."""
        self.write(
            f"nodes/{node}.json",
            {"endpoint": endpoint, "pid": process.pid, "start_ticks": process.start_ticks},
        )

    def address(self, node: int) -> NodeAddress | None:
        """Where a node's executor listens, None before its first start."""
        data = self.read(f"nodes/{node}.json")
        if data is None:
            return None
        return NodeAddress(str(data["endpoint"]), ProcessId(int(str(data["pid"])), int(str(data["start_ticks"]))))

    def claim(self, node: int) -> int:
        """Be the node's only executor until this process ends; returns the file descriptor that says so.

        Raises:
            InputError: another process is. Two are started when the first is slow to announce itself.
        """
        fd = os.open(self.path / "nodes" / f"{node}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise InputError(f"node {node} of {self.path} has an executor", remedy="leave it to that one") from None
        return fd

    def lost(self, node: int) -> bool:
        """Whether the machine of this node is gone."""
        return (self.path / f"nodes/{node}.lost").exists()
