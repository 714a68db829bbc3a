"""A cluster whose machines are nodes of a bed; the console runs on an additional node."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from headway.common.config import to_toml
from headway.common.errors import HeadwayError
from headway.common.node.files import replace_file
from headway.common.node.run_dir import shm_root, sock_root
from headway.launch.engines.slurm.config import SlurmConfig
from headway.launch.engines.ssh.config import Host, HostsConfig
from headway.launch.join import scratch
from headway.testkit.bed import Bed, Process
from headway.testkit.bed.node import Node
from headway.testkit.bed.remote import Remote
from headway.testkit.machines.slurm import Slurm
from headway.testkit.machines.ssh import FILES as SSH_FILES
from headway.testkit.machines.ssh import Ssh
from headway.testkit.machines.statuses import Statuses

Way = Literal["bed", "ssh", "slurm"]
"""How commands reach the machines: by the bed's own way, by ssh, or as steps of Slurm."""
_FIND = """\
for root; do
    [ ! -d "$root" ] || find "$root" -mindepth 1 -ignore_readdir_race
done
"""


def placement(count: int) -> list[str]:
    """Settings of a run on ``count`` machines: a rank on each but one, which is a spare."""
    return ["launch.ranks_per_node=1", f"launch.nodes={count - 1}", "launch.spares=1"]


class Machines:
    """``with Machines(folder, count=5) as machines: machines.headway("run", ...)``.

    The machines see one folder in common, ``folder/shared``. The console writes runs to ``runs`` on
    its own disk, at the same path as on the host. The bed cuts the power of a machine that does not
    answer.

    Args:
        folder: on the host, must exist. What runs have left in it can be resumed.
        count: how many, spares included.
        visible: what else they may read, such as a corpus.
        way: how commands reach them.
    """

    def __init__(
        self, folder: Path, *, count: int, visible: Iterable[Path] = (), way: Way = "bed"
    ) -> None:
        self.folder = folder.resolve()
        disks, self.shared = self.folder / "disks", self.folder / "shared"
        self.runs = disks / f"node-{count}" / "runs"
        in_common = [self.shared]
        if way == "slurm":  # the shared folder of `--engine slurm` where no file names one
            in_common.append(self.runs / ".shared")
        for path in (self.runs, *in_common):
            path.mkdir(parents=True, exist_ok=True)
        self.count = count
        self.bed = Bed(disks, nodes=count + 1, shared=in_common, visible=visible)
        self.remote: Remote
        self.ssh: Ssh | None = None
        self.slurm: Slurm | None = None
        self._way = way
        self.env: dict[str, str] = {"OMP_NUM_THREADS": "1"}
        """Added for each command of the console; machines have what a login gives."""

    @staticmethod
    def missing() -> str:
        """What keeps machines from running here, "" if nothing does."""
        return Bed.missing()

    def __enter__(self) -> Machines:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_sole_user(self.folder))
            self._forget_former()
            stack.enter_context(self.bed)
            self.remote = stack.enter_context(Remote(self.bed, self.shared / "bed.sock"))
            if self._way == "ssh":
                self.ssh = Ssh(self.shared / "ssh", self.bed.nodes)
                self.remote.rebuild = self._rebuild
            if self._way == "slurm":
                nodes = self.bed.nodes[: self.count]
                self.slurm = Slurm(self.shared / "slurm", self.head, nodes, self.bed.disk)
            self._statuses = stack.enter_context(Statuses(self.head, self.runs))
            self.file.write_text(to_toml(self._config()))
            kind = "--slurm" if self.slurm is not None else "--hosts"
            self.headway("cluster", "create", self.cluster, kind, self.file)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _forget_former(self) -> None:
        """Remove what machines in the same folder have left that must be new each time."""
        (self.shared / "bed.sock").unlink(missing_ok=True)
        for folder in (self.cluster, self.shared / "ssh", self.shared / "slurm"):
            if folder.exists():
                shutil.rmtree(folder)

    @property
    def file(self) -> Path:
        """``hosts.toml`` or ``slurm.toml``, which describes the machines."""
        return self.shared / ("slurm.toml" if self._way == "slurm" else "hosts.toml")

    @property
    def drained(self) -> Path:
        """A line for each machine that a verdict has given up."""
        return self.shared / "drained"

    @property
    def cluster(self) -> Path:
        """The cluster's folder, on the console's machine."""
        return self.runs / ".cluster"

    @property
    def head(self) -> Node:
        """The console's machine."""
        return self.bed.node(self.count)

    @property
    def scratch(self) -> Path:
        """Where each machine keeps its nodes: the same path on each, on its own disk."""
        return self.bed.disk / "headway"

    def files_of_runs(self, node: Node) -> list[str]:
        """Return what runs have on a machine that is up, beside what all machines share.

        That is files, folders and sockets, also where a run without ``scratch`` has them. The
        folders that hold those of all runs may stay, empty.
        """
        roots = [sock_root({}), scratch.folder_of(scratch.DEFAULT, ""), self.scratch]
        found = node.run(["sh", "-euc", _FIND, "sh", "/dev/shm", *roots]).stdout.splitlines()
        return [path for path in found if path != str(shm_root({}))]

    def _config(self) -> HostsConfig | SlurmConfig:
        shared, scratch = str(self.shared), str(self.scratch)
        fence = tuple(self.remote.fence)
        if self.slurm is not None:
            return SlurmConfig(shared, sys.executable, (), scratch, notice_s=45, fence=fence)
        hosts = tuple(Host(node.name) for node in self.bed.nodes[: self.count])
        reach = self.ssh.reach if self.ssh is not None else self.remote.reach
        drain = ("sh", "-c", f'echo "$0 $1" >> {self.drained}', "{name}", "{reason}")
        replace = tuple(self.remote.replace) if self.ssh is not None else ()
        known = (shared, hosts, sys.executable, tuple(reach), fence, drain, scratch)
        return HostsConfig(*known, replace=replace)

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
        chosen = [*placement(count or self.count), *settings]
        if self.slurm is None:  # which knows by which addresses machines reach each other
            chosen.insert(0, "launch.interface=eth0")
        chosen.insert(0, f"launch.fabric={self.bed.fabric}")
        words = [word for one in chosen for word in ("--set", one)]
        return [*words, "--cluster", str(self.cluster)]

    def foreground(self, *words: str | Path) -> Process:
        """Start a command of the console whose output goes to this process's own."""
        return self.head.start(
            self._command(words), env=self.env, cwd=self.runs, log=Path("/dev/stdout")
        )

    def status(self, name: str) -> dict[str, Any]:
        """What ``headway status --json`` prints; phase "unknown" if the run does not exist."""
        return self._statuses.of(name)

    def _command(self, words: Iterable[str | Path]) -> list[str]:
        runs = ["--runs-dir", str(self.runs)]
        flat = [os.fspath(word) for word in words]
        takes_runs = flat[0] not in ("cluster", "data")
        return [sys.executable, "-m", "headway.console", *flat, *(runs if takes_runs else [])]

    def boot(self, index: int) -> None:
        """Power on a machine that is off, with the disk that it had."""
        self.bed.node(index).boot()
        if self.ssh is not None:
            self.ssh.start(self.bed.node(index))
        if self.slurm is not None:
            self.slurm.start(self.bed.node(index))

    def destroy(self, index: int) -> None:
        """Lose a machine for good: only the hosts file's ``replace`` brings another one."""
        node = self.bed.node(index)
        node.kill()
        node.renew(SSH_FILES)

    def _rebuild(self, node: Node) -> None:
        if node.has_power:
            node.kill()
        node.renew(SSH_FILES)
        self.boot(node.index)

    def keep(self, name: str, index: int) -> Process:
        """Make a machine join the run with a foreground process, as under systemd.

        Its node number is its index.
        """
        node = self.bed.node(index)
        ticket = self.headway("node", "ticket", "--run", name, "--node", str(index)).stdout
        replace_file(node.root / "ticket.json", ticket)
        words = [sys.executable, "-m", "headway.console", "node", "init", "--ticket", "ticket.json"]
        return node.start(words, cwd=self.bed.disk)

    # ---- faults -------------------------------------------------------------------------------
    def partition(self, index: int) -> None:
        """Cut one machine off from all others, for the run's traffic and for commands."""
        name = self.bed.node(index).name
        self.remote.cut_off = {(name, other.name) for other in self.bed.nodes}
        self.bed.isolate(index)

    def cut_control(self, index: int) -> None:
        """Cut one machine off for everything but the ranks' own traffic."""
        name = self.bed.node(index).name
        self.remote.cut_off = {(name, other.name) for other in self.bed.nodes}
        self.bed.isolate(index, plane="control")

    def cut_fabric(self, a: int, b: int | None = None, *, one_way: bool = False) -> None:
        """Cut the ranks' traffic of a machine, which then vanishes.

        With ``b`` only that between the two, or ``one_way`` only what ``a`` sends to ``b``.
        """
        if b is None:
            self.bed.isolate(a, plane="fabric")
        else:
            self.bed.cut(a, b, plane="fabric", one_way=one_way)

    def heal(self) -> None:
        """End every fault of the network."""
        self.bed.heal()
        self.remote.cut_off = set()


@contextlib.contextmanager
def _sole_user(folder: Path) -> Iterator[None]:
    """Refuse a folder in which other machines are up. However its user ends, the lock ends, too.

    Raises:
        HeadwayError: they are.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeadwayError(
                f"machines in {folder} are up", remedy="stop them, or use another folder"
            ) from error
        yield
    finally:
        os.close(fd)
