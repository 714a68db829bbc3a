"""Control groups around living processes: frozen, or without the right to start another one.

Both hierarchies are known: version 1, where a frozen process takes even SIGKILL only once it is
thawed, and version 2. A group bears the pid of the process that made it, so that what a killed one
left behind is found and undone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.process import ProcessId
from headway.common.polling import wait_until

PREFIX = "headway-fault-"
FREEZE_LIMIT_S = 5.0
_REMOVE_LIMIT_S = 5.0


def root(controller: str) -> Path | None:
    """The mounted hierarchy that has ``freezer`` or ``pids`` and that this process may change."""
    second: Path | None = None
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options = line.split()[:4]
        path = Path(mount)
        if kind == "cgroup" and controller in options.split(",") and os.access(path, os.W_OK):
            return path
        if kind == "cgroup2" and os.access(path, os.W_OK):
            given = (path / "cgroup.subtree_control").read_text().split()
            if controller in ("freezer", *given):
                second = path
    return second


def needed(controller: str) -> Path:
    """Return the mounted hierarchy that has ``controller``, as ``root`` finds it.

    Raises:
        InputError: there is none.
    """
    found = root(controller)
    if found is None:
        raise InputError(
            f"no control group with {controller!r} can be made here",
            remedy="run as root on a machine with cgroups, or use the fault `stop`",
        )
    return found


@contextlib.contextmanager
def group(controller: str, processes: Sequence[ProcessId]) -> Iterator[Path]:
    """A new group with these processes, as they are; at the end they are back where they were."""
    mount = needed(controller)
    path = mount / f"{PREFIX}{os.getpid()}-{controller}"
    homes = {process: mount / _path_in(controller, process.pid) for process in processes}
    path.mkdir()
    try:
        for process in processes:
            _move(process, path)
        yield path
    finally:
        for process, home in homes.items():
            _move(process, home if home.is_dir() else mount)
        _remove(path)


def freeze(path: Path) -> None:
    """Freeze all processes of a group; returns once none of them runs.

    Raises:
        TimeoutError: one of them still runs.
    """
    _set_frozen(path, frozen=True)
    if not wait_until(lambda: is_frozen(path), FREEZE_LIMIT_S, every_s=0.005):
        raise TimeoutError(f"the processes of {path} are not frozen after {FREEZE_LIMIT_S:g} s")


def thaw(path: Path) -> None:
    """Let the processes of a group run again."""
    _set_frozen(path, frozen=False)


def is_frozen(path: Path) -> bool:
    """Whether every process of the group is frozen."""
    if (path / "freezer.state").exists():
        return (path / "freezer.state").read_text().strip() == "FROZEN"
    return "frozen 1" in (path / "cgroup.events").read_text()


def groups(*, abandoned: bool = False) -> list[Path]:
    """Every group of a fault on this machine, or only those whose maker is gone."""
    mounts = {mount for name in ("freezer", "pids") if (mount := root(name)) is not None}
    found = [path for mount in sorted(mounts) for path in mount.glob(f"{PREFIX}*")]
    return [path for path in found if not abandoned or not _maker_lives(path)]


def undo_abandoned() -> list[str]:
    """Thaw and remove the groups whose maker was killed; returns their names."""
    done = []
    for path in groups(abandoned=True):
        with contextlib.suppress(OSError):
            _set_frozen(path, frozen=False)
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (path.parent / "cgroup.procs").write_text(pid)
            _remove(path)
            done.append(path.name)
    return done


def _maker_lives(path: Path) -> bool:
    number = path.name.removeprefix(PREFIX).partition("-")[0]
    process = ProcessId.of(int(number)) if number.isdigit() else None
    return process is not None and process.alive()


def _set_frozen(path: Path, *, frozen: bool) -> None:
    if (path / "freezer.state").exists():
        (path / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
    elif (path / "cgroup.freeze").exists():
        (path / "cgroup.freeze").write_text(str(int(frozen)))


def _path_in(controller: str, pid: int) -> str:
    """Where a process is below the mount; the root when it is gone."""
    second = ""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                return path.lstrip("/")
            if not names:
                second = path.lstrip("/")
    return second


def _move(process: ProcessId, path: Path) -> None:
    """A process that has ended meanwhile stays away."""
    if process.alive():
        with contextlib.suppress(OSError):
            (path / "cgroup.procs").write_text(str(process.pid))


def _remove(path: Path) -> None:
    deadline = time.monotonic() + _REMOVE_LIMIT_S
    while path.exists():
        try:
            path.rmdir()
        except OSError:  # a process in it is just ending
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
