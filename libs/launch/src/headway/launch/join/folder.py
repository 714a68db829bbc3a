"""The folders of a node that has joined.

They are the same as of an emulated one, with links to what is shared.

    cluster/        as ``ClusterFolder`` describes it; keys of this node only
    runs/NAME/      the run's folder: configuration, logs, records
      bundle.json
      control -> the shared folder's control
      checkpoints -> the shared folder's checkpoints
    joined.json     which start of the run it joined, at which boot of the machine
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.files import make_private_folder, replace_file, replace_json
from headway.common.node.machine import boot_id
from headway.common.node.run_dir import RunDir
from headway.common.wire.keys import KeyPair
from headway.launch.cluster import ClusterFolder
from headway.launch.join.bundle import Bundle

ROLES_OF_NODE = ("executor", "agent")
"""Roles that use the node's own key. A driver or monitor on the node has its own keys, which no
other node needs to know in advance."""


def check_seen(shared: Path) -> None:
    """Raises InputError where a folder that all machines see is not here."""
    if not shared.is_dir():
        raise InputError(
            f"this machine does not see {shared}",
            remedy="check that the shared folder is mounted",
        )


class NodeFolder:
    """One node of one run on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cluster = ClusterFolder(path / "cluster")

    def has_joined(self, node: int, start: str) -> bool:
        """Whether the node joined this start of the run since the machine started.

        False if it does not carry the run since then.
        """
        return self.joined_start(node) == start

    def joined_start(self, node: int) -> str | None:
        """Which start of the run the node joined since the machine started, None if none."""
        try:
            joined = json.loads((self.path / "joined.json").read_text())
            is_carried = (self.cluster.path / "nodes" / f"{node}.run").exists()
            is_here = bool(joined["boot_id"] == boot_id()) and is_carried
            return str(joined.get("start", "")) if is_here else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def leave(self) -> None:
        """Make the node join again before its next start, even while it is still being ended."""
        (self.path / "joined.json").unlink(missing_ok=True)

    def has_init(self, node: int) -> bool:
        """Whether the node's init runs."""
        init = self.cluster.init(node)
        return init is not None and not init.is_terminating()

    def key(self) -> KeyPair:
        """The node's own key pair, made here at the first call.

        Raises:
            InputError: the folder cannot be written.
        """
        return KeyPair.load_or_make(self.path / "node.key")

    def found_key(self) -> KeyPair | None:
        """The same; None before it is made, and after the node was ended.

        Raises:
            HeadwayError: it is damaged.
        """
        path = self.path / "node.key"
        return KeyPair.load(path) if path.exists() else None

    def logs(self) -> list[Path]:
        """Every log of the node."""
        patterns = ("cluster/logs/*.log", "runs/*/logs/*.log")
        return sorted(path for pattern in patterns for path in self.path.glob(pattern))

    def install(self, bundle: Bundle, node: int, *, keys: KeyPair, is_first: bool) -> None:
        """Make everything that an executor of this node needs; what is there stays.

        Args:
            bundle: what the run is.
            node: its number.
            keys: the pair that the driver has admitted.
            is_first: the run has no driver yet, and this node hosts it.

        Raises:
            InputError, OSError: a folder cannot be made, or the shared one is not here.
        """
        run = self.path / "runs" / bundle.name
        make_private_folder(run)
        for name, target in (("control", bundle.control), ("checkpoints", bundle.checkpoints)):
            check_seen(target)
            with contextlib.suppress(FileExistsError):
                (run / name).symlink_to(target)
        replace_file(run / "config.toml", bundle.config)
        bundle.save(run / "bundle.json")
        if not (run / "run.json").exists():
            RunDir.create(run, run_id=bundle.run_id)
        self._install_cluster(bundle, keys)
        carried = {"run_dir": str(run), "run_id": bundle.run_id, "is_fresh": is_first}
        self.cluster.write(f"nodes/{node}.run", carried)
        joined = {"boot_id": boot_id(), "node": node, "start": bundle.start}
        replace_json(self.path / "joined.json", joined)

    def _install_cluster(self, bundle: Bundle, keys: KeyPair) -> None:
        for part in ("nodes", "logs", "keys"):
            make_private_folder(self.cluster.path / part)
        for role in ROLES_OF_NODE:
            replace_file(self.cluster.path / "keys" / f"{role}.key", keys.to_text())
        replace_file(self.cluster.path / "keys" / "console.pub", bundle.console_key)
        self.cluster.describe(bundle.run_id, bundle.nodes, bundle.network)
