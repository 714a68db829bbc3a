"""The folder that describes a cluster: its nodes, their executors' addresses, and a key per role.

Only the user has access: folders are 0700, files 0600.

cluster.json      {"schema", "id", "nodes", "network", "engine"}: where its executors listen, who
                  starts them
keys/ROLE.key     a CURVE key pair per role, mode 0600: a server admits only the roles it serves
keys/ROLE.pub     only the public half, of a role that works on another machine
nodes/K.json      where node K's executor listens, written by that executor
nodes/K.run       the run that node K carries, absent while idle
nodes/K.init      pid and start time of node K's init, so that there is only one
nodes/K.lock      the same of its executor, written by the init that starts it, then by itself
nodes/K.lost      the emulated machine is gone and cannot be started again
started/ID.json   a run that was started on machines of this cluster, and where its folder is
started/ID.over   one of which no process should be left
logs/             output of the inits and executors

Files are replaced by renaming, except nodes/K.init, nodes/K.lock and, on a full disk, nodes/K.json,
which are overwritten in place.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from headway.common.config import from_dict
from headway.common.errors import ConfigError, InputError
from headway.common.node.claim import ClaimedError, claim, holder_of
from headway.common.node.files import files_below, make_private_folder, replace_json
from headway.common.node.process import ProcessId
from headway.common.wire.addresses import Network
from headway.common.wire.keys import KeyPair

PARTS = ("nodes", "logs", "keys", "started")
SCHEMA = 1
"""The folder's schema; another number is another version of Headway."""
ROLES = ("console", "driver", "executor", "monitor", "agent")


@dataclass(frozen=True)
class NodeAddress:
    """Where a node's executor listens and which process it is."""

    endpoint: str
    process: ProcessId


class ClusterFolder:
    """Reads and writes the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        nodes: int,
        cluster_id: str | None = None,
        network: Network | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> ClusterFolder:
        """Create a new folder with a new key for each role.

        Keys that a creation has made which did not come to its end are kept.

        Raises:
            InputError: the folder already describes a cluster, or cannot be created.
        """
        folder = cls(path)
        if folder.exists:
            raise InputError(
                f"{path} already holds a cluster",
                remedy="use another folder, or `headway cluster remove` first",
            )
        try:
            for part in ("", *PARTS):
                make_private_folder(path / part)
        except OSError as error:
            raise InputError(
                f"cannot make {path}: {error.strerror}",
                remedy="use another folder",
            ) from error
        for role in ROLES:
            folder.key_of(role)
        folder.describe(cluster_id or secrets.token_hex(4), nodes, network, engine)
        return folder

    def describe(
        self,
        cluster_id: str,
        nodes: int,
        network: Network | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        """Write ``cluster.json``."""
        facts = {"schema": SCHEMA, "id": cluster_id, "nodes": nodes}
        where = {"network": asdict(network or Network()), "engine": dict(engine or {})}
        self.write("cluster.json", facts | where)

    @property
    def exists(self) -> bool:
        """Whether the folder describes a cluster."""
        return (self.path / "cluster.json").exists()

    def resize(self, nodes: int) -> None:
        """Change the number of nodes; those beyond it must be stopped already."""
        self.write("cluster.json", {**self._facts(), "nodes": nodes})

    def read(self, name: str) -> dict[str, object] | None:
        """One JSON file of the folder, None while it is absent."""
        try:
            data = json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InputError(
                f"{self.path / name} is not valid JSON: {error}",
                remedy="remove this file; it is written again when the node starts",
            ) from error
        return dict(data)

    def write(self, name: str, data: dict[str, object]) -> None:
        """Replace one JSON file of the folder."""
        replace_json(self.path / name, data)

    def remove(self, name: str) -> None:
        """Remove one file of the folder, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what belongs to the cluster; Terraform keeps its state in the same folder."""
        for part in PARTS:
            shutil.rmtree(self.path / part, ignore_errors=True)
        self.remove("cluster.json")

    def _facts(self) -> dict[str, object]:
        facts = self.read("cluster.json")
        if facts is None:
            raise InputError(
                f"{self.path} holds no cluster", remedy="create one with `headway cluster create`"
            )
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
    def engine(self) -> dict[str, Any]:
        """Which engine provides the nodes, and how it reaches them; empty: this machine."""
        facts = self._facts().get("engine", {})
        return dict(facts) if isinstance(facts, dict) else {}

    def check_schema(self) -> None:
        """Raises InputError: another version of Headway made the folder."""
        found = self._facts().get("schema", 0)
        if found != SCHEMA:
            raise InputError(
                f"{self.path} has schema {found}, and this version of Headway uses schema {SCHEMA}",
                remedy="end its nodes with `headway cluster remove`, and create it again",
            )

    def check_emulated(self) -> None:
        """Raises InputError if the folder holds no cluster, or one whose nodes are machines."""
        if self.engine:
            raise InputError(
                f"the nodes of {self.path} are machines, which join when a run starts",
                remedy="name the run: `headway node start --run RUN --node NODE`",
            )

    @property
    def network(self) -> Network:
        """Where its executors listen.

        Raises:
            InputError: the file is damaged.
        """
        try:
            return from_dict(Network, cast("dict[str, Any]", self._facts().get("network", {})))
        except (ConfigError, TypeError) as error:
            raise InputError(
                f"{self.path / 'cluster.json'} has no valid network: {error}",
                remedy="create the cluster again",
            ) from error

    def key_of(self, role: str) -> KeyPair:
        """Return the key pair of one of ``ROLES``, made now where a joined machine lacks it."""
        return KeyPair.load_or_make(self.path / "keys" / f"{role}.key")

    def public_of(self, *roles: str) -> set[bytes]:
        """The public keys that a server for these roles admits.

        Of a role that works on another machine only the public half is here, in ``ROLE.pub``.
        """
        return {self._public_of(role) for role in roles}

    def _public_of(self, role: str) -> bytes:
        try:
            return (self.path / "keys" / f"{role}.pub").read_bytes().strip()
        except FileNotFoundError:
            return self.key_of(role).public

    def announce(self, node: int, endpoint: str, process: ProcessId) -> None:
        """Publish where a node's executor listens; on a full disk the file is overwritten in place.

        Raises:
            OSError: it cannot be written.
        """
        name = f"nodes/{node}.json"
        facts = {"endpoint": endpoint, "pid": process.pid, "start_ticks": process.start_ticks}
        try:
            self.write(name, dict(facts))
        except OSError:
            _overwrite(self.path / name, json.dumps(facts))

    def address(self, node: int) -> NodeAddress | None:
        """Where a node's executor listens; None before its first start, and for a damaged file."""
        try:
            data = self.read(f"nodes/{node}.json")
            if data is None:
                return None
            process = ProcessId(int(str(data["pid"])), int(str(data["start_ticks"])))
            return NodeAddress(str(data["endpoint"]), process)
        except (InputError, KeyError, ValueError):  # an executor writes it again when it starts
            return None

    def living(self, node: int) -> ProcessId | None:
        """The node's executor if it has announced itself and has not ended, else None."""
        address = self.address(node)
        if address is None or address.process.is_terminating():
            return None
        return address.process

    def carried(self, node: int) -> dict[str, object] | None:
        """``run_dir`` and ``run_id`` of the run that a node carries, None while it is idle.

        Raises:
            InputError: the file is damaged.
        """
        return self.read(f"nodes/{node}.run")

    def runs(self) -> dict[int, dict[str, object]]:
        """Node -> ``carried(node)`` of those that carry a run; unreadable entries are left out.

        Raises:
            OSError: the folder cannot be listed.
        """
        found = {}
        for file in files_below(self.path / "nodes"):
            with contextlib.suppress(InputError, ValueError, OSError):
                carried = self.carried(int(file.stem)) if file.suffix == ".run" else None
                if carried is not None and {"run_dir", "run_id"} <= carried.keys():
                    found[int(file.stem)] = carried
        return found

    def change(self, nodes: int, engine: Mapping[str, Any]) -> None:
        """Replace the machines of the cluster; runs that are live keep theirs."""
        self.describe(self.id, nodes, self.network, engine)

    def note(self, run_id: str, run_dir: Path) -> None:
        """Remember a run on machines, which carry no file of this folder. Raises OSError."""
        make_private_folder(self.path / "started")
        self.write(f"started/{run_id}.json", {"run_dir": str(run_dir)})

    def noted(self) -> dict[str, Path]:
        """Run id -> folder of the runs that were noted; unreadable entries are left out."""
        found = {}
        for file in sorted((self.path / "started").glob("*.json")):
            with contextlib.suppress(InputError, OSError, KeyError):
                found[file.stem] = Path(str((self.read(f"started/{file.name}") or {})["run_dir"]))
        return found

    def settle(self, run_id: str) -> None:
        """Keep only the id of a run that is over, for a look at what it may have left."""
        with contextlib.suppress(FileNotFoundError):
            name = self.path / "started" / f"{run_id}.json"
            name.replace(name.with_suffix(".over"))

    def run_ids(self) -> list[str]:
        """The runs that were ever started on machines of this cluster."""
        return sorted({path.stem for path in (self.path / "started").glob("*.*")})

    def is_carrying(self, run_id: str) -> bool:
        """Whether a living executor of this cluster carries the run."""
        for node, carried in self.runs().items():
            with contextlib.suppress(InputError, KeyError, ValueError, OSError):
                if carried["run_id"] == run_id and self.living(node) is not None:
                    return True
        return False

    def claim(self, node: int) -> None:
        """Claim the node for this process, as its only executor until the process ends.

        A frozen process with a pending SIGKILL counts as gone.

        Raises:
            InputError: another process is its executor. A second one is started when the first is
                slow to announce itself.
            OSError: the folder cannot be written.
        """
        try:
            claim(self.path / "nodes" / f"{node}.lock")
        except ClaimedError as error:
            raise InputError(
                f"node {node} of {self.path} already has an executor, process {error.holder.pid}",
                remedy="leave that one running",
            ) from None

    def init(self, node: int) -> ProcessId | None:
        """The process that was the node's init last, alive or not; None before the first."""
        return holder_of(self.path / "nodes" / f"{node}.init")

    def lost(self, node: int) -> bool:
        """Whether the machine of this node is gone."""
        return (self.path / f"nodes/{node}.lost").exists()


def _overwrite(path: Path, text: str) -> None:
    """Overwrite a small file in place, padded to its length.

    This needs no additional disk space.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, text.encode().ljust(os.fstat(descriptor).st_size), 0)
    finally:
        os.close(descriptor)
