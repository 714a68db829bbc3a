"""An sshd on each node of a bed, with keys made for it; the host's own ssh is not touched."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.polling import wait_until
from headway.testkit.bed.node import Node

START_LIMIT_S = 20.0
FILES = ("host_key", "host_key.pub")
"""On the disk of each node: the others know it by them."""


class Ssh:
    """Files in ``folder``, which all nodes see; each node keeps its host key on its disk."""

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        self.folder, self._nodes = folder, nodes
        folder.mkdir(mode=0o700)
        self.key = folder / "id"
        _make_key(self.key)
        self.config = folder / "config"
        known = [f"{node.name},{node.address} {self._host_key(node)}" for node in nodes]
        (folder / "known_hosts").write_text("\n".join(known) + "\n")
        hosts = [f"Host {node.name}\n  HostName {node.address}" for node in nodes]
        self.config.write_text("\n".join([*hosts, self._common()]) + "\n")
        for node in nodes:
            self.start(node)

    @staticmethod
    def missing() -> str:
        """What keeps it from running here, "" if nothing does."""
        absent = [name for name in ("sshd", "ssh", "ssh-keygen") if not _program(name)]
        if not absent:
            return ""
        packages = "openssh-server openssh-client"
        return f"{', '.join(absent)} not found (apt-get install {packages})"

    @property
    def reach(self) -> list[str]:
        """The words of ``reach`` in hosts.toml."""
        return ["ssh", "-F", str(self.config), "{name}"]

    def start(self, node: Node) -> None:
        """Start the node's sshd, as its boot would; returns once it listens."""
        config = self.folder / f"sshd-{node.name}"
        lines = [
            f"ListenAddress {node.address}",
            f"HostKey {node.root / 'host_key'}",
            f"AuthorizedKeysFile {self.key}.pub",
            "PidFile none",
            "UsePAM no",
            "StrictModes no",
            "PasswordAuthentication no",
            "PermitRootLogin prohibit-password",
            # a login on a real machine finds an installed Headway
            f"SetEnv PYTHONPATH={node.environment['PYTHONPATH']} OMP_NUM_THREADS=1",
        ]
        config.write_text("\n".join(lines) + "\n")
        node.run(["mkdir", "-p", "/run/sshd"])
        node.start([_program("sshd"), "-D", "-e", "-f", config])
        asks: list[str | Path] = [_program("ssh"), "-F", self.config, node.name, "true"]

        def answers() -> bool:
            return node.run(asks, check=False).returncode == 0

        last = node.run(asks, check=False) if not wait_until(answers, START_LIMIT_S) else None
        if last is not None:
            raise HeadwayError(f"sshd of {node.name} does not answer: {last.stderr}")

    def _host_key(self, node: Node) -> str:
        path = node.root / "host_key"
        path.unlink(missing_ok=True)  # of machines that were in the same folder
        _make_key(path)
        return path.with_suffix(".pub").read_text().strip()

    def _common(self) -> str:
        lines = [
            "User root",
            f"IdentityFile {self.key}",
            "IdentitiesOnly yes",
            f"UserKnownHostsFile {self.folder / 'known_hosts'}",
            "StrictHostKeyChecking yes",
            "BatchMode yes",
            "ConnectTimeout 5",
            "ServerAliveInterval 2",
            "ServerAliveCountMax 3",
        ]
        return "\n".join(["Host *", *(f"  {line}" for line in lines)])


def _make_key(path: Path) -> None:
    words = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def _program(name: str) -> str:
    return shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") or ""
