"""Nodes of a bed as the machines of a cluster, and the console on a machine of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headway.testkit.bed import Bed, Process
from headway.testkit.bed.node import Node
from headway.testkit.bed.remote import Remote
from headway.testkit.machines.ssh import Ssh

SETTINGS = ("launch.ranks_per_node=1", "launch.interface=eth0")
"""What machines with one rank each need."""


class Machines:
    """``with Machines(folder, count=5) as machines: machines.headway("run", ...)``.

    The machines see one folder in common, ``folder/shared``; the console writes runs to
    ``folder/runs``, which the host sees too. They reach each other for commands by the bed's own
    way or by ssh; the bed cuts the power of one that does not answer.

    Args:
        folder: on the host, must exist.
        count: how many, spares included.
        visible: what else they may read, such as a corpus.
        has_ssh: commands go over ssh; each machine has an sshd.
    """

    def __init__(
        self, folder: Path, *, count: int, visible: Iterable[Path] = (), has_ssh: bool = False
    ) -> None:
        self.folder = folder.resolve()
        self.shared, self.runs = self.folder / "shared", self.folder / "runs"
        for path in (self.shared, self.runs, self.folder / "disks"):
            path.mkdir(exist_ok=True)
        self.count = count
        self.bed = Bed(
            self.folder / "disks",
            nodes=count + 1,
            shared=[self.shared, self.runs],
            visible=visible,
        )
        self.remote: Remote
        self.ssh: Ssh | None = None
        self._has_ssh = has_ssh
        self.env: dict[str, str] = {"OMP_NUM_THREADS": "1"}
        """Added for each command of the console; machines have what a login gives."""

    @staticmethod
    def missing() -> str:
        """What keeps machines from running here, "" if nothing does."""
        return Bed.missing()

    def __enter__(self) -> Machines:
        self.bed.__enter__()
        try:
            self.remote = Remote(self.bed, self.shared / "bed.sock")
            if self._has_ssh:
                self.ssh = Ssh(self.shared / "ssh", self.bed.nodes)
            self._write_hosts()
            self.headway("cluster", "create", self.cluster, "--hosts", self.hosts)
        except BaseException:
            self.bed.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remote.__exit__()
        self.bed.close()

    @property
    def hosts(self) -> Path:
        """The file that lists the machines."""
        return self.shared / "hosts.toml"

    @property
    def cluster(self) -> Path:
        """The cluster's folder, on the console's machine."""
        return self.runs / ".cluster"

    @property
    def head(self) -> Node:
        """The console's machine."""
        return self.bed.node(self.count)

    def _write_hosts(self) -> None:
        facts = {
            "shared": str(self.shared),
            "python": sys.executable,
            "reach": self.ssh.reach if self.ssh is not None else self.remote.reach,
            "fence": self.remote.fence,
            "scratch": str(self.bed.disk / "headway"),
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in facts.items()]
        lines += [f'[[hosts]]\nname = "{one.name}"' for one in self.bed.nodes[: self.count]]
        self.hosts.write_text("\n".join(lines) + "\n")

    # ---- commands -----------------------------------------------------------------------------
    def headway(
        self, *words: str | Path, check: bool = True, timeout_s: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one command of the console to its end. Raises HeadwayError if it fails."""
        return self.head.run(
            self._command(words), env=self.env, cwd=self.runs, check=check, timeout_s=timeout_s
        )

    def run(self, config: Path, name: str, *settings: str, count: int = 0) -> None:
        """Start a run on ``count`` machines, all by default, the last one a spare."""
        self.headway("run", config, "--name", name, "--detach", *self.options(settings, count))

    def options(self, settings: Sequence[str], count: int = 0) -> list[str]:
        """What places a run on the machines: all but one train."""
        nodes = (count or self.count) - 1
        chosen = [*SETTINGS, f"launch.nodes={nodes}", "launch.spares=1", *settings]
        words = [word for one in chosen for word in ("--set", one)]
        return [*words, "--cluster", str(self.cluster)]

    def foreground(self, *words: str | Path) -> Process:
        """Start a command of the console whose output goes to this process's own."""
        return self.head.start(
            self._command(words), env=self.env, cwd=self.runs, log=Path("/dev/stdout")
        )

    def status(self, name: str) -> dict[str, Any]:
        """``headway status --json``, with phase "unknown" where no driver answers."""
        done = self.headway("status", name, "--json", check=False)
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            return {"phase": "unknown", "detail": done.stdout + done.stderr}

    def _command(self, words: Iterable[str | Path]) -> list[str]:
        runs = ["--runs-dir", str(self.runs)]
        flat = [os.fspath(word) for word in words]
        takes_runs = flat[0] not in ("cluster", "node", "data")
        return [sys.executable, "-m", "headway.console", *flat, *(runs if takes_runs else [])]

    def boot(self, index: int) -> None:
        """Power on a machine that is off."""
        self.bed.node(index).boot()
        if self.ssh is not None:
            self.ssh.start(self.bed.node(index))

    # ---- faults -------------------------------------------------------------------------------
    def partition(self, index: int) -> None:
        """Cut one machine off from all others, for the run's traffic and for commands."""
        name = self.bed.node(index).name
        self.remote.cut_off = {(name, other.name) for other in self.bed.nodes}
        self.bed.isolate(index)

    def heal(self) -> None:
        """End every cut."""
        self.bed.heal()
        self.remote.cut_off = set()
