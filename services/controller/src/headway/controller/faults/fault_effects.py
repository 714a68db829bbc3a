"""What the faults of ``headway inject`` do to processes and files.

Each is undone at the end of its block.

Every effect is a context manager that yields a function; the process that holds the fault calls it
some 20 times a second, for those that have to be kept up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headway.common.errors import HeadwayError, InputError
from headway.common.node.process import ProcessId
from headway.controller.faults import cgroups, network

Tick = Callable[[], None]

MOST_FILLED_BYTES = 4 << 30
"""A larger file system is the machine's own, not one that was made for a drill."""
SLOW_RUNS_S, SLOW_WAITS_S = 0.05, 0.45
"""A slow process runs for the first, then waits for the second, and so on."""
CLOCK_BACK_S = 120.0
CLOCK_ENV = "HEADWAY_CLOCK"
_LOCK_LIMIT_S = 10.0
_ROOM_BYTES = 1 << 20
_SMALLEST = 4096
_ATTACH, _DETACH = 16, 17


def _nothing() -> None:
    """Most effects last by themselves."""


@contextlib.contextmanager
def frozen(processes: Sequence[ProcessId]) -> Iterator[Tick]:
    """Processes that do not run, in state D or S, and are not stopped: hung, as others see them.

    Raises:
        InputError: no freezer can be used here.
    """
    with cgroups.group("freezer", processes) as group:
        try:
            cgroups.freeze(group)
            yield _nothing
        finally:
            cgroups.thaw(group)


@contextlib.contextmanager
def slowed(
    processes: Sequence[ProcessId], runs_s: float = SLOW_RUNS_S, waits_s: float = SLOW_WAITS_S
) -> Iterator[Tick]:
    """Processes that run a tenth of the time, as if each of their writes waited for a slow disk.

    With other times they run for ``runs_s``, then wait for ``waits_s``, and so on.

    A stand-in by the freezer: control groups cannot throttle a process that already has its
    memory and files, and a slow device of its own would need root.
    """
    with cgroups.group("freezer", processes) as group:

        def burst() -> None:
            cgroups.freeze(group)
            time.sleep(waits_s)
            cgroups.thaw(group)
            time.sleep(runs_s)

        try:
            yield burst
        finally:
            cgroups.thaw(group)


@contextlib.contextmanager
def unable_to_spawn(processes: Sequence[ProcessId]) -> Iterator[Tick]:
    """Processes for which fork and clone fail with EAGAIN."""
    if cgroups.root("pids") is not None:
        with cgroups.group("pids", processes) as group:
            (group / "pids.max").write_text("0")
            yield _nothing
        return
    if os.getuid() == 0:
        cgroups.needed("pids")  # no limit of processes holds for root
    before = {}
    for process in processes:
        before[process] = resource.prlimit(process.pid, resource.RLIMIT_NPROC)
        resource.prlimit(process.pid, resource.RLIMIT_NPROC, (0, before[process][1]))
    try:
        yield _nothing
    finally:
        for process, limits in before.items():
            if process.alive():
                resource.prlimit(process.pid, resource.RLIMIT_NPROC, limits)


@contextlib.contextmanager
def disturbed(fault: str, address: str) -> Iterator[Tick]:
    """A network of the ranks that carries less, later or nothing.

    Raises:
        InputError, OSError: it cannot be done here.
    """
    with network.disturbed(fault, address):
        yield _nothing


@contextlib.contextmanager
def starved(processes: Sequence[ProcessId]) -> Iterator[Tick]:
    """Processes that may have no more memory than now: the kernel ends the one that asks.

    Raises:
        InputError: no control group for memory can be used here.
    """
    with cgroups.group("memory", processes) as group:
        # version 1 does not count what a process brings along, version 2 does
        limit = group / "memory.limit_in_bytes"
        if limit.exists():
            limit.write_text(str(_ROOM_BYTES))
        else:
            taken = int((group / "memory.current").read_text())
            (group / "memory.max").write_text(str(taken + _ROOM_BYTES))
            (group / "memory.swap.max").write_text("0")
        yield _nothing


def check_small(folder: Path) -> int:
    """Free bytes of a file system that may be filled.

    Raises:
        InputError: it has more free bytes than a drill may take.
    """
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free > MOST_FILLED_BYTES:
        raise InputError(
            f"{folder} has {free >> 30} GiB free, too much to fill",
            remedy=f"keep the run on a file system of at most {MOST_FILLED_BYTES >> 30} GiB, "
            "such as a tmpfs",
        )
    return free


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[Tick]:
    """Fill a file system: a nameless file takes all room, and what others free.

    The file goes with its process.
    """
    check_small(folder)
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def fill() -> None:
        piece = 64 << 20
        while piece >= _SMALLEST:
            try:
                os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, piece)
            except OSError:
                piece //= 4

    try:
        fill()
        yield fill
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[Tick]:
    """A journal whose write lock another process holds."""
    deadline = time.monotonic() + _LOCK_LIMIT_S
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=1.0)) as db:
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
        try:
            yield _nothing
        finally:
            db.execute("ROLLBACK")


@contextlib.contextmanager
def traced(processes: Sequence[ProcessId]) -> Iterator[Tick]:
    """Processes that a debugger holds: every thread in ptrace stop.

    Raises:
        InputError: the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    held: list[int] = []
    try:
        for process in processes:
            for thread in sorted(int(name) for name in os.listdir(f"/proc/{process.pid}/task")):
                if libc.ptrace(_ATTACH, thread, None, None) == 0:
                    held.append(thread)
                elif thread == process.pid:
                    raise InputError(
                        f"cannot attach to process {thread}: {os.strerror(ctypes.get_errno())}",
                        remedy="allow ptrace (kernel.yama.ptrace_scope=0), or run as root",
                    )
        for thread in held:
            os.waitpid(thread, 0x40000000)  # __WALL: threads too
        yield _nothing
    finally:
        for thread in held:
            libc.ptrace(_DETACH, thread, None, None)


# ---- at once -----------------------------------------------------------------------------------
def damage_header(arena: Path) -> str:
    """The first byte of a rank's snapshot memory is no longer that of an arena."""
    with arena.open("r+b") as file:
        file.write(b"\xff")
    return f"first byte of {arena} is 0xff"


def flip_bits(arena: Path) -> str:
    """One bit of the data of every sealed snapshot flips."""
    from headway.common.node.arena import Arena  # needs numpy, which takes long to import

    with Arena.open(arena) as opened:
        slots = opened.sealed()
        for info in slots:
            data, _ = opened.read(info)
            data.flags.writeable = True  # the mapping is, only the view is not
            data[len(data) // 3] ^= 0x10
    if not slots:
        raise HeadwayError(f"{arena} holds no snapshot", remedy="try again after a step")
    return f"one bit flipped in {arena}, steps {[info.step for info in slots]}"


def clock_file(process: ProcessId) -> Path:
    """The file with the clock's offset, which the drills' preloaded clock reads.

    Raises:
        InputError: the process has the machine's clock, which is not ours to change.
    """
    words = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    found = [word.partition(b"=")[2] for word in words if word.startswith(CLOCK_ENV.encode())]
    if not found:
        raise InputError(
            "the run has the machine's clock, which is not changed",
            remedy="start the run with the clock of `python -m benchmarks.drill`",
        )
    return Path(os.fsdecode(found[0]))


def step_clock(file: Path, seconds: float = -CLOCK_BACK_S) -> str:
    """Move the run's wall clock; its monotonic clock stays."""
    with file.open("r+b") as opened:
        (offset,) = struct.unpack("=q", opened.read(8))
        opened.seek(0)
        opened.write(struct.pack("=q", offset + round(seconds * 1e9)))
    return f"the run's clock moved by {seconds:g} s"
