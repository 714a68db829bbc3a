"""Stops all processes of a node at once: by a cgroup (v2 or v1), else with SIGSTOP.

A frozen node is a hung machine: its processes make no progress, but its kernel acknowledges what
arrives. In a v1 group even SIGKILL takes effect only after the thaw.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.common import polling
from headway.common.node.process import ProcessId

_LIMIT_S = 20.0
_NAME = re.compile(r"headway-bed-(\d+)-(\d+)-(\d+)-\d+")
_count = itertools.count()


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy that can freeze."""

    root: Path
    switch: str
    freeze: str
    thaw: str
    proof: tuple[str, str]
    """File, and the line in it once everything is frozen."""


def hierarchies() -> list[Hierarchy]:
    """Return the control groups' hierarchies of this machine, the best first.

    There are none where no group can be made.
    """
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, root, kind, options, *_ = line.split()
        if kind == "cgroup2":
            proof = ("cgroup.events", "frozen 1")
            found.append(Hierarchy(Path(root), "cgroup.freeze", "1", "0", proof))
        elif kind == "cgroup" and "freezer" in options.split(","):
            proof = ("freezer.state", "FROZEN")
            found.append(Hierarchy(Path(root), "freezer.state", "FROZEN", "THAWED", proof))
    usable = {one.root: one for one in found if _is_usable(one)}
    return sorted(usable.values(), key=lambda one: one.switch != "cgroup.freeze")


def _is_usable(hierarchy: Hierarchy) -> bool:
    trial = hierarchy.root / _own_name()
    try:
        trial.mkdir()
    except OSError:
        return False
    try:
        return (trial / hierarchy.switch).exists()
    finally:
        trial.rmdir()


def _own_name() -> str:
    """Return a name for the groups of one bed.

    It has the pid namespace, pid and start of the owner, and a number.
    """
    owner = ProcessId.current()
    return f"headway-bed-{_pid_namespace()}-{owner.pid}-{owner.start_ticks}-{next(_count)}"


def _pid_namespace() -> str:
    return re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))


class Freezer(Protocol):
    """The processes of one node."""

    def freeze(self) -> None:
        """Returns once nothing runs any more."""

    def thaw(self) -> None:
        """Let them run."""

    def remove(self) -> None:
        """The node is down: nothing is left in it."""


class Group:
    """A cgroup of a node; processes enter it before they run their program."""

    def __init__(self, hierarchy: Hierarchy, folder: Path) -> None:
        self._hierarchy, self._folder = hierarchy, folder
        folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def fds(self) -> Iterator[list[int]]:
        """For process 1: where a process enters, the switch, and the root of the hierarchy."""
        flags = {"cgroup.procs": os.O_WRONLY, self._hierarchy.switch: os.O_WRONLY}
        opened = [os.open(self._folder / name, flag) for name, flag in flags.items()]
        opened.append(os.open(self._hierarchy.root, os.O_RDONLY | os.O_DIRECTORY))
        try:
            yield opened
        finally:
            for fd in opened:
                os.close(fd)

    @property
    def order(self) -> dict[str, str]:
        """What process 1 writes, and removes in the root, when the owner has ended."""
        folder = self._folder.relative_to(self._hierarchy.root)
        return {"thaw": self._hierarchy.thaw, "folder": str(folder)}

    def freeze(self) -> None:
        self._write(self._hierarchy.freeze)
        name, line = self._hierarchy.proof
        proof = self._folder / name
        if not polling.wait_until(
            lambda: line in proof.read_text().splitlines(), _LIMIT_S, every_s=0.002
        ):
            raise TimeoutError(f"{self._folder} is not frozen after {_LIMIT_S:g} s")

    def thaw(self) -> None:
        self._write(self._hierarchy.thaw)

    def remove(self) -> None:
        remove(self._folder)

    def _write(self, word: str) -> None:
        (self._folder / self._hierarchy.switch).write_text(word)


class Stopper:
    """Sends SIGSTOP to every process, where no freezable cgroup exists."""

    def __init__(self, processes: Callable[[], list[ProcessId]]) -> None:
        self._processes = processes

    def freeze(self) -> None:
        if not polling.wait_until(self._all_stopped, _LIMIT_S, every_s=0.002):
            raise TimeoutError(f"processes still run after {_LIMIT_S:g} s of SIGSTOP")

    def _all_stopped(self) -> bool:
        """One round; what was forked meanwhile is met by the next one."""
        running = [one for one in self._processes() if one.state() not in "TtZX"]
        for one in running:
            one.kill(signal.SIGSTOP)
        return not running

    def thaw(self) -> None:
        for one in self._processes():
            one.kill(signal.SIGCONT)

    def remove(self) -> None:
        """Nothing to remove."""


def folder_for_bed(hierarchy: Hierarchy) -> Path:
    """A new folder for the groups of one bed."""
    folder = hierarchy.root / _own_name()
    folder.mkdir()
    return folder


def sweep(hierarchy: Hierarchy) -> None:
    """End and remove the groups of beds whose owner has ended.

    Those of other pid namespaces are not judged.
    """
    for folder in hierarchy.root.glob("headway-bed-*"):
        if not (name := _NAME.fullmatch(folder.name)) or name[1] != _pid_namespace():
            continue
        if not ProcessId(int(name[2]), int(name[3])).alive():
            for group in folder.glob("*/"):
                _end(hierarchy, group)
            remove(folder)


def _end(hierarchy: Hierarchy, group: Path) -> None:
    with contextlib.suppress(OSError):  # its process 1 may be about to remove it
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        (group / hierarchy.switch).write_text(hierarchy.thaw)
    remove(group)


def remove(folder: Path) -> None:
    """Remove the group of one node or one bed.

    Waits for processes that are about to leave it.
    """

    def removed() -> bool:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    if not polling.wait_until(removed, _LIMIT_S, every_s=0.002):
        raise TimeoutError(f"{folder} still holds processes after {_LIMIT_S:g} s")
