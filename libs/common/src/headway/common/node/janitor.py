"""Cleans up after dead runs of this user: processes, socket folders, shared memory.

A process belongs to the run named by HEADWAY_RUN_ID in its environment. A run is live while
any process holds its run.lock, or while an init, executor or driver of it exists, since these would
recover the run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.common.errors import HeadwayError
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import (
    ENV_NODE,
    ENV_RUN_ID,
    RUN_ID,
    RunLock,
    check_run_id,
    shm_root,
    sock_root,
)
from headway.common.polling import wait_until

_END_TIMEOUT_S = 10.0
_RECOVERING = ("init", "executor", "driver")


@dataclass(frozen=True, slots=True)
class RunProcess:
    """A living process of a run, as /proc shows it."""

    process: ProcessId
    run_id: str
    node: int | None
    sock_root: Path
    shm_root: Path
    recovers: bool


def processes_of(run_id: str, node: int | None = None) -> list[ProcessId]:
    """Living processes of the run, or of one of its nodes, by pid, including the caller."""
    check_run_id(run_id)
    return sorted(p.process for p in _scan() if p.run_id == run_id and node in (None, p.node))


def processes_by_run() -> dict[str, list[ProcessId]]:
    """Run id -> living processes of that run, by pid; a cluster's nodes have its id."""
    found: dict[str, list[ProcessId]] = {}
    for one in _scan():
        found.setdefault(one.run_id, []).append(one.process)
    return {run_id: sorted(processes) for run_id, processes in found.items()}


def role_of(process: ProcessId) -> str:
    """Which service of a run a process is, by its environment; empty if it is none."""
    try:
        words = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    prefix = b"HEADWAY_ROLE="
    return next((w.removeprefix(prefix).decode() for w in words if w.startswith(prefix)), "")


def end_run(run_id: str, *, keep_arenas: bool = False) -> list[str]:
    """End all processes of the run except the caller; return what was done.

    The run's shared memory and sockets are removed.

    Args:
        run_id: 8 hex characters.
        keep_arenas: leave the ranks' snapshots in shared memory, for a run that will be resumed.

    Raises:
        HeadwayError: a process did not end because it hangs in the kernel.
    """
    check_run_id(run_id)
    done = _end(run_id, lambda p: p.run_id == run_id)
    if not keep_arenas:
        return done + _remove(run_id, [shm_root() / run_id, sock_root() / run_id])
    for path in (shm_root() / run_id).rglob("*"):
        if not path.is_dir() and not path.match("n[0-9]*/arena-*.bin"):
            path.unlink(missing_ok=True)
    return done + _remove(run_id, [sock_root() / run_id])


def end_node(run_id: str, node: int, *, spare: ProcessId | None = None) -> list[str]:
    """Like ``end_run``, for one node: the effect of losing a machine. ``spare`` lives on."""
    check_run_id(run_id)

    def ours(p: RunProcess) -> bool:
        return p.run_id == run_id and p.node == node and p.process != spare

    done = _end(f"{run_id} node {node}", ours)
    folder = f"n{node}"
    return done + _remove(run_id, [shm_root() / run_id / folder, sock_root() / run_id / folder])


def leave_run(run_id: str, *, wait_s: float = 0.0) -> list[str]:
    """Final clean-up by the last executor of an ended run: shared files and leftover processes.

    Nothing happens while another process holds the run. Inits, executors and drivers are left to
    exit.

    Args:
        run_id: 8 hex characters.
        wait_s: for a lock that no process explains: one that exits loses its environment, by which
            it is found, before its locks.
    """
    check_run_id(run_id)
    found: list[RunLock | None] = []

    def is_answered() -> bool:
        found.append(RunLock.try_exclusive(run_id, sock_root()))
        if found[-1] is not None or not wait_s:
            return True
        return any(p.pid != os.getpid() for p in processes_of(run_id))

    wait_until(is_answered, wait_s)
    lock = found[-1]
    if lock is None:
        return []
    with lock:
        done = _end(run_id, lambda p: p.run_id == run_id and not p.recovers)
        return done + _remove(run_id, [shm_root() / run_id, sock_root() / run_id])


def sweep(sock_root: Path, shm_root: Path, *, spare: str = "") -> list[str]:
    """End and remove every dead run under these two roots; return one line per action.

    The run ``spare`` is left alone.

    A run that starts at the same time waits until its id is swept, or counts as live.
    """
    ids = {p.run_id for p in _scan() if p.sock_root == sock_root and p.shm_root == shm_root}
    for root in (sock_root, shm_root):
        if root.is_dir() and not root.is_symlink():
            ids |= {child.name for child in root.iterdir() if RUN_ID.fullmatch(child.name)}
    done: list[str] = []
    for run_id in sorted(ids - {spare}):
        done += _sweep_run(run_id, sock_root, shm_root)
    return done


def _sweep_run(run_id: str, sock_root: Path, shm_root: Path) -> list[str]:
    def ours(p: RunProcess) -> bool:
        return p.run_id == run_id and p.sock_root == sock_root and p.shm_root == shm_root

    def is_recovering() -> bool:
        return any(ours(p) and p.recovers for p in _scan())

    if is_recovering():
        return []
    lock = RunLock.try_exclusive(run_id, sock_root)
    if lock is None:
        return []
    with lock:  # held until the folder with the lock file itself is gone
        if (
            is_recovering()
        ):  # an executor has just started and waits for the lock: keep what it recovers
            return []
        try:
            done = _end(run_id, lambda p: ours(p) and not p.recovers)
        except HeadwayError as error:
            return [str(error)]
        return done + _remove(run_id, [shm_root / run_id, sock_root / run_id])


def _end(what: str, chosen: Callable[[RunProcess], bool]) -> list[str]:
    """Send SIGKILL and wait, repeatedly: one of them may have started another in the meantime."""
    ended: set[ProcessId] = set()
    deadline = time.monotonic() + _END_TIMEOUT_S
    while victims := [p.process for p in _scan() if p.process.pid != os.getpid() and chosen(p)]:
        if time.monotonic() > deadline:
            raise HeadwayError(
                f"run {what}: processes {[v.pid for v in victims]} do not end",
                remedy="look at their state (D = stuck in the kernel)",
            )
        for victim in victims:
            victim.kill()
        ended.update(victims)
        time.sleep(0.005)
    return [f"run {what}: ended {len(ended)} processes"] if ended else []


def _remove(run_id: str, folders: list[Path]) -> list[str]:
    done = []
    for folder in folders:
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
            reason = _remove_tree(folder)
            done.append(
                f"run {run_id}: cannot remove {folder}: {reason}; remove it by hand"
                if folder.exists()
                else f"run {run_id}: removed {folder}"
            )
    return done


def _remove_tree(folder: Path) -> str:
    """Remove what can be removed; returns why the rest remains, "" if nothing does."""
    try:
        shutil.rmtree(folder)
    except OSError as error:  # report the first error, and continue so that the rest is removed
        shutil.rmtree(folder, ignore_errors=True)
        return f"{error.strerror} ({error.filename})"
    return ""


def _scan() -> Iterator[RunProcess]:
    uid = os.getuid()
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        found = _look_at(pid, uid)
        if found is not None:
            yield found


def _look_at(pid: int, uid: int) -> RunProcess | None:
    import psutil  # takes long to import, and most who import this module never look

    try:
        process = psutil.Process(pid)
        env = process.environ()
        run_id, node = env.get(ENV_RUN_ID, ""), env.get(ENV_NODE, "")
        if not RUN_ID.fullmatch(run_id) or process.uids().effective != uid:
            return None
        argv, identity = process.cmdline(), ProcessId.of(pid)
        # Compared last, so that what was read above belongs to the process in ``identity``.
        if identity is None or not identity.alive() or not process.is_running():
            return None
    except (psutil.Error, OSError):  # the process ended, or belongs to another user
        return None
    return RunProcess(
        process=identity,
        run_id=run_id,
        node=int(node) if node.isdigit() else None,
        sock_root=sock_root(env),
        shm_root=shm_root(env),
        recovers=any(word.rpartition(".")[2] in _RECOVERING for word in argv),
    )
