"""For tests that use shared memory and processes: private roots, real children, leak checks."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from headway.common import polling
from headway.common.node.janitor import end_run
from headway.common.node.process import ProcessId
from headway.common.node.run_dir import ENV_SHM_ROOT, ENV_SOCK_ROOT, RUN_ID, shm_root, sock_root


def wait_until(
    condition: Callable[[], bool], timeout_s: float = 20.0, what: str = "condition"
) -> None:
    """Poll until ``condition`` holds. Raises TimeoutError naming ``what`` after ``timeout_s``."""
    if not polling.wait_until(condition, timeout_s, every_s=0.002):
        raise TimeoutError(f"{what} not reached in {timeout_s:g} s")


@contextlib.contextmanager
def private_roots() -> Iterator[tuple[Path, Path]]:
    """Private socket root (a short path in /tmp) and shared-memory root, set in the environment.

    At the end their runs are ended and both roots are removed.
    """
    base = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    memory = Path(tempfile.mkdtemp(prefix="headway-test-", dir="/dev/shm"))
    wanted = {ENV_SOCK_ROOT: str(base / "s"), ENV_SHM_ROOT: str(memory / "m")}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield sock_root(), shm_root()
    finally:
        for run_id in _runs_under(sock_root(), shm_root()):
            end_run(run_id)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        shutil.rmtree(base, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _runs_under(*roots: Path) -> set[str]:
    return {
        p.name
        for root in roots
        if root.is_dir()
        for p in root.iterdir()
        if RUN_ID.fullmatch(p.name)
    }


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with its import path, so that a child finds the same packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(extra or {})}


@contextlib.contextmanager
def many_open_files() -> Iterator[None]:
    """So many that each further descriptor has a number for which ``select.select`` fails."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2048, limits[0]), limits[1]))
    try:
        with contextlib.ExitStack() as held:
            while held.enter_context(Path(os.devnull).open()).fileno() < 1024:
                pass
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextlib.contextmanager
def python_child(
    code: str, *args: str | int | Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a real process with ``args`` as ``sys.argv[1:]``.

    Its stdin and stdout are pipes.

    Killed and collected at the end, whatever its state.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(env),
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Hold processes in a frozen cgroup (v1); they resume at the end.

    Even SIGKILL stays pending there.

    Raises:
        PermissionError: there is no such cgroup, or this user may not make one.
    """
    group = Path("/sys/fs/cgroup/freezer") / f"headway-test-{os.getpid()}-{pids[0]}"
    state = group / "freezer.state"
    try:
        group.mkdir()
    except OSError as error:
        raise PermissionError(f"no freezer cgroup can be made here: {error}") from error
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        state.write_text("FROZEN")
        wait_until(lambda: state.read_text() == "FROZEN\n", what="frozen")
        yield
    finally:
        state.write_text("THAWED")
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with contextlib.suppress(OSError):  # it ends, now that it runs again
                (group.parent / "cgroup.procs").write_text(str(pid))
        wait_until(lambda: not (group / "cgroup.procs").read_text(), what="an empty cgroup")
        group.rmdir()


@contextlib.contextmanager
def doomed(pid: int) -> Iterator[ProcessId]:
    """A frozen process with a pending SIGKILL; it ends with the block.

    Raises:
        PermissionError: as ``frozen``.
    """
    process = ProcessId.of(pid)
    assert process is not None
    with frozen(pid):
        process.kill()
        wait_until(process.is_terminating, what="a signal that waits")
        assert process.alive()
        yield process


def send_line(child: subprocess.Popen[str], line: str) -> None:
    """Write one line to the child's stdin."""
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def read_line(child: subprocess.Popen[str]) -> str:
    """The next line of the child's stdout, without its end; '' when the child has closed it."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def identity(child: subprocess.Popen[str]) -> ProcessId:
    """The identity of the child, which must not have been collected yet."""
    found = ProcessId.of(child.pid)
    assert found is not None
    return found


def open_fds() -> dict[int, str]:
    """This process's file descriptors and what they point at."""
    fds = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            fds[int(entry.name)] = str(entry.readlink())
    return {fd: target for fd, target in fds.items() if not target.endswith("/fd")}


@contextlib.contextmanager
def no_leaks(folder: Path) -> Iterator[None]:
    """Fail if the block leaves a file under ``folder``, a descriptor, or a mapping.

    Only mappings of files under ``folder`` count.
    """
    files, fds = _files(folder), open_fds()
    yield
    left = _files(folder) - files
    assert not left, f"files left: {sorted(map(str, left))}"

    def new() -> dict[int, str]:
        return {fd: target for fd, target in open_fds().items() if fds.get(fd) != target}

    # ZeroMQ closes a socket's descriptors on a thread of its own, a moment after ``close``.
    polling.wait_until(lambda: not new(), 5.0)
    assert not new(), f"file descriptors left: {new()}"
    maps = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
    ]
    assert not maps, f"mappings left: {maps}"


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}
