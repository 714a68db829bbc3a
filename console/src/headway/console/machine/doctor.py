"""Checks for what would keep a run from working on this machine; changes nothing."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from headway.common.errors import InputError
from headway.common.node.janitor import processes_of
from headway.common.node.run_dir import RUN_ID, RunLock, shm_root, sock_root
from headway.common.node.segment import check_processor
from headway.console.machine.preflight import INSTALL_TORCH, MIN_FREE_BYTES, SHM
from headway.launch.join.needs import MIN_SHM_BYTES, num_gpus

PYTHONS = ((3, 11), (3, 13))
MIN_FILES = 1024
MIN_PROCESSES = 512
MIN_THREADS = 2
TERRAFORM = "1.9"


@dataclass(frozen=True)
class Finding:
    """What one check found; ``level`` is ``ok``, ``note`` (something is limited) or ``bad``."""

    level: str
    message: str
    remedy: str = ""


def examine(runs_dir: Path = Path("runs")) -> dict[str, Finding]:
    """What each check found, by its name, in the order of the checks below."""
    checks: dict[str, Callable[[], Finding]] = {
        "python": python,
        "packages": packages,
        "torch": torch,
        "shm": shared_memory,
        "disk": lambda: disk(runs_dir),
        "limits": limits,
        "processors": processors,
        "ports": ports,
        "leftovers": leftovers,
        "terraform": terraform,
        "gpus": gpus,
    }
    return {name: check() for name, check in checks.items()}


def python() -> Finding:
    """The interpreter's version."""
    have = sys.version_info[:2]
    message = f"Python {platform.python_version()}"
    if PYTHONS[0] <= have <= PYTHONS[1]:
        return Finding("ok", message)
    return Finding("bad", f"{message} is not supported", "use Python 3.11 to 3.13")


def packages(constraints: Path | None = None) -> Finding:
    """Installed versions against ``constraints.txt``; the parts of Headway against each other.

    pip is left out: it comes with the virtual environment, and no run needs it.
    """
    installed = {_plain(dist.name): dist.version for dist in distributions() if dist.name}
    ours = {name: v for name, v in installed.items() if name.startswith("headway-")}
    if len(set(ours.values())) > 1:
        listed = ", ".join(f"{name} {v}" for name, v in sorted(ours.items()))
        return Finding(
            "bad", f"parts of different versions: {listed}", "install them of one version"
        )
    file = constraints or find_up("constraints.txt")
    if file is None:
        return Finding(
            "ok", f"{len(ours)} parts of one version; no constraints.txt to compare with"
        )
    tested: dict[str, list[str]] = {}  # some have a version for each Python
    for name, pin in _pins(file.read_text()):
        tested.setdefault(name, []).append(pin)
    other = {
        name: (installed[name], " or ".join(pins))
        for name, pins in tested.items()
        if name in installed and not any(_same(installed[name], pin) for pin in pins)
    }
    if other:
        listed = ", ".join(
            f"{name} {have} (tested {want})" for name, (have, want) in sorted(other.items())[:4]
        )
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        return Finding("note", f"{listed}{more}", "run `make setup`")
    return Finding("ok", f"{len(ours)} parts of one version, dependencies as tested")


def torch() -> Finding:
    """Which build of torch is installed, without importing it."""
    try:
        have = version("torch")
    except PackageNotFoundError:
        message = "torch is not installed, and a run needs it"
        return Finding("bad", message, INSTALL_TORCH)
    build = "CPU build" if "+cpu" in have else "CUDA build" if "+cu" in have else "standard build"
    return Finding("ok", f"torch {have}, {build}")


def shared_memory(path: Path = SHM, least_bytes: int = MIN_SHM_BYTES) -> Finding:
    """Room for snapshots and rings."""
    free = shutil.disk_usage(path).free
    message = f"{path}: {free >> 20} MiB free"
    if free >= least_bytes:
        return Finding("ok", message)
    return Finding(
        "bad",
        f"{message}, a small run needs {least_bytes >> 20}",
        "enlarge it (mount -o remount,size=2G /dev/shm; docker --shm-size 2g)",
    )


def disk(folder: Path, least_bytes: int = MIN_FREE_BYTES) -> Finding:
    """Room for checkpoints and logs, on the disk that would hold the runs."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    free, writable = shutil.disk_usage(there).free, os.access(there, os.W_OK)
    message = f"{there}: {free >> 20} MiB free"
    if free >= least_bytes and writable:
        return Finding("ok", message)
    trouble = f"a run needs {least_bytes >> 20}" if writable else "not writable"
    return Finding("bad", f"{message}, {trouble}", "free some space or pass --runs-dir")


def limits() -> Finding:
    """Open files and processes of this user."""
    found = []
    for name, kind, least in (("open files", resource.RLIMIT_NOFILE, MIN_FILES),
                              ("processes", resource.RLIMIT_NPROC, MIN_PROCESSES)):  # fmt: skip
        soft = resource.getrlimit(kind)[0]
        found.append((name, "unlimited" if soft == resource.RLIM_INFINITY else str(soft),
                      soft != resource.RLIM_INFINITY and soft < least, least))  # fmt: skip
    message = ", ".join(f"{name} {value}" for name, value, _, _ in found)
    low = [(name, least) for name, _, is_low, least in found if is_low]
    if low:
        return Finding("bad", message, f"raise {low[0][0]} to {low[0][1]} or more (ulimit)")
    return Finding("ok", message)


def processors() -> Finding:
    """Whether they order stores as shared memory needs it, and how many this process may use."""
    try:
        check_processor()
    except InputError as error:
        return Finding("bad", error.message, error.remedy)
    have = len(os.sched_getaffinity(0))
    if have >= MIN_THREADS:
        return Finding("ok", f"{have} usable")
    return Finding("note", f"{have} usable; emulated nodes will share it", "give it 2 or more")


def ports() -> Finding:
    """Whether loopback sockets can be bound; runs take whatever port is free."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return Finding("ok", "loopback sockets can be bound")
    except OSError as error:
        return Finding(
            "bad", f"no loopback socket: {error.strerror}", "check 127.0.0.1 and its rights"
        )


def leftovers() -> Finding:
    """What ended runs have left in memory; the next start removes it."""
    dead = [run_id for run_id in _known_runs() if _is_dead(run_id)]
    if not dead:
        return Finding("ok", "nothing of ended runs")
    num = sum(len(processes_of(run_id)) for run_id in dead)
    return Finding(
        "note",
        f"of ended runs {', '.join(dead)}: {num} processes, sockets, shared memory",
        "the next `headway run` removes them",
    )


def _known_runs() -> Iterator[str]:
    roots = [root for root in (sock_root(), shm_root()) if root.is_dir()]
    yield from sorted(
        {child.name for root in roots for child in root.iterdir() if RUN_ID.fullmatch(child.name)}
    )


def _is_dead(run_id: str) -> bool:
    if not RunLock.path_of(run_id).exists():
        return not processes_of(run_id)
    lock = RunLock.try_exclusive(run_id, sock_root())
    if lock is None:
        return False
    lock.release()
    return True


def terraform() -> Finding:
    """Only `make up` needs it."""
    found = shutil.which("terraform")
    if found:
        return Finding("ok", found)
    return Finding(
        "note",
        "no terraform on the PATH",
        f"`make up` needs Terraform {TERRAFORM} or newer; `headway run` does not",
    )


def gpus() -> Finding:
    """NVIDIA GPUs, as the kernel's driver lists them."""
    if found := num_gpus():
        return Finding("ok", f"{found} NVIDIA: runs of at most as many ranks use them and NCCL")
    return Finding("ok", "none: workers compute on the processor and use gloo")


def find_up(name: str) -> Path | None:
    """The nearest file of this name, from the working folder and from this file upward."""
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / name).is_file():
                return folder / name
    return None


def _pins(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        found = re.fullmatch(r"([A-Za-z0-9_.-]+)==([^\s;#]+).*", line.strip())
        if found:
            yield _plain(found[1]), found[2]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _same(have: str, want: str) -> bool:
    """Equal but for a build label: 2.13.0+cpu is 2.13.0."""
    return have == want or have.partition("+")[0] == want
