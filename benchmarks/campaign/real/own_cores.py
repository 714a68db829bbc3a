"""Gives every rank of a run an equal part of the processors for itself.

Ranks that share a core take from each other what one of them does not use, so that a rank which
computes a fifth less holds up nobody. On a cluster each rank has cores of its own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from headway.common.node.process import ProcessId
from headway.common.polling import wait_until
from headway.console.run import Run
from headway.controller.faults import cgroups

from benchmarks.drill import look

FOR_RANKS = 0.8
"""Of all cores: driver, services and this process have the rest."""
PERIOD_US = 20_000
EVERY_S = 0.3
REMOVE_LIMIT_S = 5.0
NAME = "headway-cores"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def part(num_ranks: int) -> float:
    """Cores a rank has for itself; below one where the machine has few of them."""
    return min(1.0, FOR_RANKS * len(os.sched_getaffinity(0)) / num_ranks)


def why_not() -> str:
    """Why processors cannot be divided here; empty if they can.

    In version 2 of control groups a process is in one group only, and faults use that one.
    """
    mount = cgroups.root("cpu")
    if mount is None or not (mount / QUOTA).exists():
        return "processors are divided by control groups of version 1, as root"
    return ""


@contextlib.contextmanager
def divided(run: Run) -> Iterator[None]:
    """Every rank of ``run`` has its part, also the processes that replace lost ones.

    Does nothing where ``why_not`` gives a reason.
    """
    mount = cgroups.root("cpu")
    if mount is None or why_not():
        yield
        return
    for left in mount.glob(f"{NAME}-*"):  # of a campaign that was killed
        if ProcessId.of(int(left.name.rpartition("-")[2])) is None:
            _remove(left)
    home = mount / f"{NAME}-{os.getpid()}"
    home.mkdir()
    is_over = threading.Event()

    def keep() -> None:
        while not is_over.wait(EVERY_S):
            _place(run, home)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        _remove(home)


def _place(run: Run, home: Path) -> None:
    """Put ranks that are not there yet into groups of their own."""
    status = look.status_of(run)
    if status is None:
        return
    for row in status.ranks:
        group, process = home / str(row.rank), ProcessId.of(row.pid)
        if not group.is_dir():
            group.mkdir()
            (group / PERIOD).write_text(str(PERIOD_US))
            (group / QUOTA).write_text(str(round(part(len(status.ranks)) * PERIOD_US)))
        if process is not None and process.alive() and str(row.pid) not in _members(group):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                (group / "cgroup.procs").write_text(str(row.pid))


def _members(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


def _remove(home: Path) -> None:
    """Remove the groups; who is still in one of them goes back to the parent."""
    for group in [*home.iterdir(), home]:
        if group.is_dir():
            for pid in _members(group):
                with contextlib.suppress(OSError):
                    (home.parent / "cgroup.procs").write_text(pid)
            wait_until(functools.partial(_is_removed, group), REMOVE_LIMIT_S, every_s=0.02)


def _is_removed(group: Path) -> bool:
    with contextlib.suppress(OSError):  # a process in it is just ending
        group.rmdir()
    return not group.exists()
