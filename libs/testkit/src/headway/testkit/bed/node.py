"""One machine of a bed: started, killed, frozen; processes run in all of its namespaces."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.testkit.bed.boot import Boot
from headway.testkit.bed.freezer import Freezer, Group, Hierarchy, Stopper
from headway.testkit.bed.network import Network
from headway.testkit.bed.process import Process
from headway.testkit.bed.shaping import CannotError
from headway.testkit.bed.view import View

HAS_CLOCKS = Path("/proc/self/ns/time").exists()
"""Whether the kernel has time namespaces."""
_CLOCKS = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}
_UPTIME_STEP_S = 1000
_INHERITED = ("PATH", "LANG", "LC_ALL", "TERM", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
"""What a login on a node has of this process's environment."""


class Node:
    """Made by ``Bed``. Up after it; everything but its disk and identity is new at each boot."""

    def __init__(
        self,
        index: int,
        view: View,
        files: Mapping[str, str],
        network: Network,
        groups: tuple[Hierarchy, Path] | None,
    ) -> None:
        """``groups`` is where the bed's cgroups are, ``files`` what all nodes have in /etc."""
        self.index = index
        self.name = f"node-{index}"
        """Host name; /etc/hosts of every node has it."""
        self.address = network.address(index)
        self.fabric_address = network.address(index, "fabric")
        self.root = Path(view.disk)
        """The disk, on the host and in the node. ``Bed.disk`` is the same on all nodes."""
        self.machine_id = hashlib.md5(view.disk.encode(), usedforsecurity=False).hexdigest()
        """In /etc/machine-id, the same at each boot."""
        self.console = self.root / "console.log"
        """Output of processes that have no log of their own."""
        self._view, self._files, self._network, self._groups = view, dict(files), network, groups
        self._boot: Boot | None = None
        self._boots: list[tuple[float, int]] = []
        """When each boot began, and the inode of its pid namespace."""
        self._is_up = False
        self._group: Group | None = None
        self._is_frozen = False
        self._clock_offset_ns: int | None = None
        self._make_folders()

    # ---- power --------------------------------------------------------------------------------
    def boot(self) -> None:
        """Power on: empty /dev/shm, /tmp, /var/tmp and /run, a new boot id, the same disk."""
        self.power_on()
        self.finish_boot()

    def power_on(self) -> None:
        """The first half of ``boot``, which does not wait."""
        if self._boot is not None:
            raise ValueError(f"{self.name} is up")
        if self._groups:
            hierarchy, folder = self._groups
            self._group = Group(hierarchy, folder / self.name)
        own = {"/etc/hostname": f"{self.name}\n", "/etc/machine-id": f"{self.machine_id}\n"}
        order = {
            "name": self.name,
            "view": vars(self._view),
            "files": {**self._files, **own},
            "clock_offsets": self._clock_offsets() if HAS_CLOCKS else {},
        }
        self._began_unix_s = time.time()
        self._boot = Boot(order, self._group, self.console)

    def finish_boot(self) -> None:
        """Wait until it is up and connected."""
        try:
            self._powered.finish()
            namespace = Path(f"/proc/{self._powered.pid}/ns/pid").stat().st_ino
            self._boots.append((self._began_unix_s, namespace))
            self._network.plug(self.index, self._powered.pid)
            self._is_up = True
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Power loss: the network goes silent, then all processes die; /dev/shm and /tmp are lost.

        Peers get no FIN and no RST. Afterwards their connects fail with "no route to host" once
        they have forgotten the hardware address, as in a subnet of machines.
        """
        boot = self._powered
        self._network.pull(self.index)
        self._boot, self._is_up = None, False
        boot.kill()
        if self._is_frozen:
            for one in boot.processes():  # before process 1 gets to it, so that none resumes
                one.kill(signal.SIGKILL)
            self._freezer(boot).thaw()
        self._is_frozen = False
        boot.wait()
        self._network.unplug(self.index)
        if self._group is not None:
            self._group.remove()
            self._group = None

    def renew(self, keep: Collection[str] = ()) -> None:
        """Become another machine of the same name: an empty disk, and another /etc/machine-id.

        Only while it is off. ``keep`` names files on the disk that who sets it up puts there again.
        """
        if self._boot is not None:
            raise ValueError(f"{self.name} is up; kill() it first")
        for path in [one for one in self.root.iterdir() if one.name not in keep]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.machine_id = secrets.token_hex(16)
        self._make_folders()

    def _make_folders(self) -> None:
        for name in ("home", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    @property
    def has_power(self) -> bool:
        """Whether ``kill`` has something to end: it is up or starting."""
        return self._boot is not None

    @property
    def is_up(self) -> bool:
        """Whether its boot is complete: only then it is connected and runs what it is asked to."""
        return self._is_up

    @property
    def _powered(self) -> Boot:
        if self._boot is None:
            raise ValueError(f"{self.name} is down; boot() starts it")
        return self._boot

    @property
    def _up(self) -> Boot:
        if not self._is_up:
            raise ValueError(f"{self.name} is down, or still starting; boot() starts it")
        return self._powered

    @property
    def pid(self) -> int:
        """The pid of process 1, as the host counts."""
        return self._up.pid

    def pid_namespace(self, unix_s: float) -> int:
        """Inode of the one it had at a time, until the next boot; -1 before its first one."""
        found = [namespace for began_unix_s, namespace in self._boots if began_unix_s <= unix_s]
        return found[-1] if found else -1

    @property
    def boot_id(self) -> str:
        """In /proc/sys/kernel/random/boot_id, new at each boot."""
        return self._up.boot_id

    # ---- processes ----------------------------------------------------------------------------
    def start(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
    ) -> Process:
        """Start a process, a child of process 1 in a session of its own.

        Args:
            argv: program and arguments. ``sys.executable`` is the same Python as here, with the
                same packages.
            env: added to a short environment: PATH, PYTHONPATH, HOME and TMPDIR on the disk.
            cwd: HOME by default.
            log: file on the host to which output is added; ``console`` by default.

        Raises:
            HeadwayError: the program cannot be started.
        """
        with (log or self.console).open("ab") as out:
            fds = [out.fileno(), out.fileno()]
            with Path(os.devnull).open("rb") as nothing:
                return self._start(argv, env, cwd, [nothing.fileno(), *fds])

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a process to its end and return its output.

        Raises:
            HeadwayError: it ends with another code than 0 and ``check`` is set.
            subprocess.TimeoutExpired: it runs longer; it is killed.
        """
        fds = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
        try:
            os.write(fds[0], stdin.encode())
            os.lseek(fds[0], 0, os.SEEK_SET)
            process = self._start(argv, env, cwd, fds)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout_s)
                raise
            out, err = (os.pread(fd, os.fstat(fd).st_size, 0).decode() for fd in fds[1:])
        finally:
            for fd in fds:
                os.close(fd)
        if code and check:
            raise HeadwayError(f"{process.argv} on {self.name} ended with code {code}\n{out}{err}")
        return subprocess.CompletedProcess(process.argv, code, out, err)

    def _start(
        self,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None,
        cwd: Path | None,
        fds: Sequence[int],
    ) -> Process:
        if self._is_frozen:
            raise ValueError(f"{self.name} is frozen; thaw() it first")
        full = {**self.environment, **(env or {})}
        words = [os.fspath(word) for word in argv]
        return self._up.start(words, full, os.fspath(cwd or full["HOME"]), fds)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of each process, before what ``start`` adds."""
        disk = Path(self._view.disk_alias)
        return {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(disk / "home"),
            "TMPDIR": str(disk / "tmp"),
        }

    def processes(self) -> list[ProcessId]:
        """Its processes except process 1, zombies included. Pids are the host's."""
        return self._up.processes()

    # ---- faults -------------------------------------------------------------------------------
    def freeze(self) -> None:
        """Freeze all of its processes; the kernel still acknowledges what arrives."""
        self._freezer(self._up).freeze()
        self._is_frozen = True

    def thaw(self) -> None:
        """End ``freeze``."""
        self._freezer(self._up).thaw()
        self._is_frozen = False

    def _freezer(self, boot: Boot) -> Freezer:
        return self._group or Stopper(boot.processes)

    def set_clock(self, offset_s: float) -> None:
        """From its next boot on, CLOCK_MONOTONIC and CLOCK_BOOTTIME are the host's + ``offset_s``.

        Without it they count from ``1000 * (index + 1)`` s at each boot, so that clocks of nodes
        never agree. CLOCK_REALTIME is the host's: Linux has no namespace for it.

        Raises:
            CannotError: the kernel has no time namespaces.
            ValueError: a clock would be negative.
        """
        if not HAS_CLOCKS:
            raise CannotError("this kernel has no time namespaces", remedy="it needs Linux 5.6")
        if min(map(time.clock_gettime, _CLOCKS.values())) + offset_s < 0:
            raise ValueError(f"offset_s={offset_s:g} would make a clock of {self.name} negative")
        self._clock_offset_ns = round(offset_s * 1e9)

    def _clock_offsets(self) -> dict[str, int]:
        uptime_ns = _UPTIME_STEP_S * (self.index + 1) * 10**9
        return {
            name: uptime_ns - time.clock_gettime_ns(clock)
            if self._clock_offset_ns is None
            else self._clock_offset_ns
            for name, clock in _CLOCKS.items()
        }
